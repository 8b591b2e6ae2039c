"""Events and effects of the driver's protocol core. Plain values; must never hold a clock or a handle.

Source: DESIGN section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranks.active_request import ActiveRequest
from ranks.records import RequestStatus
from ranks.round_plan import AckEntry, AdmitSlot, PrimePrefix, RoundAck, RoundPlan, RoundVerdict, VerdictEntry

__all__ = [
    "AckArrived",
    "ArmCommitDeadline",
    "CommandFinished",
    "CommitDeadline",
    "DriverEffect",
    "DriverEvent",
    "EpochLost",
    "EpochReadyOn",
    "FailureReported",
    "PrimeWanted",
    "RankGone",
    "Released",
    "RequestEnded",
    "RequestSubmitted",
    "RequestTimeUp",
    "SendBoth",
    "VerdictProposed",
]

DeadlineKey = tuple[int, str]


@dataclass(frozen=True, slots=True)
class EpochReadyOn:
    """A rank is ready in an epoch."""

    epoch: int
    rank: int


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request wants a slot."""

    request: ActiveRequest


@dataclass(frozen=True, slots=True)
class PrimeWanted:
    """A prefix shall be run and held on both ranks under its digest."""

    prefix: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommandFinished:
    """A rank finished a prime (`subject` is the prefix) or an admission (the request)."""

    epoch: int
    rank: int
    subject: int
    state_digest: int


@dataclass(frozen=True, slots=True)
class VerdictProposed:
    """Rank 0 decided."""

    verdict: RoundVerdict


@dataclass(frozen=True, slots=True)
class AckArrived:
    """A rank finished the round."""

    ack: RoundAck


@dataclass(frozen=True, slots=True)
class FailureReported:
    """A rank ended its part of the epoch."""

    epoch: int
    rank: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RankGone:
    """A control link ended."""

    rank: int


@dataclass(frozen=True, slots=True)
class CommitDeadline:
    """The time for a command or round is over."""

    key: DeadlineKey


@dataclass(frozen=True, slots=True)
class RequestTimeUp:
    """A request's time budget is over (DEADLINE) or its client left (CANCELED)."""

    request: int
    status: RequestStatus


DriverEvent = (
    EpochReadyOn
    | RequestSubmitted
    | PrimeWanted
    | CommandFinished
    | VerdictProposed
    | AckArrived
    | FailureReported
    | RankGone
    | CommitDeadline
    | RequestTimeUp
)


@dataclass(frozen=True, slots=True)
class SendBoth:
    """Send the same message to both ranks, rank 0 first."""

    message: RoundPlan | RoundVerdict | PrimePrefix | AdmitSlot


@dataclass(frozen=True, slots=True)
class ArmCommitDeadline:
    """Deliver CommitDeadline(key) after the commit timeout, lengthened by the prefill of `prefill_tokens`."""

    key: DeadlineKey
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Released:
    """A round was committed for one request; `token_ids` is what its client gets."""

    request: ActiveRequest
    plan: RoundPlan
    verdict: VerdictEntry
    entry: AckEntry
    token_ids: tuple[int, ...]
    acks: dict[int, RoundAck]


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request left; `in_flight` says that an open round named it and will not be released to it."""

    request: ActiveRequest
    status: RequestStatus
    failure: str
    in_flight: bool


@dataclass(frozen=True, slots=True)
class EpochLost:
    """The epoch is over; the shell restarts the named ranks and begins the next epoch."""

    epoch: int
    reason: str
    detail: str
    restart: tuple[int, ...]


DriverEffect = SendBoth | ArmCommitDeadline | Released | RequestEnded | EpochLost
