"""A bed: two ranks on Ray, one driver loop, requests in and committed tokens out.

The shell around the driver's core: starts, restarts and stops ranks, keeps time, and turns effects into messages
and records. Must never release a token that the core did not commit, and never leave a rank behind.
Source: DESIGN section 4.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ranks.active_request import ActiveRequest
from ranks.bed_records import ReleaseEvent, RequestTracker
from ranks.driver_core import DriverCore, DriverPhase, DriverPolicy
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
from ranks.errors import BAD_DATA, UNAVAILABLE, UserError
from ranks.link import LinkClosed
from ranks.rank_pair import RankPair
from ranks.ray_session import RaySession
from ranks.records import (
    Attestation,
    DraftMode,
    PrimeReceipt,
    RequestResult,
    RequestSpec,
    RequestStatus,
    StopReceipt,
)
from ranks.round_plan import (
    AdmitSlot,
    CommandDone,
    ControlMessage,
    EpochReady,
    RankFailure,
    RoundAck,
    RoundPlan,
    RoundVerdict,
)
from ranks.timeout_ladder import CPU_LADDER, TimeoutLadder

__all__ = ["Bed", "BedError", "start_bed"]

_PREFILL_ALLOWANCE_NS = 2_000_000
_MAX_EPOCHS_WITHOUT_COMMIT = 5
_FATAL_REASONS = ("handshake_refused", "switch_mismatch")
_POLL_MS = 500.0


class BedError(UserError):
    """The bed cannot go on: ranks do not come up again, or refuse each other."""

    def __init__(self, sentence: str) -> None:
        """Keep the sentence; a command ends with UNAVAILABLE."""
        super().__init__(sentence, UNAVAILABLE)


class Bed:
    """Two ranks in one arm; `prime`, `run` and `stop` are called from one thread."""

    def __init__(self, pair: RankPair, session: RaySession, owns_session: bool, policy: DriverPolicy) -> None:
        """Take over a connected pair and open the first epoch."""
        self.core = DriverCore(policy)
        self.epoch_losses: list[EpochLost] = []
        self._pair = pair
        self._session = session
        self._owns_session = owns_session
        self._trackers: dict[int, RequestTracker] = {}
        self._primed: set[int] = set()
        self._done: dict[int, list[CommandDone]] = {}
        self._deadlines: list[tuple[int, CommitDeadline]] = []
        self._on_release: Callable[[ReleaseEvent], None] | None = None
        self._epochs_without_commit = 0
        self._watchdog_ns: int | None = None
        self._open_epoch()

    # -- what users call -----------------------------------------------------------------------------------

    def attest(self) -> tuple[Attestation, Attestation]:
        """Return what each rank's process says of itself."""
        return self._pair.attestations

    def prime(self, spec: RequestSpec) -> PrimeReceipt:
        """Run a request's prompt through the target on both ranks and hold it for `run`.

        Every later request with the same prompt starts from it, until an epoch is lost. Raises BedError.
        """
        request = ActiveRequest.from_spec(spec, self._pair.draft_mode, self._pair.depth)
        prefix = request.prefix_digest
        started = time.monotonic_ns()
        self._done.pop(prefix, None)
        self._deliver(PrimeWanted(prefix, spec.prompt_token_ids))
        self._pump(lambda: len(self._done.get(prefix, [])) == 2)
        done = {each.rank: each for each in self._done.pop(prefix)}
        held = {each.held_tokens for each in done.values()}
        if len(held) != 1:
            raise BedError(f"ranks hold different numbers of tokens after a prime: {sorted(held)}")
        self._primed.add(prefix)
        return PrimeReceipt(
            request_id=spec.request_id,
            occupied_tokens=held.pop(),
            elapsed_ns=time.monotonic_ns() - started,
            prefix_digest=f"{prefix:016x}",
            state_digests=(f"{done[0].state_digest:016x}", f"{done[1].state_digest:016x}"),
        )

    def run(
        self,
        specs: Sequence[RequestSpec],
        on_release: Callable[[ReleaseEvent], None] | None = None,
        draft_mode: DraftMode | None = None,
    ) -> list[RequestResult]:
        """Serve requests to their end, up to four at a time, and return their results in the order given.

        `draft_mode` PLAIN decodes one token a round without drafts; None means the bed's own mode.
        Raises BedError when the ranks cannot be brought back, UserError for a request that cannot fit.
        """
        plain = draft_mode is DraftMode.PLAIN
        mode, depth = (DraftMode.PLAIN, 0) if plain else (self._pair.draft_mode, self._pair.depth)
        self._on_release = on_release
        trackers = []
        for spec in specs:
            self._check_room(spec, depth)
            request = ActiveRequest.from_spec(spec, mode, depth)
            request.held_prefix = request.prefix_digest if request.prefix_digest in self._primed else None
            self.core.log.forget_request(request.request)
            tracker = RequestTracker(request)
            self._trackers[request.request] = tracker
            trackers.append(tracker)
            self._deliver(RequestSubmitted(request))
        self._pump(lambda: all(tracker.ended for tracker in trackers) and not self.core.busy)
        for tracker in trackers:
            del self._trackers[tracker.request.request]
        return [tracker.result() for tracker in trackers]

    def _check_room(self, spec: RequestSpec, depth: int) -> None:
        """Refuse what would reach the last position on the way: both ranks would have to stop in mid-round."""
        wanted = len(spec.prompt_token_ids) + spec.max_new_tokens + depth
        if not spec.prompt_token_ids or wanted > self._pair.max_position:
            raise UserError(
                f"request {spec.request_id} has {len(spec.prompt_token_ids)} prompt tokens, {spec.max_new_tokens} new "
                f"ones and depth {depth}: needs at least one prompt token and at most {self._pair.max_position} in all",
                BAD_DATA,
            )

    def process_identities(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (pid, start ticks) of both ranks."""
        first, second = self._pair.attestations
        return (first.pid, first.process_start_ticks), (second.pid, second.process_start_ticks)

    def stop(self) -> StopReceipt:
        """Stop both ranks and wait until their processes are gone; a second stop is harmless."""
        receipt = self._pair.stop()
        if self._owns_session:
            self._session.stop()
        return receipt

    def __enter__(self) -> Self:
        """Return the bed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, whatever happened."""
        self.stop()

    # -- loop ----------------------------------------------------------------------------------------------

    def _pump(self, finished: Callable[[], bool]) -> None:
        while not finished():
            ready = select.select(self._pair.sockets(), [], [], self._wait_ms() / 1000)[0]
            for rank in self._pair.ranks_of(ready):
                self._read(rank)
            self._fire_deadlines()

    def _wait_ms(self) -> float:
        now = time.monotonic_ns()
        due = [deadline for deadline, _ in self._deadlines]
        due += [tracker.deadline_ns for tracker in self._trackers.values() if tracker.deadline_ns and not tracker.ended]
        return min([_POLL_MS, *(max(0.0, (moment - now) / 1e6) for moment in due)])

    def _read(self, rank: int) -> None:
        link = self._pair.links[rank]
        try:
            messages = link.receive()
        except LinkClosed:
            self._deliver(RankGone(rank))
            return
        for message in messages:
            # An epoch that ended meanwhile replaced the link; what the old one said is void.
            if self._pair.links[rank] is link:
                self._obey(rank, message)

    def _obey(self, rank: int, message: ControlMessage) -> None:
        if isinstance(message, RoundAck):
            self._deliver(AckArrived(message))
        elif isinstance(message, RoundVerdict) and rank == 0:
            self._deliver(VerdictProposed(message))
        elif isinstance(message, CommandDone):
            self._done.setdefault(message.subject, []).append(message)
            self._deliver(CommandFinished(message.epoch, rank, message.subject, message.state_digest))
        elif isinstance(message, EpochReady):
            self._deliver(EpochReadyOn(message.epoch, rank))
        elif isinstance(message, RankFailure):
            if message.reason in _FATAL_REASONS:
                raise BedError(f"{message.reason}: {message.detail}")
            self._deliver(FailureReported(message.epoch, rank, message.reason, message.detail))

    def _fire_deadlines(self) -> None:
        now = time.monotonic_ns()
        if self._watchdog_ns is not None and now >= self._watchdog_ns and self.core.busy:
            raise BedError(f"watchdog: no deadline ended a command within {self._pair.ladder.watchdog_timeout_ms} ms")
        due = [event for moment, event in self._deadlines if moment <= now]
        self._deadlines = [(moment, event) for moment, event in self._deadlines if moment > now]
        for event in due:
            self._deliver(event)
        for tracker in list(self._trackers.values()):
            if tracker.deadline_ns and not tracker.ended and now >= tracker.deadline_ns:
                self._deliver(RequestTimeUp(tracker.request.request, RequestStatus.DEADLINE))

    def _deliver(self, event: DriverEvent) -> None:
        for effect in self.core.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: DriverEffect) -> None:
        now = time.monotonic_ns()
        if isinstance(effect, SendBoth):
            self._send_both(effect, now)
        elif isinstance(effect, ArmCommitDeadline):
            allowance = effect.prefill_tokens * _PREFILL_ALLOWANCE_NS
            moment = now + self._pair.ladder.commit_timeout_ms * 1_000_000 + allowance
            self._deadlines = [(moment, CommitDeadline(effect.key))]
            self._watchdog_ns = moment + self._pair.ladder.watchdog_timeout_ms * 1_000_000
        elif isinstance(effect, Released):
            self._epochs_without_commit = 0
            event = self._trackers[effect.request.request].take_release(effect, now)
            if self._on_release is not None:
                self._on_release(event)
        elif isinstance(effect, RequestEnded):
            tracker = self._trackers.get(effect.request.request)
            if tracker is not None:
                tracker.end(effect, now)
        else:
            self._recover(effect)

    def _send_both(self, effect: SendBoth, now: int) -> None:
        message = effect.message
        if isinstance(message, AdmitSlot) and message.request in self._trackers:
            self._trackers[message.request].admit(now)
        if isinstance(message, RoundPlan):
            for entry in message.entries:
                self._trackers[entry.request].round_started_ns = now
        for rank in (0, 1):
            try:
                self._pair.links[rank].send(message)
            except LinkClosed:
                # The read side reports the end once, in order; a plan that reached one rank only never commits.
                continue

    # -- epochs --------------------------------------------------------------------------------------------

    def _recover(self, lost: EpochLost) -> None:
        self.epoch_losses.append(lost)
        self._primed.clear()
        self._done.clear()
        self._deadlines = []
        for tracker in self._trackers.values():
            tracker.lose_epoch()
        self._epochs_without_commit += 1
        if self._epochs_without_commit > _MAX_EPOCHS_WITHOUT_COMMIT:
            raise BedError(
                f"{self._epochs_without_commit} epochs ended without a committed round, the last by {lost.reason}: "
                f"{lost.detail}"
            )
        self._pair.replace(lost.restart)
        self._session.watch_children()
        self._open_epoch()

    def _open_epoch(self) -> None:
        epoch = self.core.begin_epoch()
        for rank, message in enumerate(self._pair.epoch_messages(epoch)):
            try:
                self._pair.links[rank].send(message)
            except LinkClosed:
                continue
        moment = time.monotonic_ns() + 2 * self._pair.ladder.group_timeout_ms * 1_000_000
        self._deadlines = [(moment, CommitDeadline((epoch, "start")))]
        self._pump(lambda: self.core.phase is not DriverPhase.STARTING or self.core.epoch != epoch)


def start_bed(
    profile: str,
    weights_path: Path,
    draft_mode: DraftMode,
    depth: int,
    session: RaySession | None = None,
    slot_count: int = 4,
    ladder: TimeoutLadder = CPU_LADDER,
    control_port: int = 0,
    link_faults: tuple[str, str] = ("", ""),
    backend: Literal["socket", "gloo", "nccl"] | None = None,
) -> Bed:
    """Start two ranks in one arm and return the bed when they agreed on the first epoch.

    draft_mode GREEDY is arm A, SAMPLED arm B; depth 1..8. Without a session the bed starts and stops a Ray of its own.
    `link_faults` is (MODULE:OBJECT, argument) of an outgoing frame filter; `backend` replaces the profile's own
    collective. Raises UserError, BedError.
    """
    owned = session if session is not None else RaySession()
    try:
        pair = RankPair(
            owned, profile, weights_path, draft_mode, depth, slot_count, ladder, control_port, link_faults, backend
        )
        # Ray starts its agents after it answers, so they are known only now.
        owned.watch_children()
        try:
            return Bed(pair, owned, session is None, DriverPolicy(slot_count=slot_count))
        except BaseException:
            pair.stop()
            raise
    except BaseException as error:
        if session is None:
            owned.stop()
        if isinstance(error, LinkClosed):
            raise UserError(f"the ranks did not come up: {error}", UNAVAILABLE) from error
        raise
