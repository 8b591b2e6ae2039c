"""The window's journal: JSON lines, each naming the digest of the line before, durable before an effect.

One writer under a file lock; a torn last line is kept, named by a `tear` record and never rewritten.
Tamper-evident against others: whoever owns the machine can re-make the whole chain, and a chain alone
cannot show that its end was cut off, so heads are also kept in the seal. Source: DESIGN section 6.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue

from window.canonical import Count, Digest, Nanoseconds, SealedModel, canonical_bytes, parse_document, sha256_hex
from window.errors import WindowError
from window.exit_codes import ExitCode

__all__ = ["FIRST_LINK", "Journal", "JournalLine", "JournalReading", "read_journal"]

FIRST_LINK = "0" * 64
LONGEST_LINE = 1 << 20


class JournalLine(SealedModel):
    """One record; `previous` is the sha-256 of the line before, without its line end."""

    seq: Count
    previous: Digest
    elapsed_ns: Nanoseconds
    wall_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]
    boot: str
    kind: Annotated[str, Field(min_length=1)]
    body: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class JournalReading:
    """A journal read to its end: whole lines, the digest of the last one, and the size of a torn tail."""

    lines: tuple[JournalLine, ...]
    head: str
    torn_bytes: int


def _boot_id() -> str:
    """Return the kernel's id of this boot, "unknown" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


class Journal:
    """The one writer of a journal file."""

    def __init__(self, path: Path) -> None:
        """Open or create, lock, and continue the chain. Raises WindowError when locked, unwritable or broken."""
        self.path = path
        try:
            # Unbuffered: what a full disk refused must not be tried again, and fail again, when the file is closed.
            self._file: FileIO = path.open("ab", buffering=0)
        except OSError as error:
            raise WindowError(
                f"the journal {path} cannot be written: {error.strerror}", ExitCode.CANNOT_WRITE
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise WindowError(
                f"the journal {path} has another writer; one window, one driver", ExitCode.UNAVAILABLE
            ) from error
        self.opened_ns = time.monotonic_ns()
        self._boot = _boot_id()
        # The head is read after the lock, so that a writer that just left cannot fork the chain.
        data = path.read_bytes()
        reading = read_journal(data, str(path))
        self.head, self._next = reading.head, len(reading.lines)
        if reading.torn_bytes:
            self._record_tear(data[len(data) - reading.torn_bytes :])

    def __enter__(self) -> Self:
        """Return the open journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file and give the lock back."""
        self.close()

    def close(self) -> None:
        """Close the file and give the lock back; idempotent."""
        self._file.close()

    @property
    def count(self) -> int:
        """Return how many records there are."""
        return self._next

    def elapsed_ns(self) -> int:
        """Return the nanoseconds since this journal was opened."""
        return time.monotonic_ns() - self.opened_ns

    def append(self, kind: str, body: dict[str, Any]) -> str:
        """Write one record, durable when this returns, and return its digest. Raises WindowError on a full disk."""
        line = canonical_bytes(
            JournalLine(
                seq=self._next,
                previous=self.head,
                elapsed_ns=self.elapsed_ns(),
                wall_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                boot=self._boot,
                kind=kind,
                body=body,
            )
        )
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a journal record of {len(line)} bytes is longer than {LONGEST_LINE}")
        self._write(line + b"\n")
        self.head, self._next = sha256_hex(line), self._next + 1
        return self.head

    def _record_tear(self, fragment: bytes) -> None:
        """End a torn line and name it in the chain."""
        self._write(b"\n")
        self.append("tear", {"fragment_bytes": len(fragment), "fragment_sha256": sha256_hex(fragment)})

    def _write(self, data: bytes) -> None:
        """Write and force to the disk."""
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise WindowError(
                f"the journal {self.path} cannot be written: {error.strerror}", ExitCode.CANNOT_WRITE
            ) from error


def read_journal(data: bytes, name: str) -> JournalReading:
    """Return a verified journal; a torn last line is reported by its size. Raises WindowError on a broken chain."""
    *pieces, tail = data.split(b"\n")
    lines: list[JournalLine] = []
    head, fragment = FIRST_LINK, b""
    for number, piece in enumerate(pieces, start=1):
        try:
            line = parse_document(JournalLine, piece, f"{name} line {number}")
        except WindowError as error:
            if fragment or number == len(pieces):
                raise WindowError(error.sentence, ExitCode.EVIDENCE_FAILED) from error
            fragment = piece  # lawful only if the next record names it
            continue
        if line.seq != len(lines) or line.previous != head or not _names_fragment(line, fragment):
            raise WindowError(
                f"{name} line {number} does not follow the line before it; the chain is broken",
                ExitCode.EVIDENCE_FAILED,
            )
        lines.append(line)
        head, fragment = sha256_hex(piece), b""
    return JournalReading(tuple(lines), head, len(tail))


def _names_fragment(line: JournalLine, fragment: bytes) -> bool:
    """Return whether a record is a tear exactly when a fragment stands before it, and names that fragment."""
    if not fragment:
        return line.kind != "tear"
    wanted = {"fragment_bytes": len(fragment), "fragment_sha256": sha256_hex(fragment)}
    return line.kind == "tear" and line.body == wanted
