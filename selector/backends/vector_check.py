"""`specbed selector check`: a file of vectors against every backend that this machine can run.

The numpy reference is held against the file; every other backend is held against the reference, whole rows and rows in
two shards: ids, counts, drawn token and digest. A backend that cannot run here is named with its reason, never counted
as equal. Must never stop at the first backend that differs. Source: DESIGN sections 3 and 7.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from selector.backends.law_rows import LawRow, compiled_rows, law_of_row, numpy_rows
from selector.law_vectors import LawVectors, case_difference

__all__ = [
    "Backend",
    "BackendUnavailable",
    "VectorCheck",
    "backends_here",
    "check_data",
    "check_lines",
    "check_vectors",
]

RowLaws = Callable[[Sequence[NDArray[np.float32]], int], list[LawRow]]
_SHARDS: Final = (1, 2)
_WORKER_SECONDS: Final = 600
_SHORT: Final = 60


class BackendUnavailable(RuntimeError):
    """A backend cannot run here; the words say why."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A name for people and what turns rows into laws; `laws` raises BackendUnavailable when it cannot run here."""

    name: str
    laws: RowLaws


@dataclass(frozen=True, slots=True)
class BackendResult:
    """rows: compared; mismatches: of them; first: the first difference in words; unavailable: why nothing was run."""

    name: str
    rows: int = 0
    mismatches: int = 0
    first: str | None = None
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """What every backend gave. exit_code: 0 when no backend that ran differs anywhere, else 1."""

    law: str
    cases: int
    results: tuple[BackendResult, ...]

    @property
    def exit_code(self) -> int:
        """Return 1 for any mismatch, or when the reference itself compared nothing."""
        wrong = any(result.mismatches for result in self.results)
        return 1 if wrong or not self.results or not self.results[0].rows else 0


def kernel_rows_by_process(rows: Sequence[NDArray[np.float32]], shards: int, device: str) -> list[LawRow]:
    """Return what the kernels make of each row, in a process that runs them on `device`: cpu (interpreted) or cuda.

    Raises BackendUnavailable when there is no such device, RuntimeError when the process fails.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("no CUDA device")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    texts = [np.ascontiguousarray(row, dtype="<f4").tobytes().hex() for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "laws.json"
        worker = subprocess.run(
            [sys.executable, "-m", "selector.backends.kernel_rows", str(answer)],
            input=json.dumps({"device": device, "shards": shards, "rows": texts}) + "\n",
            capture_output=True,
            text=True,
            timeout=_WORKER_SECONDS,
            check=False,
            env={**environment, "PYTHONPATH": _import_folders()},
        )
        if worker.returncode or not answer.is_file():
            last = (worker.stderr.strip().splitlines() or ["no word"])[-1]
            raise RuntimeError(f"the process that runs the kernels ended with code {worker.returncode}: {last}")
        laws = json.loads(answer.read_text(encoding="utf-8"))
    return [LawRow(**{**law, "ids": tuple(law["ids"]), "counts": tuple(law["counts"])}) for law in laws]


def _import_folders() -> str:
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *(path for path in sys.path if path)])


def backends_here() -> tuple[Backend, ...]:
    """Return the reference first, then every other backend; whether it can run is found out by running it."""
    return (
        Backend("numpy reference", numpy_rows),
        Backend("compiled CPU", compiled_rows),
        Backend("Triton kernels, interpreted", lambda rows, shards: kernel_rows_by_process(rows, shards, "cpu")),
        Backend("Triton kernels, GPU", lambda rows, shards: kernel_rows_by_process(rows, shards, "cuda")),
    )


def check_vectors(
    vectors: LawVectors, backends: Sequence[Backend] | None = None, on_progress: Callable[[str], None] = lambda _: None
) -> VectorCheck:
    """Return what every backend makes of the vectors; backends[0] is the reference that the others must equal.

    A backend that fails, rather than being unavailable, counts as one mismatch with its error as the difference.
    """
    chosen = backends_here() if backends is None else backends
    rows = [case.logits() for case in vectors.cases]
    reference: list[LawRow] = []
    results = []
    for backend in chosen:
        on_progress(backend.name)
        try:
            found = [backend.laws(rows, shards) for shards in _SHARDS]
        except BackendUnavailable as error:
            results.append(BackendResult(backend.name, unavailable=str(error)))
            continue
        except Exception as error:  # noqa: BLE001 - a backend that breaks is a difference, whatever broke it
            words = f"it failed, {type(error).__name__}: {error}"
            results.append(BackendResult(backend.name, mismatches=1, first=words))
            continue
        if not reference:
            reference = found[0]
            results.append(_against_file(backend.name, vectors, found))
        else:
            results.append(_against_reference(backend.name, vectors, reference, found))
    return VectorCheck(vectors.law, len(rows), tuple(results))


def _against_file(name: str, vectors: LawVectors, found: Sequence[Sequence[LawRow]]) -> BackendResult:
    differences = []
    for shards, laws in zip(_SHARDS, found, strict=True):
        for case, law in zip(vectors.cases, laws, strict=True):
            words = case_difference(case, law_of_row(law))
            if words is not None:
                differences.append(f"case {case.name}, {_shards(shards)}: {words}")
    # The reference must not depend on the number of shards either, and the file alone would allow a count of one.
    split = _against_reference(name, vectors, found[0], found[1:])
    differences += [split.first] if split.first else []
    rows = sum(len(laws) for laws in found)
    return BackendResult(name, rows, len(differences), differences[0] if differences else None)


def _against_reference(
    name: str, vectors: LawVectors, reference: Sequence[LawRow], found: Sequence[Sequence[LawRow]]
) -> BackendResult:
    differences, rows = [], 0
    for shards, laws in zip(_SHARDS[-len(found) :], found, strict=True):
        for case, wanted, law in zip(vectors.cases, reference, laws, strict=True):
            rows += 1
            if law != wanted:
                differences.append(f"case {case.name}, {_shards(shards)}: {_field_words(wanted, law)}")
    return BackendResult(name, rows, len(differences), differences[0] if differences else None)


def _shards(number: int) -> str:
    return "whole row" if number == 1 else f"{number} shards"


def _field_words(wanted: LawRow, law: LawRow) -> str:
    for field in ("status", "ids", "counts", "token", "digest"):
        first, second = getattr(wanted, field), getattr(law, field)
        if first == second:
            continue
        if isinstance(first, tuple) and len(first) == len(second):
            place = next(i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])
            return f"{field}[{place}] is {second[place]}, the reference has {first[place]}"
        return f"{field} is {str(second)[:_SHORT]}, the reference has {str(first)[:_SHORT]}"
    raise ValueError("both rows are equal")


def check_lines(check: VectorCheck) -> list[str]:
    """Return one line a backend and the sum of it."""
    lines = [f"{check.cases} cases of {check.law}, each as a whole row and as two shards."]
    for result in check.results:
        if result.unavailable is not None:
            lines.append(f"{result.name}: not run ({result.unavailable})")
        elif result.first is None:
            lines.append(f"{result.name}: {result.rows} rows, 0 mismatches")
        else:
            lines.append(f"{result.name}: {result.mismatches} MISMATCHES, the first: {result.first}")
    return lines


def check_data(check: VectorCheck) -> Mapping[str, Any]:
    """Return the whole result as plain data for JSON."""
    return {**asdict(check), "results": [asdict(result) for result in check.results], "exit_code": check.exit_code}
