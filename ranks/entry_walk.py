"""One request's walk through the drafts of one round, as one rank sees it.

Holds what was drawn, why a depth has nothing, and what the peer sent. Pure. A walk without a usable token
goes on with a fixed valid id, so that frames, rows and collectives keep their shape.
Must never put -1 into a token row. Source: DESIGN section 4 "Rank 0 decides".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ranks.binding import binding_digest, extend_prefix
from ranks.candidate_body import BodyFault, DepthVote, decode_candidates
from ranks.draw_depth import DrawnDepth
from ranks.frames import Frame
from ranks.rank_events import VerifyEntry
from ranks.round_plan import PlanEntry
from ranks.verdict import DepthReason, reason_number
from selector.draft_law import ShardCandidates
from selector.philox import Purpose

__all__ = ["FIXED_TOKEN_ID", "EntryWalk"]

FIXED_TOKEN_ID = 0


@dataclass(slots=True)
class EntryWalk:
    """Mutable state of one entry; depths are 1-based, lists grow by one a depth."""

    entry: PlanEntry
    depth: int
    law: int
    prefix_digest: int
    token_ids: list[int] = field(default_factory=list)
    drawn: list[DrawnDepth | None] = field(default_factory=list)
    reasons: list[DepthReason] = field(default_factory=list)
    own_rows: list[ShardCandidates] = field(default_factory=list)
    arrived: dict[int, Frame | DepthReason] = field(default_factory=dict)
    peer_votes: tuple[DepthVote, ...] | None = None
    vote_lost: bool = False
    q_frames: int = 0

    @property
    def broken(self) -> bool:
        """Whether an earlier depth of this walk has no usable token."""
        return any(self.reasons)

    def previous_token_id(self) -> int:
        """Return the token that the next depth is conditioned on."""
        return self.token_ids[-1] if self.token_ids else self.entry.anchor_token_id

    def binding(self, depth: int) -> int:
        """Return the binding of this rank's frame for `depth` (the next depth to be drawn) or its vote (depth 0)."""
        position = self.entry.position + max(depth, 1) - 1
        purpose = Purpose.PROPOSAL if depth else Purpose.ACCEPTANCE
        prefix = self.prefix_digest if depth else self.entry.prefix_digest
        return binding_digest(self.entry.request, prefix, position, purpose, self.law)

    def judge(self, depth: int, first_token_id: int, shard_size: int, limit: int) -> ShardCandidates | DepthReason:
        """Return the peer's candidates for `depth`, or why they cannot be used. Called once its turn has come."""
        arrived = self.arrived.get(depth, DepthReason.FRAME_MISSING)
        if isinstance(arrived, DepthReason):
            return arrived
        if not arrived.header.usable:
            return DepthReason.PEER_UNUSABLE
        if arrived.header.binding != self.binding(depth):
            return DepthReason.WRONG_BINDING
        candidates = decode_candidates(arrived.body, first_token_id, shard_size, limit)
        return DepthReason.CONTENT_REFUSED if isinstance(candidates, BodyFault) else candidates

    def take(self, result: DrawnDepth | DepthReason) -> None:
        """Record the outcome of the next depth and move the prefix on."""
        if isinstance(result, DepthReason):
            self.drawn.append(None)
            self.reasons.append(result)
            self.token_ids.append(FIXED_TOKEN_ID)
        else:
            self.drawn.append(result)
            self.reasons.append(DepthReason.NONE)
            self.token_ids.append(result.token_id)
        self.prefix_digest = extend_prefix(self.prefix_digest, self.token_ids[-1:])

    def recheck(self, digests: tuple[int, ...]) -> None:
        """Mark every depth unusable whose counts no longer give the digest taken while drawing."""
        for index, drawn in enumerate(self.drawn):
            if drawn is not None and drawn.digest != digests[index]:
                self.reasons[index] = DepthReason.DIGEST_CHANGED

    def votes(self) -> tuple[DepthVote, ...]:
        """Return this rank's word on every depth."""
        return tuple(
            DepthVote(not reason, drawn.digest if drawn is not None else 0, reason_number(reason))
            for reason, drawn in zip(self.reasons, self.drawn, strict=True)
        )

    def token_row(self) -> tuple[int, ...]:
        """Return the anchor and the drafted ids: depth + 1 valid ids."""
        return (self.entry.anchor_token_id, *self.token_ids)

    def verify_entry(self, usable_depth: int) -> VerifyEntry:
        """Return what acceptance reads for this request."""
        counts = tuple(drawn.draft_counts if drawn is not None else None for drawn in self.drawn)
        return VerifyEntry(usable_depth, tuple(self.token_ids), counts, tuple(self.drawn), self.q_frames)
