"""All checks of the selector that need a GPU, in one run of under eight minutes: bits first, then times.

Needs numpy, torch and triton, nothing else: `python scripts/gpu_checks.py OUT_FOLDER` from the repository's root.
Writes gpu_checks.json and gpu_checks.txt there after every part, so a run that is cut short leaves what it had. Exit
code 0 when all bits agree and times were taken, 1 when a bit differs, 2 when something could not be run.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from selector.kernels.device_bench import measure_device
from selector.kernels.device_identity import (
    Identity,
    compare_draft_kernels,
    compare_replayed_graph,
    compare_verify_kernels,
)
from selector.kernels.device_view import device_lines, device_table_lines
from selector.kernels.kernel_cases import LARGE_WIDTHS, SMALL_WIDTHS

TYPES = (torch.float32, torch.bfloat16)
# The goal's shape first; the rest as time allows.
BENCH_SHAPES = (
    (1, 5, 163_840),
    (4, 5, 163_840),
    (1, 4, 163_840),
    (1, 5, 129_280),
    (2, 5, 163_840),
    (3, 5, 163_840),
    (1, 5, 32_000),
    (4, 5, 32_000),
)
BENCH_SECONDS = 300.0


class Report:
    """Everything found so far, written anew after each part."""

    def __init__(self, folder: Path) -> None:
        """Start with the machine's description."""
        self.folder = folder
        self.start = time.monotonic()
        self.lines: list[str] = []
        self.failed = False
        self.data: dict[str, object] = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "device": torch.cuda.get_device_name(0),
            "capability": list(torch.cuda.get_device_capability(0)),
        }

    def say(self, line: str) -> None:
        """Print and keep one line."""
        self.lines.append(f"[{time.monotonic() - self.start:6.1f} s] {line}")
        print(self.lines[-1], flush=True)

    def write(self) -> None:
        """Write both files."""
        (self.folder / "gpu_checks.txt").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        (self.folder / "gpu_checks.json").write_text(json.dumps(self.data, indent=2) + "\n", encoding="utf-8")

    def part(self, name: str, work: Callable[[], object]) -> None:
        """Run one part; what breaks is reported and the next part still runs."""
        try:
            self.data[name] = work()
        except Exception as error:  # noqa: BLE001 - one broken part must not hide the others
            self.failed = True
            self.data[name] = {"failed": f"{type(error).__name__}: {error}"}
            self.say(f"{name}: FAILED, {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            self.lines.append(traceback.format_exc())
        self.write()


def identity_part(report: Report, name: str, compare: Callable[[Identity], None]) -> Callable[[], object]:
    """Return a part that compares kernels with their references."""

    def work() -> object:
        identity = Identity()
        compare(identity)
        report.say(f"{name}: {identity.compared} comparisons, {len(identity.differences)} differences")
        for difference in identity.differences[:10]:
            report.say(f"  {difference}")
        return asdict(identity)

    return work


def bench_part(report: Report) -> object:
    """Time shape by shape until the time is up; shapes left out are named."""
    measured, left_out = [], []
    begun = time.monotonic()
    for shape in BENCH_SHAPES:
        if time.monotonic() - begun > BENCH_SECONDS:
            left_out.append(shape)
            continue
        bench = measure_device(shapes=(shape,), samples=60)
        measured.append(asdict(bench))
        for line in (*device_lines(bench), *device_table_lines(bench)):
            report.say(line)
        report.data["bench"] = measured
        report.write()
    if left_out:
        report.say(f"not timed for lack of time: {left_out}")
    return {"measured": measured, "left_out": left_out}


def main() -> int:
    """Run every part and return the exit code."""
    if len(sys.argv) != 2:
        print("usage: python scripts/gpu_checks.py OUT_FOLDER", file=sys.stderr)
        return 64
    if not torch.cuda.is_available():
        print("gpu_checks: no CUDA device here; nothing was checked.", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder)
    report.say(", ".join(f"{name} {value}" for name, value in report.data.items()))
    parts: dict[str, Callable[[Identity], None]] = {
        "draft kernels, small": lambda identity: compare_draft_kernels(identity, "cuda", SMALL_WIDTHS, TYPES),
        "draft kernels, large": lambda identity: compare_draft_kernels(identity, "cuda", LARGE_WIDTHS, TYPES),
        "replayed graph": lambda identity: compare_replayed_graph(identity, 81_920),
        "verify kernels": lambda identity: compare_verify_kernels(identity, "cuda", large=True),
    }
    for name, compare in parts.items():
        report.part(name, identity_part(report, name, compare))
    report.part("bench", lambda: bench_part(report))
    found = [part for part in report.data.values() if isinstance(part, dict)]
    if any(part.get("differences") for part in found):
        return 1
    return 2 if report.failed or not all(part.get("compared", 1) for part in found) else 0


if __name__ == "__main__":
    sys.exit(main())
