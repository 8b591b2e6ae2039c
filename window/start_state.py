"""The state that a window begins from and must come back to, as far as one machine can observe it.

Looks, never changes: which processes descend from this one, and the bytes of the files that a window uses.
A restore is believed only when this says so. Source: plan, "Restore exact baseline"; DESIGN section 6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ranks.process_identity import is_alive, process_start_ticks
from window.records import RestoreItem

__all__ = ["ProcessKey", "StartState", "compare_states", "living", "look"]

ProcessKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StartState:
    """Descendants of this process as (pid, start ticks), and the sha-256 of each used file."""

    processes: frozenset[ProcessKey]
    files: Mapping[str, str]


def look(files: Sequence[Path]) -> StartState:
    """Return what there is now; an unreadable file is written down as unreadable."""
    found: set[ProcessKey] = set()
    for child in psutil.Process().children(recursive=True):
        ticks = process_start_ticks(child.pid)
        if ticks is not None and is_alive(child.pid, ticks):
            found.add((child.pid, ticks))
    return StartState(frozenset(found), {path.name: _file_digest(path) for path in files})


def living(processes: Sequence[ProcessKey]) -> tuple[int, ...]:
    """Return the pids of those processes that still are themselves and run."""
    return tuple(pid for pid, ticks in processes if is_alive(pid, ticks))


def compare_states(before: StartState, after: StartState, ranks: Sequence[ProcessKey]) -> tuple[RestoreItem, ...]:
    """Return one item a property; `ranks` are all rank processes that ever attested."""
    alive = living(ranks)
    new = after.processes - before.processes
    items = [
        RestoreItem(
            name="rank processes alive",
            before="none",
            after="none" if not alive else f"{len(alive)} of {len(ranks)}",
            equal=not alive,
        ),
        RestoreItem(
            name="other processes started and not ended",
            before="none",
            after="none" if not new else ", ".join(str(pid) for pid, _ in sorted(new)),
            equal=not new,
        ),
    ]
    for name, digest in before.files.items():
        now = after.files.get(name, "not looked at")
        readable = "unreadable" not in (digest, now)
        items.append(RestoreItem(name=f"file {name}", before=digest, after=now, equal=readable and digest == now))
    return tuple(items)


def _file_digest(path: Path) -> str:
    """Return the sha-256 of a file, "unreadable" when there is none to read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"
