"""Host-clock time of one round on one rank, term by term. Must never synchronise a device.

Terms never overlap; what no term claims (the loop itself) shows as total minus their sum.
Source: DESIGN section 4; plan, "Collect per-request".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from ranks.records import RankTimes

__all__ = ["RoundTimer", "Term"]

Term = Literal["draft", "selector", "exchange", "validation", "target", "agreement"]


class RoundTimer:
    """Accumulates nanoseconds of the injected clock by term."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """Use `clock_ns`, a monotonic nanosecond clock."""
        self._clock_ns = clock_ns
        self._terms: dict[Term, int] = {}
        self._started_ns = 0

    def begin(self) -> None:
        """Start a round: all terms zero."""
        self._terms = dict.fromkeys(("draft", "selector", "exchange", "validation", "target", "agreement"), 0)
        self._started_ns = self._clock_ns()

    @contextmanager
    def term(self, term: Term) -> Iterator[None]:
        """Add the time of the block to a term."""
        started = self._clock_ns()
        try:
            yield
        finally:
            self._terms[term] = self._terms.get(term, 0) + self._clock_ns() - started

    def times(self) -> RankTimes:
        """Return the round so far; what no term claimed is in the total only."""
        terms = self._terms
        return RankTimes(
            draft_ns=terms["draft"],
            selector_ns=terms["selector"],
            exchange_ns=terms["exchange"],
            validation_ns=terms["validation"],
            target_ns=terms["target"],
            agreement_ns=terms["agreement"],
            total_ns=self._clock_ns() - self._started_ns,
        )
