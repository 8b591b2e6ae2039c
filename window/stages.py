"""The stages of a window, their budgets, and the walls that no stage can move.

Durations are nanoseconds; elapsed 0 is the first effect of the drain.
Must never hold a clock. Source: plan, budget table; DESIGN section 6.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Self

from pydantic import model_validator

from window.canonical import Nanoseconds, SealedModel

__all__ = ["SECOND_NS", "StageBudgets", "Walls", "plan_stage_budgets", "plan_walls"]

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


class StageBudgets(SealedModel):
    """How long each stage may take; a stage past its own budget is an overrun."""

    drain_ns: Nanoseconds
    start_and_warm_ns: Nanoseconds
    prime_ns: Nanoseconds
    runs_ns: Nanoseconds
    block_limit_ns: Nanoseconds
    smoke_ns: Nanoseconds
    restore_ns: Nanoseconds
    close_ns: Nanoseconds

    @model_validator(mode="after")
    def _block_holds_its_parts(self) -> Self:
        parts = self.start_and_warm_ns + self.prime_ns + self.runs_ns
        if parts > self.block_limit_ns:
            raise ValueError(
                f"start, prime and runs need {parts} ns but a block is cut at {self.block_limit_ns} ns; "
                "raise block_limit_ns or shorten its parts"
            )
        return self


class Walls(SealedModel):
    """Elapsed times at which something happens whatever else is going on."""

    stop_admission_if_overrun_ns: Nanoseconds
    latest_restore_start_ns: Nanoseconds
    escalate_restore_ns: Nanoseconds
    closed_ns: Nanoseconds

    @model_validator(mode="after")
    def _walls_rise(self) -> Self:
        rising = (
            self.stop_admission_if_overrun_ns,
            self.latest_restore_start_ns,
            self.escalate_restore_ns,
            self.closed_ns,
        )
        if any(later <= earlier for earlier, later in pairwise(rising)):
            raise ValueError(
                "walls must rise: stop_admission_if_overrun_ns < latest_restore_start_ns < escalate_restore_ns < "
                "closed_ns"
            )
        return self


def plan_stage_budgets() -> StageBudgets:
    """Return the budgets of the full plan: 7, then 4 + 4 + 3 a block of at most 11, 3, 12, 3 minutes."""
    return StageBudgets(
        drain_ns=7 * MINUTE_NS,
        start_and_warm_ns=4 * MINUTE_NS,
        prime_ns=4 * MINUTE_NS,
        runs_ns=3 * MINUTE_NS,
        block_limit_ns=11 * MINUTE_NS,
        smoke_ns=3 * MINUTE_NS,
        restore_ns=12 * MINUTE_NS,
        close_ns=3 * MINUTE_NS,
    )


def plan_walls() -> Walls:
    """Return the walls of the full plan: 50, 60, 72 and 75 minutes."""
    return Walls(
        stop_admission_if_overrun_ns=50 * MINUTE_NS,
        latest_restore_start_ns=60 * MINUTE_NS,
        escalate_restore_ns=72 * MINUTE_NS,
        closed_ns=75 * MINUTE_NS,
    )
