"""One depth of a sampled or greedy walk: two shards' candidates to counts, token and digest.

Pure, and the same on both ranks: shard order is 0, 1 whoever computes. The digest is taken here, by the
code that draws, and is compared later with one taken from the bytes that acceptance reads.
Must never draw from anything but the registered Philox block. Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranks.records import DraftMode
from ranks.verdict import DepthReason
from selector.draft_law import (
    DraftCounts,
    InvalidRow,
    ShardCandidates,
    counts_of,
    draw_token,
    merge_candidates,
    one_hot,
)
from selector.law_digest import counts_digest
from selector.law_ids import EXACT_LAW_ID, GREEDY_LAW_ID
from selector.philox import Purpose, draw24, draw_words

__all__ = ["DrawnDepth", "draw_depth", "draws_its_token", "law_id_of"]


@dataclass(frozen=True, slots=True)
class DrawnDepth:
    """A drafted token, the law that it was drawn from, and the digest of both taken while drawing."""

    token_id: int
    draft_counts: DraftCounts
    digest: int


def law_id_of(draft_mode: DraftMode) -> str:
    """Return the id of the law that drafts of this mode follow."""
    return EXACT_LAW_ID if draft_mode is DraftMode.SAMPLED else GREEDY_LAW_ID


def draw_depth(
    draft_mode: DraftMode, shard0: ShardCandidates, shard1: ShardCandidates, seed: int, request: int, position: int
) -> DrawnDepth | DepthReason:
    """Return the drafted token for `position`, or why this row has none.

    Shards hold global ids in law order. Greedy mode takes the top token and declares q one-hot.
    """
    merged = merge_candidates([shard0, shard1])
    if isinstance(merged, InvalidRow):
        return DepthReason.INVALID_ROW
    if draft_mode is DraftMode.SAMPLED:
        draft_counts = counts_of(merged)
        token_id = draw_token(draft_counts, draw24(draw_words(seed, request, position, Purpose.PROPOSAL)))
    else:
        token_id = int(merged.token_ids[0])
        draft_counts = one_hot(token_id)
    return DrawnDepth(token_id, draft_counts, counts_digest(draft_counts, token_id, law_id_of(draft_mode)))


def draws_its_token(drawn: DrawnDepth, draft_mode: DraftMode, seed: int, request: int, position: int) -> bool:
    """Return whether the recorded draw picks the drafted token from the counts, with a count above zero.

    False is proof that an earlier check failed, never a validity rule.
    """
    if draft_mode is not DraftMode.SAMPLED:
        return bool(drawn.draft_counts.token_ids.tolist() == [drawn.token_id])
    words = draw_words(seed, request, position, Purpose.PROPOSAL)
    return draw_token(drawn.draft_counts, draw24(words)) == drawn.token_id
