"""What the window's driver is told, and what it asks for: plain values.

Events come in with the elapsed time; effects go out and are made durable before a shell acts on them.
Must never hold a handle or a clock. Source: DESIGN section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from window.arms import BlockName

__all__ = [
    "AdmitRun",
    "ApprovalGiven",
    "BeginRestore",
    "CutRun",
    "DecisionSealed",
    "DrainOpened",
    "DrainReceiptGiven",
    "DrainRefused",
    "DriverEffect",
    "DriverEvent",
    "EscalateRestore",
    "FrozenNow",
    "GatesPassed",
    "Ignored",
    "Interrupted",
    "MarkNotAdmitted",
    "OpenDrain",
    "PrefixPrimed",
    "PrimePrefixOf",
    "RanksStopped",
    "RanksUp",
    "Refused",
    "RehearsalAdmitted",
    "RestoreObserved",
    "ReviewPassed",
    "RunEnded",
    "RunSmoke",
    "SealDecision",
    "SmokeEnded",
    "StageFailed",
    "StartRanks",
    "StopRanks",
    "Tick",
    "WarmUpDone",
    "WarmUpRanks",
]


@dataclass(frozen=True, slots=True)
class FrozenNow:
    """The registration is sealed."""


@dataclass(frozen=True, slots=True)
class ReviewPassed:
    """An independent review of the sealed registration passed."""


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """The coordinator approved the registration, its review and its gates."""


@dataclass(frozen=True, slots=True)
class GatesPassed:
    """Every admission gate is PASS at this moment."""


@dataclass(frozen=True, slots=True)
class RehearsalAdmitted:
    """A window that can never promote needs no approval."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The window may not open."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainOpened:
    """The drain begins now: this is elapsed 0."""


@dataclass(frozen=True, slots=True)
class DrainReceiptGiven:
    """The pair is idle, observed twice, and its start state is recorded."""


@dataclass(frozen=True, slots=True)
class DrainRefused:
    """No idle receipt or no restore ownership."""

    reason: str


@dataclass(frozen=True, slots=True)
class RanksUp:
    """Fresh ranks of this block run and attested what is registered."""

    block: BlockName


@dataclass(frozen=True, slots=True)
class WarmUpDone:
    """The warm-up rounds of this block showed the right arm."""

    block: BlockName


@dataclass(frozen=True, slots=True)
class PrefixPrimed:
    """One prefix is held with its exact occupied tokens."""

    block: BlockName
    source_id: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The admitted run has its disposition; `healthy` is false for a failure that no plan foresees."""

    run_id: str
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StageFailed:
    """The stage in hand cannot go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody asked the window to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class RanksStopped:
    """The ranks were told to stop; `survivors` processes outlived the wait."""

    survivors: int


@dataclass(frozen=True, slots=True)
class SmokeEnded:
    """The paired smoke has its results and its processes are gone."""


@dataclass(frozen=True, slots=True)
class RestoreObserved:
    """The start state was looked at again."""

    equal: bool
    processes_left: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionSealed:
    """Decision and report are in the bundle."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


DriverEvent = (
    FrozenNow
    | ReviewPassed
    | ApprovalGiven
    | GatesPassed
    | RehearsalAdmitted
    | Refused
    | DrainOpened
    | DrainReceiptGiven
    | DrainRefused
    | RanksUp
    | WarmUpDone
    | PrefixPrimed
    | RunEnded
    | StageFailed
    | Interrupted
    | RanksStopped
    | SmokeEnded
    | RestoreObserved
    | DecisionSealed
    | Tick
)


@dataclass(frozen=True, slots=True)
class OpenDrain:
    """Record the start state, see that the pair is idle, twice."""


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start fresh ranks for a block and attest them."""

    block: BlockName


@dataclass(frozen=True, slots=True)
class WarmUpRanks:
    """Send the registered warm-up requests."""

    block: BlockName


@dataclass(frozen=True, slots=True)
class PrimePrefixOf:
    """Prime the prefix of one source."""

    block: BlockName
    source_id: str


@dataclass(frozen=True, slots=True)
class AdmitRun:
    """Send one registered request; `granted_ns` is its registered budget, less when a wall is nearer."""

    run_id: str
    block: BlockName
    source_id: str
    granted_ns: int


@dataclass(frozen=True, slots=True)
class CutRun:
    """End the request in flight."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class MarkNotAdmitted:
    """Give these registered runs the disposition NOT_ADMITTED; they will never be sent."""

    run_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Stop whatever ranks there are; idempotent."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunSmoke:
    """Run the paired smoke in processes of its own, for at most `granted_ns`."""

    granted_ns: int


@dataclass(frozen=True, slots=True)
class BeginRestore:
    """Bring back and observe the start state; idempotent. A newer epoch outlaws older commands."""

    fencing_epoch: int


@dataclass(frozen=True, slots=True)
class EscalateRestore:
    """The start state did not come back in its time; use the coordinator's escalation."""

    fencing_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class SealDecision:
    """Decide and report from the sealed records."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event came that has no place in this state; it is written down and changes nothing."""

    state: str
    event: str


DriverEffect = (
    OpenDrain
    | StartRanks
    | WarmUpRanks
    | PrimePrefixOf
    | AdmitRun
    | CutRun
    | MarkNotAdmitted
    | StopRanks
    | RunSmoke
    | BeginRestore
    | EscalateRestore
    | SealDecision
    | Ignored
)
