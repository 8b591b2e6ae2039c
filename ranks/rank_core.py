"""One rank's protocol core: a pure state machine, events in and effects out.

The same code runs in the simulator and inside the Ray actors. It holds no clock, socket, tensor or
randomness. Rank 0 decides SPEC(k); both ranks act only on the verdict that the driver logged.
Must never let a verdict change which forward or collectives run. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from ranks.candidate_body import encode_candidates, encode_votes
from ranks.draw_depth import law_id_of
from ranks.entry_walk import EntryWalk
from ranks.frames import Header, Kind
from ranks.peer_inbox import PeerInbox
from ranks.rank_events import (
    ArmVoteDeadline,
    BackboneDone,
    CheckDigests,
    ComputeRows,
    DepthDrawn,
    DigestsChecked,
    DrawDepth,
    DrawRequest,
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
from ranks.records import DraftMode
from ranks.round_plan import RoundPlan, RoundVerdict, VerdictEntry
from ranks.verdict import DepthReason, spec_depth
from selector.draft_law import TOP_K, ShardCandidates
from selector.law_ids import law_number

__all__ = ["TRANSITIONS", "Phase", "RankCore"]


class Phase(StrEnum):
    """Where a rank is within an epoch."""

    FENCED = "fenced"
    READY = "ready"
    BACKBONE = "backbone"
    SELECTING = "selecting"
    AWAITING_PEER = "awaiting_peer"
    DRAWING = "drawing"
    CHECKING = "checking"
    AWAITING_VOTE = "awaiting_vote"
    FORWARD = "forward"
    AWAITING_VERDICT = "awaiting_verdict"
    VERIFYING = "verifying"


_IN_ROUND = tuple(phase for phase in Phase if phase not in (Phase.FENCED, Phase.READY))

# (phase, event) -> method. What is not listed is counted as unexpected and changes nothing.
TRANSITIONS: dict[tuple[Phase, type], str] = {
    (Phase.READY, PlanArrived): "_begin_round",
    (Phase.BACKBONE, BackboneDone): "_select_next",
    (Phase.SELECTING, RowsComputed): "_send_rows",
    (Phase.AWAITING_PEER, VoteDeadline): "_stop_waiting",
    (Phase.DRAWING, DepthDrawn): "_take_draws",
    (Phase.CHECKING, DigestsChecked): "_vote",
    (Phase.AWAITING_VOTE, VoteDeadline): "_stop_waiting",
    (Phase.FORWARD, ForwardDone): "_after_forward",
    (Phase.VERIFYING, Verified): "_ack",
    # Rank 0 may decide by its deadline while rank 1 still waits for a lost frame, so a verdict can come at any step.
    **{(phase, VerdictArrived): "_keep_verdict" for phase in _IN_ROUND if phase is not Phase.VERIFYING},
    **{(phase, EpochBegan): "_begin_epoch" for phase in Phase},
    **{(phase, PeerFrame): "_peer_frame" for phase in Phase if phase is not Phase.FENCED},
    **{(phase, PeerBroken): "_peer_broken" for phase in Phase if phase is not Phase.FENCED},
    **{(phase, PeerClosed): "_peer_closed" for phase in Phase if phase is not Phase.FENCED},
    **{(phase, EngineFailed): "_engine_failed" for phase in Phase if phase is not Phase.FENCED},
    **{
        (phase, VoteDeadline): "_note_deadline"
        for phase in _IN_ROUND
        if phase not in (Phase.AWAITING_PEER, Phase.AWAITING_VOTE)
    },
}


class RankCore:
    """The machine of one rank.

    `rank` is 0 or 1; the vocabulary half of rank r is ids [r * shard_size, (r + 1) * shard_size).
    `draft_mode` is this process's switch and `depth` its fixed depth: a plan that asks otherwise is refused,
    except for plain rounds of depth 0.
    """

    def __init__(self, rank: int, draft_mode: DraftMode, depth: int, shard_size: int) -> None:
        """Start fenced: nothing happens before an epoch begins."""
        self.rank = rank
        self.draft_mode = draft_mode
        self.depth = depth
        self.shard_size = shard_size
        self.law = law_number(law_id_of(draft_mode))
        self.kind = Kind.CANDIDATES if draft_mode is DraftMode.SAMPLED else Kind.TOP_TOKEN
        self.phase = Phase.FENCED
        self.inbox = PeerInbox(0, 0, 1 - rank, self.law, self.kind)
        self._incarnation = 0
        self._sequence = 0
        self._plan: RoundPlan | None = None
        self._walks: list[EntryWalk] = []
        self._verdict: RoundVerdict | None = None
        self._deadline_passed = False
        self._last_key = (-1, -1)

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and return the effects it causes, in order."""
        name = TRANSITIONS.get((self.phase, type(event)))
        if name is None:
            self.inbox.dropped[f"unexpected_{type(event).__name__}_in_{self.phase}"] += 1
            return []
        method: Callable[[Event], list[Effect]] = getattr(self, name)
        return method(event)

    # -- epoch ---------------------------------------------------------------------------------------------

    def _begin_epoch(self, event: EpochBegan) -> list[Effect]:
        self.phase = Phase.READY
        dropped = self.inbox.dropped
        self.inbox = PeerInbox(event.epoch, event.peer_incarnation, 1 - self.rank, self.law, self.kind, 0, dropped)
        self._incarnation = event.own_incarnation
        self._sequence = 0
        self._plan, self._walks, self._verdict = None, [], None
        self._last_key = (-1, -1)
        return []

    def _peer_closed(self, event: PeerClosed) -> list[Effect]:
        return self._fence("peer_closed", "the peer link ended")

    def _engine_failed(self, event: EngineFailed) -> list[Effect]:
        return self._fence(event.reason, event.detail)

    def _fence(self, reason: str, detail: str) -> list[Effect]:
        self.phase = Phase.FENCED
        self._plan, self._walks, self._verdict = None, [], None
        return [ReportFailure(self.inbox.epoch, reason, detail)]

    # -- drafts --------------------------------------------------------------------------------------------

    def _begin_round(self, event: PlanArrived) -> list[Effect]:
        plan = event.plan
        if plan.epoch != self.inbox.epoch or (plan.round_number, plan.attempt) <= self._last_key:
            self.inbox.dropped["stale_plan"] += 1
            return []
        plain = plan.draft_mode is DraftMode.PLAIN and plan.depth == 0
        if not plain and (plan.draft_mode is not self.draft_mode or plan.depth != self.depth):
            return self._fence(
                "switch_mismatch",
                f"the plan asks for {plan.draft_mode} at depth {plan.depth}, "
                f"this rank runs {self.draft_mode} at depth {self.depth}",
            )
        self._plan, self._verdict, self._deadline_passed = plan, None, False
        self._last_key = (plan.round_number, plan.attempt)
        self._walks = [EntryWalk(entry, plan.depth, self.law, entry.prefix_digest) for entry in plan.entries]
        self.inbox.begin_round(plan, self._walks)
        arm = ArmVoteDeadline(VoteDeadline(plan.epoch, plan.round_number, plan.attempt))
        if plan.depth == 0:
            return [arm, *self._check_digests()]
        self.phase = Phase.BACKBONE
        return [arm, RunBackbone(plan)]

    def _select_next(self, event: Event | None = None) -> list[Effect]:
        self.phase = Phase.SELECTING
        previous = tuple(walk.previous_token_id() for walk in self._walks)
        return [ComputeRows(self._next_depth(), previous, self.draft_mode is not DraftMode.SAMPLED)]

    def _send_rows(self, event: RowsComputed) -> list[Effect]:
        frames = []
        for walk, row in zip(self._walks, event.rows, strict=True):
            walk.own_rows.append(row)
            header = self._header(self.kind, walk, event.depth, usable=not walk.broken)
            frames.append((header, encode_candidates(row)))
        self.phase = Phase.AWAITING_PEER
        return [SendPeer(tuple(frames)), *self._draw_when_ready()]

    def _peer_frame(self, event: PeerFrame) -> list[Effect]:
        self.inbox.receive(event.frame, self._plan, self._walks)
        return self._progress()

    def _peer_broken(self, event: PeerBroken) -> list[Effect]:
        if event.broken.header is None:
            self.inbox.dropped[str(event.broken.fault)] += 1
        else:
            self.inbox.receive_damaged(event.broken.header, self._plan, self._walks)
        return self._progress()

    def _note_deadline(self, event: VoteDeadline) -> list[Effect]:
        if self._is_current(event):
            self._deadline_passed = True
        return []

    def _stop_waiting(self, event: VoteDeadline) -> list[Effect]:
        self._note_deadline(event)
        return self._progress()

    def _progress(self) -> list[Effect]:
        if self.phase is Phase.AWAITING_PEER:
            return self._draw_when_ready()
        if self.phase is Phase.AWAITING_VOTE:
            return self._decide_when_ready()
        return []

    def _draw_when_ready(self) -> list[Effect]:
        depth = self._next_depth()
        if not self._deadline_passed and self.inbox.missing(self._walks, depth):
            return []
        self.phase = Phase.DRAWING
        return [DrawDepth(depth, tuple(self._draw_request(walk, depth) for walk in self._walks))]

    def _draw_request(self, walk: EntryWalk, depth: int) -> DrawRequest | None:
        """Return the draw of one row; a row that has none takes its reason at once."""
        if walk.broken:
            walk.take(DepthReason.PREFIX_UNUSABLE)
            return None
        limit = TOP_K if self.draft_mode is DraftMode.SAMPLED else 1
        peer = walk.judge(depth, (1 - self.rank) * self.shard_size, self.shard_size, limit)
        if isinstance(peer, DepthReason):
            walk.take(peer)
            return None
        if self.draft_mode is DraftMode.SAMPLED:
            walk.q_frames += 1
        own = walk.own_rows[-1]
        shards: tuple[ShardCandidates, ShardCandidates] = (own, peer) if self.rank == 0 else (peer, own)
        entry = walk.entry
        return DrawRequest(*shards, entry.seed, entry.request, entry.position + depth - 1)

    def _take_draws(self, event: DepthDrawn) -> list[Effect]:
        for walk, result in zip(self._walks, event.results, strict=True):
            if len(walk.token_ids) < event.depth:
                walk.take(result)
        assert self._plan is not None
        return self._select_next() if event.depth < self._plan.depth else self._check_digests()

    # -- votes and verdict ---------------------------------------------------------------------------------

    def _check_digests(self) -> list[Effect]:
        self.phase = Phase.CHECKING
        return [CheckDigests(tuple(tuple(walk.drawn) for walk in self._walks))]

    def _vote(self, event: DigestsChecked) -> list[Effect]:
        for walk, digests in zip(self._walks, event.digests, strict=True):
            walk.recheck(digests)
        if self.rank == 0:
            self.phase = Phase.AWAITING_VOTE
            return self._decide_when_ready()
        frames = tuple(
            (self._header(Kind.VOTE, walk, 0, usable=True), encode_votes(walk.votes())) for walk in self._walks
        )
        return [SendPeer(frames), *self._forward()]

    def _decide_when_ready(self) -> list[Effect]:
        plan = self._plan
        assert plan is not None
        if not self._deadline_passed and self.inbox.votes_missing(self._walks, plan.depth):
            return []
        entries = []
        for walk in self._walks:
            usable_depth, reason = spec_depth(walk.votes(), walk.peer_votes)
            entries.append(VerdictEntry(walk.entry.slot, walk.entry.request, usable_depth, str(reason)))
        verdict = RoundVerdict(plan.epoch, plan.round_number, plan.attempt, tuple(entries))
        return [ProposeVerdict(verdict), *self._forward()]

    def _forward(self) -> list[Effect]:
        self.phase = Phase.FORWARD
        return [RunForward(tuple(walk.token_row() for walk in self._walks))]

    def _keep_verdict(self, event: VerdictArrived) -> list[Effect]:
        if not self._is_current(event.verdict) or len(event.verdict.entries) != len(self._walks):
            self.inbox.dropped["stale_verdict"] += 1
            return []
        self._verdict = event.verdict
        return self._verify() if self.phase is Phase.AWAITING_VERDICT else []

    def _after_forward(self, event: ForwardDone) -> list[Effect]:
        if self._verdict is not None:
            return self._verify()
        self.phase = Phase.AWAITING_VERDICT
        return []

    def _verify(self) -> list[Effect]:
        assert self._verdict is not None
        self.phase = Phase.VERIFYING
        pairs = zip(self._walks, self._verdict.entries, strict=True)
        return [RunVerify(tuple(walk.verify_entry(entry.usable_depth) for walk, entry in pairs))]

    def _ack(self, event: Verified) -> list[Effect]:
        self.phase = Phase.READY
        self._walks = []
        return [SendAck(event.entries, event.q_frames)]

    # -- small helpers -------------------------------------------------------------------------------------

    def _next_depth(self) -> int:
        return len(self._walks[0].token_ids) + 1

    def _is_current(self, message: VoteDeadline | RoundVerdict) -> bool:
        plan = self._plan
        key = (message.epoch, message.round_number, message.attempt)
        return plan is not None and key == (plan.epoch, plan.round_number, plan.attempt)

    def _header(self, kind: Kind, walk: EntryWalk, depth: int, usable: bool) -> Header:
        assert self._plan is not None
        self._sequence += 1
        return Header(
            kind=kind,
            source=self.rank,
            law=self.law,
            incarnation=self._incarnation,
            epoch=self._plan.epoch,
            attempt=self._plan.attempt,
            slot=walk.entry.slot,
            round_number=self._plan.round_number,
            generation=walk.entry.generation,
            depth=depth,
            usable=usable,
            request=walk.entry.request,
            sequence=self._sequence,
            binding=walk.binding(depth),
        )
