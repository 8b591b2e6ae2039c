"""SPEC(k): how many leading depths of a round both ranks may use, and why not more.

Pure. A frame fault (missing, late, damaged, wrongly bound) says nothing about any token, so it costs the
whole round its drafts (k = 0). A content fault may depend on the drafted prefix, so it only truncates at
its depth: sending the whole round to target-only there would bias the emitted law. Must never look at a
drafted token's probability. Source: DESIGN section 3 "Validity", section 4 "Rank 0 decides".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ranks.candidate_body import DepthVote

__all__ = ["FRAME_FAULTS", "DepthReason", "reason_number", "reason_of", "spec_depth"]


class DepthReason(StrEnum):
    """Why a depth is not usable; the order is the wire number and only ever grows."""

    NONE = ""
    FRAME_MISSING = "frame_missing"
    FRAME_DAMAGED = "frame_damaged"
    WRONG_BINDING = "wrong_binding"
    WRONG_LAW = "wrong_law"
    WRONG_KIND = "wrong_kind"
    CONTENT_REFUSED = "content_refused"
    PEER_UNUSABLE = "peer_unusable"
    INVALID_ROW = "invalid_draft_row"
    DIGEST_CHANGED = "digest_changed"
    RANKS_DISAGREE = "ranks_disagree"
    VOTE_MISSING = "vote_missing"
    PREFIX_UNUSABLE = "prefix_unusable"


_ORDER = tuple(DepthReason)
FRAME_FAULTS = frozenset(
    {
        DepthReason.FRAME_MISSING,
        DepthReason.FRAME_DAMAGED,
        DepthReason.WRONG_BINDING,
        DepthReason.WRONG_LAW,
        DepthReason.WRONG_KIND,
        DepthReason.VOTE_MISSING,
    }
)


def reason_number(reason: DepthReason) -> int:
    """Return the wire number of a reason, 0..255."""
    return _ORDER.index(reason)


def reason_of(number: int) -> DepthReason:
    """Return the reason with a wire number; an unknown number counts as refused content."""
    return _ORDER[number] if number < len(_ORDER) else DepthReason.CONTENT_REFUSED


def spec_depth(own: Sequence[DepthVote], peer: Sequence[DepthVote] | None) -> tuple[int, DepthReason]:
    """Return (k, reason) from both ranks' votes for one request; `peer` None means that no vote came.

    The first fault in order of depth decides: what stands behind it may only follow from it, as a binding does that
    is wrong because the ranks already drafted different tokens. The reason is NONE exactly when every depth is usable.
    """
    if peer is None:
        return 0, DepthReason.VOTE_MISSING
    for depth, (mine, theirs) in enumerate(zip(own, peer, strict=True)):
        faults = [reason_of(vote.reason) for vote in (mine, theirs) if not vote.usable]
        for fault in faults:
            if fault in FRAME_FAULTS:
                return 0, fault
        if faults:
            return depth, faults[0]
        if mine.digest != theirs.digest:
            return depth, DepthReason.RANKS_DISAGREE
    return len(own), DepthReason.NONE
