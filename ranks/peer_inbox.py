"""Frames from the peer: which belong to this round, which are late, which are lost.

Pure. A frame that belongs to an older epoch, round, attempt or generation is counted and dropped; one that
is ahead of us waits for its round. The link keeps order, so a later frame proves an earlier one lost.
Must never let a frame's own fields decide what it is used for. Source: DESIGN section 4 "A late frame".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ranks.candidate_body import BodyFault, decode_votes
from ranks.entry_walk import EntryWalk
from ranks.frames import Frame, Header, Kind
from ranks.round_plan import RoundPlan
from ranks.verdict import DepthReason

__all__ = ["MAX_WAITING_FRAMES", "PeerInbox"]

MAX_WAITING_FRAMES = 128


@dataclass(slots=True)
class PeerInbox:
    """What this rank knows of the peer's frames in one epoch."""

    epoch: int
    peer_incarnation: int
    peer_rank: int
    law: int
    candidate_kind: Kind
    last_sequence: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    _waiting: list[Frame] = field(default_factory=list)
    _order_seen: tuple[int, int] = (0, -1)

    def begin_round(self, plan: RoundPlan, walks: list[EntryWalk]) -> None:
        """Start a round and deliver the frames that came before its plan."""
        self._order_seen = (0, -1)
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._place(frame, plan, walks)

    def receive(self, frame: Frame, plan: RoundPlan | None, walks: list[EntryWalk]) -> None:
        """Take one intact frame: place it, keep it for its round, or count why it was dropped."""
        header = frame.header
        if header.source != self.peer_rank or header.incarnation != self.peer_incarnation:
            self.dropped["foreign_incarnation"] += 1
        elif header.epoch != self.epoch:
            self.dropped["stale_epoch" if header.epoch < self.epoch else "future_epoch"] += 1
        elif header.sequence <= self.last_sequence:
            self.dropped["repeated_sequence"] += 1
        else:
            self.last_sequence = header.sequence
            self._place(frame, plan, walks)

    def receive_damaged(self, header: Header, plan: RoundPlan | None, walks: list[EntryWalk]) -> None:
        """Take the trusted header of a frame whose body is damaged: its place in the round is a frame fault."""
        walk = self._walk_of(header, plan, walks)
        if walk is None:
            self.dropped["damaged_outside_round"] += 1
        elif header.kind is Kind.VOTE:
            walk.vote_lost = True
        else:
            walk.arrived.setdefault(header.depth, DepthReason.FRAME_DAMAGED)

    def missing(self, walks: list[EntryWalk], depth: int) -> bool:
        """Return whether some frame of `depth` is still to be waited for."""
        return any(
            not walk.broken and depth not in walk.arrived and not self._is_past(depth, index)
            for index, walk in enumerate(walks)
        )

    def votes_missing(self, walks: list[EntryWalk], depth: int) -> bool:
        """Return whether some vote is still to be waited for."""
        return any(
            walk.peer_votes is None and not walk.vote_lost and not self._is_past(depth + 1, index)
            for index, walk in enumerate(walks)
        )

    def _is_past(self, depth: int, index: int) -> bool:
        return self._order_seen > (depth, index)

    def _place(self, frame: Frame, plan: RoundPlan | None, walks: list[EntryWalk]) -> None:
        header = frame.header
        current = (plan.round_number, plan.attempt) if plan else (-1, -1)
        if (header.round_number, header.attempt) > current or (plan is None and header.round_number >= 0):
            self._keep(frame)
            return
        walk = self._walk_of(header, plan, walks)
        if walk is None:
            return
        index = walks.index(walk)
        if header.kind is Kind.VOTE:
            self._order_seen = max(self._order_seen, (walk.depth + 1, index))
            self._take_vote(frame, walk)
            return
        self._order_seen = max(self._order_seen, (header.depth, index))
        walk.arrived.setdefault(header.depth, self._candidate_frame(frame))

    def _candidate_frame(self, frame: Frame) -> Frame | DepthReason:
        if frame.header.kind is not self.candidate_kind:
            return DepthReason.WRONG_KIND
        return frame if frame.header.law == self.law else DepthReason.WRONG_LAW

    def _take_vote(self, frame: Frame, walk: EntryWalk) -> None:
        votes = decode_votes(frame.body, walk.depth)
        bound = frame.header.binding == walk.binding(0) and frame.header.law == self.law
        if isinstance(votes, BodyFault) or not bound:
            walk.vote_lost = True
        else:
            walk.peer_votes = votes

    def _keep(self, frame: Frame) -> None:
        if len(self._waiting) >= MAX_WAITING_FRAMES:
            self.dropped["waiting_overflow"] += 1
        else:
            self._waiting.append(frame)

    def _walk_of(self, header: Header, plan: RoundPlan | None, walks: list[EntryWalk]) -> EntryWalk | None:
        """Return the walk that a header of this round names, or count why there is none."""
        if plan is None or (header.round_number, header.attempt) != (plan.round_number, plan.attempt):
            self.dropped["stale_round"] += 1
            return None
        if not walks:
            self.dropped["late_reply"] += 1
            return None
        for walk in walks:
            if header.slot == walk.entry.slot:
                if (header.generation, header.request) == (walk.entry.generation, walk.entry.request):
                    return walk
                self.dropped["stale_generation"] += 1
                return None
        self.dropped["unknown_slot"] += 1
        return None
