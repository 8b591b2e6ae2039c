"""From the driver's effects to the records of one request: releases, rounds, times, the end.

Times are stamped by the caller, so that this stays without a clock. Must never drop a round, slow or not.
Source: DESIGN section 4; plan, "Collect per-request".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ranks.active_request import ActiveRequest
from ranks.driver_events import Released, RequestEnded
from ranks.records import RequestResult, RequestStatus, RoundRecord

__all__ = ["ReleaseEvent", "RequestTracker"]


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """Tokens reached the client: CLOCK_MONOTONIC ns of the driver, and the round that gave them.

    `round_token_ids` is what the round emitted before budget and stop cut it; a client gets `token_ids`.
    """

    request_id: str
    token_ids: tuple[int, ...]
    round_token_ids: tuple[int, ...]
    released_ns: int
    round: RoundRecord


@dataclass(slots=True)
class RequestTracker:
    """What is known of one request while it is served; `deadline_ns` is set at admission."""

    request: ActiveRequest
    admitted_ns: int = 0
    deadline_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int = 0
    round_started_ns: int = 0
    open_round_age_ns: int | None = None
    status: RequestStatus | None = None
    failure: str = ""
    epochs_survived: int = 0
    token_ids: list[int] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the request has its disposition."""
        return self.status is not None

    def admit(self, now_ns: int) -> None:
        """Stamp the first admission; a later one, after a lost epoch, does not move the clock."""
        if self.admitted_ns == 0:
            self.admitted_ns = now_ns
            budget = self.request.spec.time_budget_ns
            self.deadline_ns = now_ns + budget if budget is not None else None

    def take_release(self, released: Released, now_ns: int) -> ReleaseEvent:
        """Record one committed round and what it delivered."""
        plan, entry, verdict = released.plan, released.entry, released.verdict
        place = next(index for index, each in enumerate(plan.entries) if each.slot == verdict.slot)
        record = RoundRecord(
            request_id=self.request.spec.request_id,
            round_number=plan.round_number,
            epoch=plan.epoch,
            attempt=plan.attempt,
            batch_size=len(plan.entries),
            position=len(self.request.token_ids) - len(released.token_ids),
            drafted=plan.depth,
            usable_depth=verdict.usable_depth,
            accepted=entry.accepted,
            emitted=len(released.token_ids),
            reason=verdict.reason,
            q_frames=sum(ack.q_frames[place] for ack in released.acks.values()),
            started_ns=self.round_started_ns,
            released_ns=now_ns,
            rank0=released.acks[0].times,
            rank1=released.acks[1].times,
        )
        self.rounds.append(record)
        self.token_ids.extend(released.token_ids)
        if released.token_ids and self.first_token_ns is None:
            self.first_token_ns = now_ns
        self.round_started_ns = 0
        return ReleaseEvent(record.request_id, released.token_ids, entry.token_ids, now_ns, record)

    def lose_epoch(self) -> None:
        """Note that an epoch ended under this request; the stall stays in its time."""
        if not self.ended:
            self.epochs_survived += 1

    def end(self, ended: RequestEnded, now_ns: int) -> None:
        """Record the disposition, once."""
        if self.ended:
            return
        self.status, self.failure = ended.status, ended.failure
        self.finished_ns = now_ns
        if ended.in_flight and self.round_started_ns:
            self.open_round_age_ns = now_ns - self.round_started_ns

    def result(self) -> RequestResult:
        """Return the finished record. Raises RuntimeError while the request is still served."""
        if self.status is None:
            raise RuntimeError(f"request {self.request.spec.request_id} has not ended")
        return RequestResult(
            request_id=self.request.spec.request_id,
            status=self.status,
            failure=self.failure,
            token_ids=tuple(self.token_ids),
            admitted_ns=self.admitted_ns,
            first_token_ns=self.first_token_ns,
            finished_ns=self.finished_ns,
            open_round_age_ns=self.open_round_age_ns,
            rounds=tuple(self.rounds),
            epochs_survived=self.epochs_survived,
        )
