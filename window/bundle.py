"""The folder that one window leaves behind: made whole before anything starts, sealed at the end.

Every file appears by rename, so none is ever half written; the journal and the round files grow line by
line. Must never hold prompt or output text. Source: DESIGN section 6.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from window.arms import BlockName
from window.canonical import canonical_bytes, canonical_json, sha256_hex
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.gain import IndexMatrices
from window.index_matrix import matrix_bytes
from window.records import WindowRound
from window.registration import Registration

__all__ = [
    "DECISION_FILE",
    "FAMILIES_FILE",
    "JOURNAL_FILE",
    "REGISTRATION_FILE",
    "REPORT_FILE",
    "SEAL_FILE",
    "SOURCES_FILE",
    "Bundle",
    "file_digests",
    "rounds_file",
]

REGISTRATION_FILE = "registration.json"
JOURNAL_FILE = "journal.jsonl"
FAMILIES_FILE = "indices-families.i64"
SOURCES_FILE = "indices-sources.i64"
DECISION_FILE = "decision.json"
REPORT_FILE = "report.html"
SEAL_FILE = "seal.json"
NEEDED_BYTES = 64 << 20


def rounds_file(block: BlockName) -> str:
    """Return the name of a block's round file."""
    return f"rounds-{block}.jsonl"


def file_digests(folder: Path) -> dict[str, str]:
    """Return the sha-256 of every file of a bundle but its seal, by name."""
    return {
        path.name: sha256_hex(path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != SEAL_FILE
    }


class Bundle:
    """A bundle that is being written."""

    def __init__(self, folder: Path) -> None:
        """Take over a folder made by `create`."""
        self.folder = folder

    @classmethod
    def create(cls, out_folder: Path, registration: Registration, matrices: IndexMatrices) -> Bundle:
        """Make the folder with registration and index matrices. Raises WindowError when it cannot be written."""
        window_id = registration.window_id()
        folder = out_folder / f"window-{window_id[:16]}"
        draft = out_folder / f".window-{window_id[:16]}.draft"
        try:
            free = shutil.disk_usage(_nearest_folder(out_folder)).free
            if free < NEEDED_BYTES:
                raise WindowError(
                    f"{out_folder} has {free >> 20} MiB free, a window needs {NEEDED_BYTES >> 20} MiB; free some space "
                    "or choose another folder",
                    ExitCode.CANNOT_WRITE,
                )
            if folder.exists():
                raise WindowError(
                    f"{folder} exists already; one registration has one window, so register a new one",
                    ExitCode.CANNOT_WRITE,
                )
            out_folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            made = cls(draft)
            made.write(REGISTRATION_FILE, canonical_bytes(registration) + b"\n")
            made.write(FAMILIES_FILE, matrix_bytes(matrices.families))
            made.write(SOURCES_FILE, matrix_bytes(matrices.sources))
            draft.rename(folder)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise WindowError(
                f"{out_folder} cannot be written ({error.strerror}); choose a writable folder with --out",
                ExitCode.CANNOT_WRITE,
            ) from error
        return cls(folder)

    @property
    def journal_path(self) -> Path:
        """Return where the journal stands."""
        return self.folder / JOURNAL_FILE

    def write(self, name: str, data: bytes) -> Path:
        """Write one file whole, forced to the disk before it gets its name. Raises OSError."""
        path = self.folder / name
        unfinished = self.folder / f".{name}.part"
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        return path

    def append_rounds(self, block: BlockName, rounds: Sequence[WindowRound]) -> None:
        """Add the rounds of one run to its block's file, durable when this returns. Raises OSError."""
        with (self.folder / rounds_file(block)).open("ab") as file:
            for line in rounds:
                file.write(canonical_bytes(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def seal(self, journal_head: str, journal_count: int, extra: Mapping[str, str]) -> Path:
        """Write down the journal's head and the digest of every file: a cut tail shows against it."""
        sealed = {
            "format": "specbed-seal-1",
            "journal_head": journal_head,
            "journal_records": journal_count,
            "files": file_digests(self.folder),
            **extra,
        }
        return self.write(SEAL_FILE, canonical_json(sealed) + b"\n")


def _nearest_folder(path: Path) -> Path:
    """Return the path itself or the nearest folder above it that exists, so that a refusal leaves nothing behind."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
