"""A small process that outlives a killed driver just long enough to end what that driver had started.

Reads "watch PID START_TICKS" and "folder PATH" lines from its standard input; "done" ends it quietly. When the
input ends without "done", the driver is dead: every watched process that still is the same process is killed,
and the session folder removed. Must never signal a process that it was not told of.
Source: Ray leaves agents behind for half a minute when its driver is killed; DESIGN section 7.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

from ranks.process_identity import is_alive

__all__ = ["FOLDER_PREFIX", "main", "reap"]

FOLDER_PREFIX = "specbed-ray-"


def reap(watched: dict[int, int], folder: str) -> list[int]:
    """Kill every watched process that is still itself, remove the session folder, and return the killed pids."""
    killed = []
    for pid, start_ticks in watched.items():
        if is_alive(pid, start_ticks):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(pid)
    if folder and os.path.basename(folder).startswith(FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    return killed


def main() -> int:
    """Follow the driver's lines until it says done or is gone."""
    watched: dict[int, int] = {}
    folder = ""
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "watch":
            pid, start_ticks = rest.split()
            watched[int(pid)] = int(start_ticks)
        elif word == "folder":
            folder = rest
        elif word == "done":
            return 0
    reap(watched, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
