"""Where a window stands and everything its driver knows.

Must never hold a clock or a handle. Source: DESIGN section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from window.records import StageSpan

__all__ = ["BEFORE_DRAIN", "IN_BLOCK", "STOPPABLE", "DriverState", "Phase", "first_state"]


class Phase(StrEnum):
    """Where a window stands."""

    DRAFT = "DRAFT"
    FROZEN = "FROZEN"
    REVIEWED = "REVIEWED"
    APPROVED = "APPROVED"
    ADMITTED = "ADMITTED"
    DRAINING = "DRAINING"
    STARTING = "STARTING"
    WARMING = "WARMING"
    PRIMING = "PRIMING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SMOKE = "SMOKE"
    RESTORING = "RESTORING"
    RESTORED = "RESTORED"
    RESTORE_ESCALATED = "RESTORE_ESCALATED"
    CLOSED = "CLOSED"
    NO_GO = "NO_GO"


BEFORE_DRAIN = (Phase.DRAFT, Phase.FROZEN, Phase.REVIEWED, Phase.APPROVED, Phase.ADMITTED)
IN_BLOCK = (Phase.STARTING, Phase.WARMING, Phase.PRIMING, Phase.RUNNING, Phase.STOPPING)
STOPPABLE = (Phase.DRAINING, Phase.STARTING, Phase.WARMING, Phase.PRIMING, Phase.RUNNING, Phase.STOPPING, Phase.SMOKE)


@dataclass(frozen=True, slots=True)
class DriverState:
    """Everything the driver knows. Times are elapsed ns; elapsed 0 is the first effect of the drain.

    `ranks_up` stays true from the order to start until a stop without survivors was reported. `stop_reason` is
    set once and ends the experiment; `marked` says that the runs left over have their disposition. `restored`
    is None until the restore ended.
    """

    phase: Phase
    stage_started_ns: int
    block_started_ns: int
    block_index: int
    prime_index: int
    run_index: int
    in_flight: str
    ranks_up: bool
    overrun: bool
    stop_reason: str
    marked: bool
    fencing_epoch: int
    restored: bool | None
    spans: tuple[StageSpan, ...]


def first_state() -> DriverState:
    """Return the state of a window that is only a draft."""
    return DriverState(Phase.DRAFT, 0, 0, 0, 0, 0, "", False, False, "", False, 1, None, ())
