"""Who a process is: pid with start ticks, and the digest of the code that it runs.

A pid alone may have been given to another process since. Must never signal anything.
Source: proc(5), field 22 of /proc/PID/stat; plan, "worker/engine identity".
"""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["is_alive", "process_start_ticks", "process_state", "source_digest"]

_PACKAGES = ("selector", "ranks")


def process_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None when there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def process_state(pid: int) -> str:
    """Return the state letter of a process (R, S, D, T, Z ...), or "" when there is none."""
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def is_alive(pid: int, start_ticks: int) -> bool:
    """Return whether exactly this process still runs; a zombie does not."""
    fields = _stat_fields(pid)
    return bool(fields) and int(fields[19]) == start_ticks and fields[0] not in ("Z", "X")


def source_digest() -> str:
    """Return the sha-256 over names and bytes of every source file of `selector` and `ranks`, as imported here."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _stat_fields(pid: int) -> list[str]:
    """Return the fields behind the command name, which may itself hold blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
