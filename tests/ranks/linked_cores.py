"""Both ranks' cores and the driver's, linked in memory, on a toy model of eight tokens; the seed picks every delivery.

Real cores, real frames on the wire, real laws. Logits are a hash of the prefix, so both ranks can be checked
against plain decoding without any engine.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranks.active_request import ActiveRequest
from ranks.draw_depth import draw_depth, law_id_of
from ranks.driver_core import DriverCore, DriverPhase, DriverPolicy
from ranks.driver_events import (
    AckArrived,
    ArmCommitDeadline,
    CommandFinished,
    CommitDeadline,
    DriverEvent,
    EpochLost,
    EpochReadyOn,
    FailureReported,
    RankGone,
    Released,
    RequestEnded,
    RequestSubmitted,
    SendBoth,
    VerdictProposed,
)
from ranks.frames import Frame, FrameDecoder, Header, encode_frame
from ranks.rank_core import RankCore
from ranks.rank_events import (
    ArmVoteDeadline,
    BackboneDone,
    CheckDigests,
    ComputeRows,
    DepthDrawn,
    DigestsChecked,
    DrawDepth,
    Effect,
    EngineFailed,
    EpochBegan,
    Event,
    ForwardDone,
    PeerBroken,
    PeerClosed,
    PeerFrame,
    PlanArrived,
    ProposeVerdict,
    ReportFailure,
    RowsComputed,
    RunBackbone,
    RunForward,
    RunVerify,
    SendAck,
    SendPeer,
    VerdictArrived,
    Verified,
    VoteDeadline,
)
from ranks.records import DraftMode, RankTimes, RequestSpec, RequestStatus
from ranks.round_plan import AckEntry, AdmitSlot, RoundAck, RoundPlan, RoundVerdict
from ranks.round_verification import RoundVerification
from ranks.verdict import DepthReason
from selector.acceptance import ProofOfFailure
from selector.draft_law import ShardCandidates, shard_candidates_rows
from selector.law_digest import counts_digest
from tests.ranks.toy_model import DRAFTER, HALF, TARGET, VOCABULARY, Logits

NO_TIMES = RankTimes(0, 0, 0, 0, 0, 0, 0)

WireFilter = Callable[[int, Header, bytes], bytes | None]


@dataclass
class RankSide:
    """One rank: its core, what it holds for each slot, and the round that it works on."""

    core: RankCore
    sequences: dict[int, list[int]] = field(default_factory=dict)
    plan: RoundPlan | None = None
    token_rows: tuple[tuple[int, ...], ...] = ()
    verify: RunVerify | None = None
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    deadline: VoteDeadline | None = None
    alive: bool = True


class LinkedCores:
    """Two ranks and a driver. `deliver_one` hands over one message of a queue that the seed picks."""

    def __init__(
        self,
        seed: int = 0,
        draft_mode: DraftMode = DraftMode.SAMPLED,
        depth: int = 3,
        drafters: tuple[Logits, Logits] = (DRAFTER, DRAFTER),
        wire: WireFilter | None = None,
        slot_count: int = 4,
        tamper: Callable[[int, DepthDrawn], DepthDrawn] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.draft_mode, self.depth = draft_mode, depth
        self.drafters, self.wire, self.tamper = drafters, wire, tamper
        self.driver = DriverCore(DriverPolicy(slot_count))
        self.sides = [self._fresh(0), self._fresh(1)]
        self.queues: dict[str, deque[Any]] = {name: deque() for name in ("d0", "d1", "0d", "1d", "01", "10")}
        self.incarnations = [1, 2]
        self.deliveries = 0
        self.released: dict[str, list[int]] = {}
        self.ended: dict[str, tuple[RequestStatus, str]] = {}
        self.rounds: list[Released] = []
        self.losses: list[EpochLost] = []
        self.commit_deadline: CommitDeadline | None = None
        self._begin_epoch()

    def _fresh(self, rank: int) -> RankSide:
        return RankSide(RankCore(rank, self.draft_mode, self.depth, HALF))

    # -- running -------------------------------------------------------------------------------------------

    def run(
        self,
        specs: list[RequestSpec],
        mode: DraftMode | None = None,
        limit: int = 200_000,
        kill: tuple[int, int] | None = None,
    ) -> None:
        """Serve requests to their end; `kill` is (rank, delivery). Raises AssertionError at the limit of deliveries."""
        chosen = mode or self.draft_mode
        depth = 0 if chosen is DraftMode.PLAIN else self.depth
        for spec in specs:
            self.released[spec.request_id] = []
            self._drive(RequestSubmitted(ActiveRequest.from_spec(spec, chosen, depth)))
        for _ in range(limit):
            if len(self.ended) == len(self.released) and not self.driver.busy:
                return
            if kill is not None and self.deliveries == kill[1]:
                self.kill(kill[0])
            self.deliver_one()
        raise AssertionError(f"not finished after {limit} deliveries")

    def deliver_one(self) -> None:
        """Hand over one waiting message; when nothing waits, time passes."""
        self.deliveries += 1
        waiting = [name for name, queue in self.queues.items() if queue]
        if not waiting:
            self._pass_time()
            return
        name = self.random.choice(waiting)
        item = self.queues[name].popleft()
        if name in ("d0", "d1"):
            self._to_rank(int(name[1]), item)
        elif name in ("0d", "1d"):
            self._drive(item)
        else:
            self._bytes_to(int(name[1]), item)

    def _pass_time(self) -> None:
        """Votes are due first, commits only when no vote is: the ladder."""
        for rank, side in enumerate(self.sides):
            if side.alive and side.deadline is not None:
                deadline, side.deadline = side.deadline, None
                self._feed(rank, deadline)
                return
        if self.commit_deadline is not None:
            deadline_event, self.commit_deadline = self.commit_deadline, None
            self._drive(deadline_event)
            return
        raise AssertionError("everybody waits and no deadline is armed")

    def kill(self, rank: int) -> None:
        """End a rank's process: its links close, what it had sent still arrives before the end."""
        self.sides[rank].alive = False
        self.queues[f"d{rank}"].clear()
        self.queues[f"{rank}d"].append(RankGone(rank))
        self.queues[f"{rank}{1 - rank}"].append(PeerClosed())

    # -- driver --------------------------------------------------------------------------------------------

    def _drive(self, event: DriverEvent) -> None:
        for effect in self.driver.handle(event):
            if isinstance(effect, SendBoth):
                for rank in (0, 1):
                    self.queues[f"d{rank}"].append(effect.message)
            elif isinstance(effect, ArmCommitDeadline):
                self.commit_deadline = CommitDeadline(effect.key)
            elif isinstance(effect, Released):
                self.released[effect.request.spec.request_id].extend(effect.token_ids)
                self.rounds.append(effect)
            elif isinstance(effect, RequestEnded):
                self.ended[effect.request.spec.request_id] = (effect.status, effect.failure)
            else:
                self.losses.append(effect)
                for rank in effect.restart:
                    self.sides[rank].alive = False
                self._begin_epoch()

    def _begin_epoch(self) -> None:
        for queue in self.queues.values():
            queue.clear()
        for rank in (0, 1):
            if not self.sides[rank].alive:
                self.sides[rank] = self._fresh(rank)
                self.incarnations[rank] += 2
        epoch = self.driver.begin_epoch()
        for rank, side in enumerate(self.sides):
            side.decoder, side.sequences, side.deadline, side.verify = FrameDecoder(), {}, None, None
            self._feed(rank, EpochBegan(epoch, self.incarnations[rank], self.incarnations[1 - rank]))
        for rank in (0, 1):
            self.queues[f"{rank}d"].append(EpochReadyOn(epoch, rank))

    # -- ranks ---------------------------------------------------------------------------------------------

    def _to_rank(self, rank: int, message: RoundPlan | RoundVerdict | AdmitSlot) -> None:
        side = self.sides[rank]
        if not side.alive:
            return
        if isinstance(message, AdmitSlot):
            side.sequences[message.slot] = list(message.token_ids)
            digest = self._state_digest(side, message.slot)
            self.queues[f"{rank}d"].append(CommandFinished(message.epoch, rank, message.request, digest))
        elif isinstance(message, RoundPlan):
            side.plan = message
            self._feed(rank, PlanArrived(message))
        else:
            assert message in self.driver.log.verdicts, "a rank saw a verdict that was not logged"
            self._feed(rank, VerdictArrived(message))

    def _bytes_to(self, rank: int, item: bytes | PeerClosed) -> None:
        side = self.sides[rank]
        if not side.alive:
            return
        if isinstance(item, PeerClosed):
            self._feed(rank, item)
            return
        for part in side.decoder.feed(item):
            self._feed(rank, PeerFrame(part) if isinstance(part, Frame) else PeerBroken(part))

    def _feed(self, rank: int, event: Event) -> None:
        events = deque([event])
        while events:
            for effect in self.sides[rank].core.handle(events.popleft()):
                answer = self._carry_out(rank, effect)
                if answer is not None:
                    events.append(answer)
                if not self.sides[rank].alive:
                    return

    def _carry_out(self, rank: int, effect: Effect) -> Event | None:
        side = self.sides[rank]
        if isinstance(effect, ArmVoteDeadline):
            side.deadline = effect.deadline
        elif isinstance(effect, RunBackbone):
            return BackboneDone()
        elif isinstance(effect, ComputeRows):
            return RowsComputed(effect.depth, self._rows(rank, effect))
        elif isinstance(effect, SendPeer):
            self._send(rank, effect)
        elif isinstance(effect, DrawDepth):
            return self._draw(rank, effect)
        elif isinstance(effect, CheckDigests):
            law_id = law_id_of(self.draft_mode)
            return DigestsChecked(
                tuple(
                    tuple(0 if d is None else counts_digest(d.draft_counts, d.token_id, law_id) for d in r)
                    for r in effect.drawn
                )
            )
        elif isinstance(effect, RunForward):
            assert all(0 <= token < VOCABULARY for row in effect.token_rows for token in row), "no valid id in a row"
            side.token_rows = effect.token_rows
            return ForwardDone()
        elif isinstance(effect, ProposeVerdict):
            self.queues[f"{rank}d"].append(VerdictProposed(effect.verdict))
        elif isinstance(effect, RunVerify):
            side.verify = effect
            self._verify_when_both()
        elif isinstance(effect, SendAck):
            side.deadline = None
            assert side.plan is not None
            plan = side.plan
            ack = RoundAck(plan.epoch, plan.round_number, plan.attempt, rank, effect.entries, effect.q_frames, NO_TIMES)
            self.queues[f"{rank}d"].append(AckArrived(ack))
        elif isinstance(effect, ReportFailure):
            self.queues[f"{rank}d"].append(FailureReported(effect.epoch, rank, effect.reason, effect.detail))
        return None

    def _prefixes(self, side: RankSide) -> list[tuple[int, ...]]:
        assert side.plan is not None
        return [tuple(side.sequences[entry.slot]) for entry in side.plan.entries]

    def _rows(self, rank: int, effect: ComputeRows) -> tuple[ShardCandidates, ...]:
        side = self.sides[rank]
        walks = side.core._walks
        rows = []
        for prefix, walk in zip(self._prefixes(side), walks, strict=True):
            logits = self.drafters[rank]((*prefix, *walk.token_ids))
            half = np.ascontiguousarray(logits[None, rank * HALF : (rank + 1) * HALF])
            row = shard_candidates_rows(half, rank * HALF)[0]
            rows.append(ShardCandidates(row.token_ids[:1], row.logits[:1], row.poisoned) if effect.greedy else row)
        return tuple(rows)

    def _send(self, rank: int, effect: SendPeer) -> None:
        for header, body in effect.frames:
            data: bytes | None = encode_frame(header, body)
            if self.wire is not None and data is not None:
                data = self.wire(rank, header, data)
            if data is not None:
                self.queues[f"{rank}{1 - rank}"].append(data)

    def _draw(self, rank: int, effect: DrawDepth) -> DepthDrawn:
        results = tuple(
            DepthReason.PREFIX_UNUSABLE
            if wanted is None
            else draw_depth(self.draft_mode, wanted.shard0, wanted.shard1, wanted.seed, wanted.request, wanted.position)
            for wanted in effect.requests
        )
        drawn = DepthDrawn(effect.depth, results)
        return self.tamper(rank, drawn) if self.tamper is not None else drawn

    # -- verification, in lock step as the collectives force it --------------------------------------------

    def _verify_when_both(self) -> None:
        if any(side.verify is None or not side.alive for side in self.sides):
            return
        parts = []
        for rank, side in enumerate(self.sides):
            assert side.plan is not None
            assert side.verify is not None
            try:
                parts.append(RoundVerification(side.plan, side.verify.entries, self._logits(rank), rank * HALF))
            except ProofOfFailure as proof:
                for each in (0, 1):
                    self.sides[each].verify = None
                    self.queues[f"{each}{each ^ 1}"].clear()
                self._feed(rank, EngineFailed(proof.reason, str(proof)))
                return
        statistics = np.stack([part.statistics() for part in parts])
        masses = np.stack([part.masses(statistics) for part in parts])
        for rank, part in enumerate(parts):
            self._finish_verify(rank, part.outcomes(masses))

    def _finish_verify(self, rank: int, outcomes: list[Any]) -> None:
        side = self.sides[rank]
        assert side.plan is not None
        assert side.verify is not None
        entries = []
        q_frames = tuple(wanted.q_frames for wanted in side.verify.entries)
        for place, outcome in zip(side.plan.entries, outcomes, strict=True):
            side.sequences[place.slot].extend(outcome.token_ids)
            digest = self._state_digest(side, place.slot)
            entries.append(
                AckEntry(
                    place.slot,
                    place.request,
                    outcome.accepted,
                    outcome.token_ids,
                    digest,
                    outcome.invalid_row,
                )
            )
        side.verify = None
        self._feed(rank, Verified(tuple(entries), q_frames))

    def _logits(self, rank: int) -> NDArray[np.float32]:
        side = self.sides[rank]
        blocks = []
        for prefix, row in zip(self._prefixes(side), side.token_rows, strict=True):
            rows = [TARGET((*prefix, *row[1 : count + 1])) for count in range(len(row))]
            blocks.append(np.stack(rows)[:, rank * HALF : (rank + 1) * HALF])
        return np.stack(blocks)

    @staticmethod
    def _state_digest(side: RankSide, slot: int) -> int:
        packed = repr(side.sequences[slot]).encode()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def is_idle(bed: LinkedCores) -> bool:
    """Return whether the driver waits for requests only."""
    return bed.driver.phase is DriverPhase.IDLE
