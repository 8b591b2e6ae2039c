"""A rank at work: one loop over driver link, peer link and deadlines around the pure core.

Must never act on a frame without the core, never wait without a bound, and never outlive the driver.
Source: DESIGN section 4.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from torch._C._distributed_c10d import TCPStore

from ranks.collective import CollectiveError
from ranks.epoch_collective import EpochCollective
from ranks.frames import Frame
from ranks.kv_slots import SlotSnapshot
from ranks.link import ControlLink, FramedSocket, FrameFilter, LinkClosed
from ranks.peer_handshake import HandshakeRefused, PeerIdentity, open_peer_link
from ranks.rank_core import Phase, RankCore
from ranks.rank_events import (
    ArmVoteDeadline,
    Effect,
    EngineFailed,
    EpochBegan,
    Event,
    PeerBroken,
    PeerClosed,
    PeerFrame,
    PlanArrived,
    ReportFailure,
    SendAck,
    VerdictArrived,
    VoteDeadline,
)
from ranks.rank_settings import RankSettings
from ranks.records import Attestation
from ranks.round_executor import RoundExecutor
from ranks.round_plan import (
    AdmitSlot,
    BeginEpoch,
    CommandDone,
    ControlMessage,
    EpochReady,
    Hello,
    PrimePrefix,
    RankFailure,
    RoundPlan,
    RoundVerdict,
    Stop,
)
from ranks.round_timer import Term
from ranks.shard_engine import ShardEngine
from selector.acceptance import ProofOfFailure

__all__ = ["RankHost"]

_IDLE_POLL_MS = 1000.0


class RankHost:
    """Serves one driver until told to stop; a failure fences it until the next epoch."""

    def __init__(
        self,
        settings: RankSettings,
        attestation: Attestation,
        engine: ShardEngine,
        collective: EpochCollective,
        control: ControlLink,
        link_filter: FrameFilter | None,
        clock_ns: Callable[[], int],
    ) -> None:
        """Take over a loaded engine and a connected control link."""
        self.settings = settings
        self.core = RankCore(settings.rank, settings.draft_mode, settings.depth, engine.shard_size)
        self.stopping = False
        self._attestation = attestation
        self._engine = engine
        self._collective = collective
        self._control = control
        self._link_filter = link_filter
        self._clock_ns = clock_ns
        self._executor = RoundExecutor(settings.rank, settings.draft_mode, engine, collective, control, clock_ns)
        self._deadline: tuple[int, VoteDeadline] | None = None
        self._primes: dict[int, SlotSnapshot] = {}
        self._epoch = 0

    def serve(self) -> None:
        """Say hello and work until a Stop message. Raises LinkClosed when the driver is gone."""
        self._control.send(Hello(self._attestation))
        while not self.stopping:
            self._step()
        self._leave_epoch()

    # -- waiting -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Wait for one thing and deliver it; the wait is charged to the term that the core waits in."""
        peer = self._executor.peer
        sockets = [self._control.framed, *([peer] if peer else [])]
        term = _WAITING_TERMS.get(self.core.phase)
        if term is None:
            ready = select.select(sockets, [], [], self._wait_ms() / 1000)[0]
        else:
            with self._executor.timer.term(term):
                ready = select.select(sockets, [], [], self._wait_ms() / 1000)[0]
        if self._control.framed in ready:
            self._read_control()
        # A new epoch may just have replaced the peer link; the old one has nothing more to say.
        if peer is not None and peer in ready and peer is self._executor.peer:
            self._read_peer(peer)
        if not ready:
            self._fire_deadline()

    def _wait_ms(self) -> float:
        if self._deadline is None:
            return _IDLE_POLL_MS
        return min(_IDLE_POLL_MS, max(0.0, (self._deadline[0] - self._clock_ns()) / 1e6))

    def _fire_deadline(self) -> None:
        # Only reached when nothing was readable: what had already arrived counts as in time.
        if self._deadline is not None and self._clock_ns() >= self._deadline[0]:
            deadline, self._deadline = self._deadline[1], None
            self._feed(deadline)

    def _read_control(self) -> None:
        messages = self._control.receive()
        epochs = [index for index, message in enumerate(messages) if isinstance(message, BeginEpoch)]
        # What was said before the newest epoch is void, and must not be waited for.
        for message in messages[epochs[-1] if epochs else 0 :]:
            self._obey(message)

    def _read_peer(self, peer: FramedSocket) -> None:
        try:
            items = peer.receive()
        except LinkClosed:
            self._drop_peer()
            self._feed(PeerClosed())
            return
        for item in items:
            self._feed(PeerFrame(item) if isinstance(item, Frame) else PeerBroken(item))

    # -- driver messages -----------------------------------------------------------------------------------

    def _obey(self, message: ControlMessage) -> None:
        if isinstance(message, Stop):
            self.stopping = True
        elif isinstance(message, BeginEpoch):
            self._begin_epoch(message)
        elif isinstance(message, RoundVerdict):
            self._feed(VerdictArrived(message))
        elif isinstance(message, RoundPlan):
            self._executor.begin(message)
            self._feed(PlanArrived(message))
        elif isinstance(message, PrimePrefix | AdmitSlot):
            self._run_command(message)

    def _run_command(self, command: PrimePrefix | AdmitSlot) -> None:
        if command.epoch != self._epoch or self.core.phase is not Phase.READY:
            self.core.inbox.dropped["stale_command"] += 1
            return
        try:
            slot = self._prime(command) if isinstance(command, PrimePrefix) else self._admit(command)
            held_tokens, digest = self._engine.slot_length(slot) + 1, self._engine.state_digest(slot)
        except (CollectiveError, RuntimeError, ValueError, KeyError) as error:
            self._feed(_failure_of(error))
            return
        subject = command.prefix if isinstance(command, PrimePrefix) else command.request
        self._control.send(CommandDone(command.epoch, self.settings.rank, subject, held_tokens, digest))

    def _prime(self, command: PrimePrefix) -> int:
        scratch = self.settings.slot_count
        self._engine.clear(scratch)
        self._prefill(scratch, command.token_ids[:-1])
        self._primes[command.prefix] = self._engine.snapshot(scratch)
        return scratch

    def _admit(self, command: AdmitSlot) -> int:
        if command.held_prefix is not None:
            self._engine.restore(command.slot, self._primes[command.held_prefix])
        else:
            self._engine.clear(command.slot)
        held = self._engine.slot_length(command.slot)
        self._prefill(command.slot, command.token_ids[held:-1])
        return command.slot

    def _prefill(self, slot: int, token_ids: tuple[int, ...]) -> None:
        if token_ids:
            self._engine.prefill(slot, token_ids)

    # -- epochs --------------------------------------------------------------------------------------------

    def _begin_epoch(self, message: BeginEpoch) -> None:
        self._leave_epoch()
        self._epoch = message.epoch
        settings = self.settings
        ladder = settings.ladder
        store = None
        try:
            store = TCPStore(settings.driver_host, message.store_port, None, False, wait_for_workers=False)
            own_host = self._control.framed.socket.getsockname()[0]
            identity = PeerIdentity.of(settings, message.epoch, message.incarnations[settings.rank])
            framed = open_peer_link(
                identity,
                store,
                message.store_prefix,
                own_host,
                ladder.group_timeout_ms,
                self._link_filter,
                self._has_news,
            )
            self._executor.peer = framed
            self._collective.rebind(store, message.store_prefix, own_host, ladder.group_timeout_ms, self._has_news)
        except HandshakeRefused as error:
            self._report(message.epoch, "handshake_refused", str(error))
            return
        except (CollectiveError, LinkClosed, RuntimeError, OSError) as error:
            self._report(message.epoch, "epoch_start_failed", str(error).splitlines()[0])
            return
        own, peer = message.incarnations[settings.rank], message.incarnations[1 - settings.rank]
        self._feed(EpochBegan(message.epoch, own, peer))
        self._control.send(EpochReady(message.epoch, settings.rank))

    def _has_news(self) -> bool:
        """Return whether the driver said something: while an epoch begins that can only mean that it is over."""
        return self._control.framed.readable(0)

    def _leave_epoch(self) -> None:
        self._drop_peer()
        self._collective.release()
        self._primes.clear()
        self._deadline = None

    def _drop_peer(self) -> None:
        if self._executor.peer is not None:
            self._executor.peer.close()
            self._executor.peer = None

    def _report(self, epoch: int, reason: str, detail: str) -> None:
        self._leave_epoch()
        self._control.send(RankFailure(epoch, self.settings.rank, reason, detail))

    # -- core ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """Deliver an event and carry out everything that follows from it."""
        events = [event]
        while events:
            current = events.pop(0)
            if isinstance(current, PeerFrame | PeerBroken):
                with self._executor.timer.term("validation"):
                    effects = self.core.handle(current)
            else:
                effects = self.core.handle(current)
            for effect in effects:
                answer = self._carry_out(effect)
                if answer is not None:
                    events.append(answer)
                if isinstance(answer, EngineFailed | PeerClosed):
                    break

    def _carry_out(self, effect: Effect) -> Event | None:
        if isinstance(effect, ArmVoteDeadline):
            self._deadline = (self._clock_ns() + self.settings.ladder.vote_timeout_ms * 1_000_000, effect.deadline)
            return None
        if isinstance(effect, SendAck):
            self._deadline = None
        if isinstance(effect, ReportFailure):
            self._report(effect.epoch, effect.reason, effect.detail)
            return None
        try:
            return self._executor.run(effect)
        except LinkClosed:
            return PeerClosed()
        except (CollectiveError, ProofOfFailure, RuntimeError, ValueError, ArithmeticError, LookupError) as error:
            return _failure_of(error)


# A wait belongs to the term whose answer is awaited; before and after a round nobody is charged.
_WAITING_TERMS: dict[Phase, Term] = {
    Phase.AWAITING_PEER: "exchange",
    Phase.AWAITING_VOTE: "agreement",
    Phase.AWAITING_VERDICT: "agreement",
}


def _failure_of(error: Exception) -> EngineFailed:
    if isinstance(error, ProofOfFailure):
        return EngineFailed(error.reason, str(error))
    if isinstance(error, CollectiveError):
        return EngineFailed("collective_failed", str(error))
    return EngineFailed("engine_error", f"{type(error).__name__}: {error}")
