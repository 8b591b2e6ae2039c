"""The thread that ends a rank's process when its driver is gone, whatever the main loop is doing.

A rank may be deep in a collective when the driver dies; the kernel closes the driver's socket, and this thread
sees that. Must never end the process after an orderly stop. Source: DESIGN section 4, "Durable means".
"""

from __future__ import annotations

import os
import select
import socket
import threading

__all__ = ["DRIVER_GONE_EXIT_CODE", "Lifeline"]

DRIVER_GONE_EXIT_CODE = 17
_POLL_MS = 200
_HANGUP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Lifeline:
    """Watches one connected socket for hang-up until released."""

    def __init__(self, watched: socket.socket) -> None:
        """Watch a socket; reading it stays the main loop's business."""
        self._watched = watched
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def release(self) -> None:
        """Stop watching; returns when the thread has ended, so that the socket may be closed."""
        self._released.set()
        self._thread.join()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._watched, _HANGUP)
        while not self._released.is_set():
            if poll.poll(_POLL_MS) and not self._released.is_set():
                # No clean-up may run: it could wait for the very peer that is ending as well.
                os._exit(DRIVER_GONE_EXIT_CODE)
