"""The driver's protocol core: epochs, slots, one command at a time, commits. Pure.

The driver alone numbers epochs and rounds, logs the verdict before it is relayed, and releases tokens only
after both ranks acknowledged the same tokens and the same state. A failure ends the epoch; the round is then
redone with the same draws in the next one. Must never release on one rank's word. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from ranks.active_request import ActiveRequest
from ranks.commit_log import CommitConflict, CommitLog, CommittedToken
from ranks.driver_events import (
    AckArrived,
    ArmCommitDeadline,
    CommandFinished,
    CommitDeadline,
    DriverEffect,
    DriverEvent,
    EpochLost,
    EpochReadyOn,
    FailureReported,
    PrimeWanted,
    RankGone,
    Released,
    RequestEnded,
    RequestSubmitted,
    RequestTimeUp,
    SendBoth,
    VerdictProposed,
)
from ranks.records import RequestStatus
from ranks.round_plan import AckEntry, AdmitSlot, PlanEntry, PrimePrefix, RoundAck, RoundPlan, RoundVerdict
from ranks.verdict import DepthReason

__all__ = ["DRIVER_TRANSITIONS", "DriverCore", "DriverPhase", "DriverPolicy"]


class DriverPhase(StrEnum):
    """What the driver waits for."""

    DOWN = "down"
    STARTING = "starting"
    IDLE = "idle"
    COMMAND = "command"
    ROUND = "round"


@dataclass(frozen=True, slots=True)
class DriverPolicy:
    """Bounds that decide: slots, failures of one round, and disagreements in a span of rounds."""

    slot_count: int
    max_attempts: int = 3
    disagreement_limit: int = 16
    disagreement_span: int = 64


_UP = (DriverPhase.STARTING, DriverPhase.IDLE, DriverPhase.COMMAND, DriverPhase.ROUND)
DRIVER_TRANSITIONS: dict[tuple[DriverPhase, type], str] = {
    (DriverPhase.STARTING, EpochReadyOn): "_epoch_ready",
    (DriverPhase.COMMAND, CommandFinished): "_command_finished",
    (DriverPhase.ROUND, VerdictProposed): "_relay_verdict",
    (DriverPhase.ROUND, AckArrived): "_take_ack",
    **{
        (phase, CommitDeadline): "_commit_deadline"
        for phase in (DriverPhase.STARTING, DriverPhase.COMMAND, DriverPhase.ROUND)
    },
    **{(phase, RequestSubmitted): "_submit" for phase in DriverPhase},
    **{(phase, RequestTimeUp): "_time_up" for phase in DriverPhase},
    **{(phase, PrimeWanted): "_want_prime" for phase in DriverPhase},
    **{(phase, FailureReported): "_failure" for phase in _UP},
    **{(phase, RankGone): "_rank_gone" for phase in _UP},
}


@dataclass(slots=True)
class _RoundInFlight:
    plan: RoundPlan
    requests: list[ActiveRequest]
    verdict: RoundVerdict | None = None
    acks: dict[int, RoundAck] = field(default_factory=dict)


class DriverCore:
    """The machine of the driver; `begin_epoch` is called by the shell when both ranks are connected."""

    def __init__(self, policy: DriverPolicy) -> None:
        """Start down, with an empty log."""
        self.policy = policy
        self.log = CommitLog()
        self.phase = DriverPhase.DOWN
        self.epoch = 0
        self.round_number = 0
        self.waiting: deque[ActiveRequest] = deque()
        self.active: list[ActiveRequest] = []
        self.primes: deque[PrimeWanted] = deque()
        self._ready: set[int] = set()
        self._done: dict[int, CommandFinished] = {}
        self._command: PrimePrefix | AdmitSlot | None = None
        self._command_number = 0
        self._round: _RoundInFlight | None = None
        self._generations = [0] * policy.slot_count
        self._disagreements: deque[bool] = deque(maxlen=policy.disagreement_span)

    @property
    def busy(self) -> bool:
        """Whether any request or prime is still to be served, or a command or round is still open."""
        return bool(self.waiting or self.active or self.primes or self._command or self._round)

    def handle(self, event: DriverEvent) -> list[DriverEffect]:
        """Take one event and return its effects in order; what the table does not list changes nothing."""
        name = DRIVER_TRANSITIONS.get((self.phase, type(event)))
        if name is None:
            return []
        method: Callable[[DriverEvent], list[DriverEffect]] = getattr(self, name)
        return method(event)

    def begin_epoch(self) -> int:
        """Open the next epoch and return its number; every slot has to be admitted again."""
        self.epoch += 1
        self.phase = DriverPhase.STARTING
        self._ready = set()
        self._round, self._command, self._done = None, None, {}
        self._disagreements.clear()
        for request in reversed(self.active):
            request.slot = None
            self.waiting.appendleft(request)
        self.active = []
        for request in self.waiting:
            request.held_prefix = None
        return self.epoch

    # -- epochs --------------------------------------------------------------------------------------------

    def _epoch_ready(self, event: EpochReadyOn) -> list[DriverEffect]:
        if event.epoch != self.epoch:
            return []
        self._ready.add(event.rank)
        if len(self._ready) < 2:
            return []
        self.phase = DriverPhase.IDLE
        return self._next()

    def _failure(self, event: FailureReported) -> list[DriverEffect]:
        return self._lose(event.reason, event.detail, ()) if event.epoch == self.epoch else []

    def _rank_gone(self, event: RankGone) -> list[DriverEffect]:
        return self._lose("rank_gone", f"rank {event.rank} closed its control link", (event.rank,))

    def _commit_deadline(self, event: CommitDeadline) -> list[DriverEffect]:
        if event.key != self._deadline_key():
            return []
        # Nobody can tell from here which rank hangs in whose collective, so both are replaced.
        return self._lose("commit_deadline", "no verdict or ack in time", (0, 1))

    def _lose(self, reason: str, detail: str, restart: tuple[int, ...]) -> list[DriverEffect]:
        effects: list[DriverEffect] = []
        flight = self._round
        self.phase = DriverPhase.DOWN
        command = self._command
        self._round, self._command, self._done = None, None, {}
        if flight is not None:
            effects += self._count_failed_attempt(flight, reason)
        if isinstance(command, PrimePrefix):
            self.primes.appendleft(PrimeWanted(command.prefix, command.token_ids))
        return [*effects, EpochLost(self.epoch, reason, detail, restart)]

    def _count_failed_attempt(self, flight: _RoundInFlight, reason: str) -> list[DriverEffect]:
        effects: list[DriverEffect] = []
        for request in flight.requests:
            request.attempt += 1
            if request.attempt >= self.policy.max_attempts and request in self.active:
                failure = f"{reason} in {request.attempt} attempts of a round"
                effects += self._end(request, RequestStatus.FAILED, failure)
        return effects

    # -- requests ------------------------------------------------------------------------------------------

    def _submit(self, event: RequestSubmitted) -> list[DriverEffect]:
        self.waiting.append(event.request)
        return self._next() if self.phase is DriverPhase.IDLE else []

    def _want_prime(self, event: PrimeWanted) -> list[DriverEffect]:
        self.primes.append(event)
        return self._next() if self.phase is DriverPhase.IDLE else []

    def _time_up(self, event: RequestTimeUp) -> list[DriverEffect]:
        for request in (*self.active, *self.waiting):
            if request.request == event.request:
                return self._end(request, event.status, "")
        return []

    def _end(self, request: ActiveRequest, status: RequestStatus, failure: str) -> list[DriverEffect]:
        """Take a request out; a round in flight that names it commits for the others only."""
        in_flight = self._round is not None and request in self._round.requests
        if request in self.active:
            self.active.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        request.ended = True
        return [RequestEnded(request, status, failure, in_flight)]

    # -- commands ------------------------------------------------------------------------------------------

    def _next(self) -> list[DriverEffect]:
        """Start the next command: primes first, then admissions, then a round for everything active."""
        if self.primes:
            wanted = self.primes.popleft()
            return self._start_command(PrimePrefix(self.epoch, wanted.prefix, wanted.token_ids))
        slot = self._free_slot()
        if self.waiting and slot is not None:
            request = self.waiting.popleft()
            self._generations[slot] += 1
            request.slot, request.generation = slot, self._generations[slot]
            self.active.append(request)
            command = AdmitSlot(
                self.epoch, slot, request.generation, request.request, tuple(request.token_ids), request.held_prefix
            )
            return self._start_command(command)
        if self.active:
            return self._start_round()
        self.phase = DriverPhase.IDLE
        return []

    def _free_slot(self) -> int | None:
        taken = {request.slot for request in self.active}
        return next((slot for slot in range(self.policy.slot_count) if slot not in taken), None)

    def _start_command(self, command: PrimePrefix | AdmitSlot) -> list[DriverEffect]:
        self.phase = DriverPhase.COMMAND
        self._command, self._done = command, {}
        self._command_number += 1
        return [SendBoth(command), ArmCommitDeadline(self._deadline_key(), len(command.token_ids))]

    def _command_finished(self, event: CommandFinished) -> list[DriverEffect]:
        command = self._command
        subject = command.prefix if isinstance(command, PrimePrefix) else command.request if command else None
        if event.epoch != self.epoch or event.subject != subject:
            return []
        self._done[event.rank] = event
        if len(self._done) < 2:
            return []
        if self._done[0].state_digest != self._done[1].state_digest:
            return self._lose("state_digest", "ranks hold different state after a prefill", (0, 1))
        self._command = None
        return [*self._next()]

    # -- rounds --------------------------------------------------------------------------------------------

    def _start_round(self) -> list[DriverEffect]:
        mode, depth = self.active[0].draft_mode, self.active[0].depth
        requests = [request for request in self.active if (request.draft_mode, request.depth) == (mode, depth)]
        self.round_number += 1
        entries = tuple(self._entry(request) for request in requests)
        attempt = max(request.attempt for request in requests)
        plan = RoundPlan(self.epoch, self.round_number, attempt, mode, depth, entries)
        self.phase = DriverPhase.ROUND
        self._round = _RoundInFlight(plan, requests)
        return [SendBoth(plan), ArmCommitDeadline(self._deadline_key(), 0)]

    def _entry(self, request: ActiveRequest) -> PlanEntry:
        assert request.slot is not None
        temperature: object = request.temperature
        return PlanEntry(
            slot=request.slot,
            generation=request.generation,
            request=request.request,
            seed=request.seed,
            position=len(request.token_ids),
            anchor_token_id=request.token_ids[-1],
            prefix_digest=request.prefix_digest,
            temperature=1 if temperature else 0,
        )

    def _deadline_key(self) -> tuple[int, str]:
        if self.phase is DriverPhase.STARTING:
            return (self.epoch, "start")
        name = f"round {self.round_number}" if self._round is not None else f"command {self._command_number}"
        return (self.epoch, name)

    def _relay_verdict(self, event: VerdictProposed) -> list[DriverEffect]:
        flight, verdict = self._round, event.verdict
        if flight is None or flight.verdict is not None or not _names(verdict, flight.plan):
            return []
        flight.verdict = verdict
        self.log.record_verdict(verdict)
        self._disagreements.append(any(entry.reason == DepthReason.RANKS_DISAGREE for entry in verdict.entries))
        return [SendBoth(verdict)]

    def _take_ack(self, event: AckArrived) -> list[DriverEffect]:
        flight, ack = self._round, event.ack
        if flight is None or not _names(ack, flight.plan):
            return []
        flight.acks[ack.rank] = ack
        if len(flight.acks) < 2:
            return []
        if flight.verdict is None:
            return self._lose("ack_before_verdict", "a rank acted on a verdict that was not logged", (0, 1))
        if flight.acks[0].entries != flight.acks[1].entries:
            return self._lose("state_digest", "ranks acknowledged different tokens or state", (0, 1))
        return self._commit(flight, flight.verdict)

    def _commit(self, flight: _RoundInFlight, verdict: RoundVerdict) -> list[DriverEffect]:
        effects: list[DriverEffect] = []
        self._round = None
        for index, request in enumerate(flight.requests):
            if request.ended:
                continue
            entry, k = flight.acks[0].entries[index], verdict.entries[index].usable_depth
            try:
                token_ids = self._release(request, entry, flight.plan.round_number, k)
            except CommitConflict as conflict:
                return [*effects, *self._lose("commit_conflict", str(conflict), (0, 1))]
            effects.append(Released(request, flight.plan, verdict.entries[index], entry, token_ids, flight.acks))
            effects += self._finish_if_done(request, entry, token_ids)
        if sum(self._disagreements) > self.policy.disagreement_limit:
            return [*effects, *self._lose("disagreements", "ranks disagree too often", (0, 1))]
        return [*effects, *self._next()]

    def _release(self, request: ActiveRequest, entry: AckEntry, round_number: int, k: int) -> tuple[int, ...]:
        token_ids = request.deliverable(entry.token_ids)
        first = len(request.token_ids)
        for offset, token_id in enumerate(token_ids):
            digests = (entry.state_digest, entry.state_digest)
            self.log.release(CommittedToken(request.request, first + offset, token_id, round_number, k, digests))
        request.extend(token_ids)
        request.attempt = 0
        return token_ids

    def _finish_if_done(
        self, request: ActiveRequest, entry: AckEntry, token_ids: tuple[int, ...]
    ) -> list[DriverEffect]:
        if token_ids and token_ids[-1] in request.stop_token_ids:
            return self._end(request, RequestStatus.EOS, "")
        if request.delivered_count >= request.max_new_tokens:
            return self._end(request, RequestStatus.BUDGET, "")
        if entry.invalid_row is not None:
            sentence = f"target row {entry.invalid_row} of round {self.round_number} is not finite"
            return self._end(request, RequestStatus.FAILED, sentence)
        return []


def _names(message: RoundVerdict | RoundAck, plan: RoundPlan) -> bool:
    key = (message.epoch, message.round_number, message.attempt)
    slots = tuple(entry.slot for entry in message.entries)
    return key == (plan.epoch, plan.round_number, plan.attempt) and slots == tuple(e.slot for e in plan.entries)
