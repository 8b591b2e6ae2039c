"""What the window needs from a pair of ranks, and from whatever can start one.

The window speaks to these two and to nothing behind them. Must never name a transport.
Source: DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ranks.bed_records import ReleaseEvent
from ranks.records import Attestation, PrimeReceipt, RequestResult, RequestSpec, StopReceipt
from window.arms import Arm

__all__ = ["Engine", "EngineFault", "WindowBed"]


class EngineFault(RuntimeError):
    """The ranks could not be started or cannot go on; the text says why."""


class WindowBed(Protocol):
    """Two running ranks of one arm."""

    def attest(self) -> tuple[Attestation, Attestation]:
        """Return what each rank's process says of itself."""
        ...

    def prime(self, spec: RequestSpec) -> PrimeReceipt:
        """Hold a request's prompt on both ranks."""
        ...

    def run(
        self, specs: Sequence[RequestSpec], on_release: Callable[[ReleaseEvent], None] | None = None
    ) -> list[RequestResult]:
        """Serve requests to their end and return one result each."""
        ...

    def stop(self) -> StopReceipt:
        """Stop both ranks and wait until they are gone; idempotent."""
        ...


class Engine(Protocol):
    """Starts pairs of ranks; `open` and `close` bracket whatever they share."""

    def open(self) -> None:
        """Make ready to start ranks. Raises EngineFault when this machine cannot."""
        ...

    def start(self, arm: Arm) -> WindowBed:
        """Start two fresh ranks of one arm. Raises EngineFault."""
        ...

    def close(self) -> None:
        """End everything that `open` and `start` began; idempotent."""
        ...
