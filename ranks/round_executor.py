"""Effects of a rank's core, carried out on the engine, the peer link and the driver link.

One method an effect; each answers the event that it leads to, or None. Holds no protocol decision: which frame
to believe and what to run next is the core's. Source: DESIGN section 2, "thin shells".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ranks.collective import Collective
from ranks.draw_depth import draw_depth, law_id_of
from ranks.link import ControlLink, FramedSocket
from ranks.rank_events import (
    BackboneDone,
    CheckDigests,
    ComputeRows,
    DepthDrawn,
    DigestsChecked,
    DrawDepth,
    Event,
    ForwardDone,
    ProposeVerdict,
    RowsComputed,
    RunBackbone,
    RunForward,
    RunVerify,
    SendAck,
    SendPeer,
    Verified,
)
from ranks.records import DraftMode
from ranks.round_plan import AckEntry, RoundAck, RoundPlan
from ranks.round_timer import RoundTimer
from ranks.round_verification import RoundVerification
from ranks.shard_engine import ShardEngine
from ranks.verdict import DepthReason
from selector.draft_law import ShardCandidates, shard_candidates_rows
from selector.law_digest import counts_digest

__all__ = ["RoundExecutor"]


class RoundExecutor:
    """Carries out one round's effects; the host sets `peer` anew in every epoch."""

    def __init__(
        self,
        rank: int,
        draft_mode: DraftMode,
        engine: ShardEngine,
        collective: Collective,
        control: ControlLink,
        clock_ns: Callable[[], int],
    ) -> None:
        """Start without a peer and without a round."""
        self.rank = rank
        self.peer: FramedSocket | None = None
        self.timer = RoundTimer(clock_ns)
        self._draft_mode = draft_mode
        self._engine = engine
        self._collective = collective
        self._control = control
        self._plan: RoundPlan | None = None
        self._base: NDArray[np.float32] | None = None
        self._logits: NDArray[np.float32] | None = None
        self._methods: dict[type, Callable[[Any], Event | None]] = {
            RunBackbone: self._run_backbone,
            ComputeRows: self._compute_rows,
            SendPeer: self._send_peer,
            DrawDepth: self._draw_depth,
            CheckDigests: self._check_digests,
            RunForward: self._run_forward,
            ProposeVerdict: self._propose,
            RunVerify: self._run_verify,
            SendAck: self._send_ack,
        }

    def begin(self, plan: RoundPlan) -> None:
        """Start a round's clock."""
        self._plan = plan
        self.timer.begin()

    def handles(self, effect: object) -> bool:
        """Return whether this executor carries out that effect."""
        return type(effect) in self._methods

    def run(self, effect: object) -> Event | None:
        """Carry out one effect. Raises CollectiveError, LinkClosed, ProofOfFailure, and what the engine raises."""
        return self._methods[type(effect)](effect)

    @property
    def _current(self) -> RoundPlan:
        if self._plan is None:
            raise RuntimeError("an effect of a round came before its plan")
        return self._plan

    def _run_backbone(self, effect: RunBackbone) -> Event:
        entries = effect.plan.entries
        with self.timer.term("draft"):
            self._base = self._engine.draft_base(
                [entry.slot for entry in entries], [entry.anchor_token_id for entry in entries], effect.plan.depth
            )
        return BackboneDone()

    def _compute_rows(self, effect: ComputeRows) -> Event:
        if self._base is None:
            raise RuntimeError("rows were asked for before the backbone ran")
        with self.timer.term("selector"):
            logits = self._engine.draft_logits(self._base[:, effect.depth - 1], list(effect.previous_token_ids))
            rows = tuple(shard_candidates_rows(logits, self._engine.first_token_id))
            if effect.greedy:
                rows = tuple(ShardCandidates(row.token_ids[:1], row.logits[:1], row.poisoned) for row in rows)
        return RowsComputed(effect.depth, rows)

    def _send_peer(self, effect: SendPeer) -> None:
        if self.peer is None:
            raise RuntimeError("frames were to be sent before the peer link was up")
        with self.timer.term("exchange"):
            self.peer.send(list(effect.frames))

    def _draw_depth(self, effect: DrawDepth) -> Event:
        with self.timer.term("selector"):
            results = tuple(
                DepthReason.PREFIX_UNUSABLE
                if wanted is None
                else draw_depth(
                    self._draft_mode, wanted.shard0, wanted.shard1, wanted.seed, wanted.request, wanted.position
                )
                for wanted in effect.requests
            )
        return DepthDrawn(effect.depth, results)

    def _check_digests(self, effect: CheckDigests) -> Event:
        with self.timer.term("validation"):
            law_id = law_id_of(self._draft_mode)
            digests = tuple(
                tuple(
                    0 if drawn is None else counts_digest(drawn.draft_counts, drawn.token_id, law_id) for drawn in row
                )
                for row in effect.drawn
            )
        return DigestsChecked(digests)

    def _run_forward(self, effect: RunForward) -> Event:
        slots = [entry.slot for entry in self._current.entries]
        with self.timer.term("target"):
            self._logits = self._engine.verify_forward(slots, np.array(effect.token_rows, dtype=np.int64))
        return ForwardDone()

    def _propose(self, effect: ProposeVerdict) -> None:
        with self.timer.term("agreement"):
            self._control.send(effect.verdict)

    def _run_verify(self, effect: RunVerify) -> Event:
        plan = self._current
        if self._logits is None:
            raise RuntimeError("verification was asked for before the forward ran")
        with self.timer.term("agreement"):
            verification = RoundVerification(plan, effect.entries, self._logits, self._engine.first_token_id)
            statistics = self._exchange(verification.statistics())
            outcomes = verification.outcomes(self._exchange(verification.masses(statistics)))
            acks = []
            for place, outcome in zip(plan.entries, outcomes, strict=True):
                if outcome.invalid_row is None:
                    self._engine.commit(place.slot, outcome.accepted + 1)
                acks.append(
                    AckEntry(
                        slot=place.slot,
                        request=place.request,
                        accepted=outcome.accepted,
                        token_ids=outcome.token_ids,
                        state_digest=self._engine.state_digest(place.slot),
                        invalid_row=outcome.invalid_row,
                    )
                )
        return Verified(tuple(acks), tuple(entry.q_frames for entry in effect.entries))

    def _exchange(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        gathered: NDArray[np.float64] = self._collective.all_gather(torch.from_numpy(part)).numpy()
        return gathered

    def _send_ack(self, effect: SendAck) -> None:
        plan = self._current
        self._control.send(
            RoundAck(
                epoch=plan.epoch,
                round_number=plan.round_number,
                attempt=plan.attempt,
                rank=self.rank,
                entries=effect.entries,
                q_frames=effect.q_frames,
                times=self.timer.times(),
            )
        )
