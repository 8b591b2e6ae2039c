"""Ctrl-C, SIGTERM and a closed terminal reach the window only where it can be stopped; everywhere else they wait.

Sealing and restoring are not interruptible: a signal there is remembered and raised at the next open place.
Must never swallow a signal for good. Source: DESIGN section 7, "Ctrl-C leaves nothing running".
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["InterruptGate"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptGate:
    """Holds the signals while a window runs; use as a context manager in the main thread."""

    def __init__(self) -> None:
        """Nothing is held before `held`."""
        self.pending = False
        self._open = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the signals for a while; outside the main thread there is nothing to hold."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # What is ignored (a run under nohup) stays ignored.
        heeded = [name for name in SIGNALS if signal.getsignal(name) != signal.SIG_IGN]
        earlier: dict[signal.Signals, Any] = {name: signal.signal(name, self._on_signal) for name in heeded}
        try:
            yield
        finally:
            for name, handler in earlier.items():
                signal.signal(name, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise KeyboardInterrupt inside, one that waits at once."""
        self._open = True
        try:
            if self.pending:
                self.pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._open = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise where it is allowed, remember otherwise."""
        if self._open:
            raise KeyboardInterrupt
        self.pending = True
