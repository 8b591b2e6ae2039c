"""The draft law top32/tau0.7/dyadic24-floor-first-v1: counts on a grid of 2^24, and the token a draw picks.

The counts *are* the law that drafts are drawn from: q(x) = count / 2^24 exactly, which enumerating all draws
proves. A count of 0 is lawful and can never be drawn.
Must never recompute a softmax for acceptance and never look at a drafted token to judge a row.
Source: DESIGN section 3, "Draft law".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.candidates import (
    TOP_K,
    InvalidReason,
    InvalidRow,
    ShardCandidates,
    merge_candidates,
    shard_candidates,
    shard_candidates_rows,
)
from selector.fixed_point import weights_of
from selector.law_ids import EXACT_LAW_ID

__all__ = [
    "GRID",
    "GRID_BITS",
    "LAW_ID",
    "TOP_K",
    "DraftCounts",
    "InvalidReason",
    "InvalidRow",
    "ShardCandidates",
    "counts_of",
    "counts_of_rows",
    "draft_law",
    "draw_indices",
    "draw_token",
    "merge_candidates",
    "one_hot",
    "shard_candidates",
    "shard_candidates_rows",
]

LAW_ID = EXACT_LAW_ID
GRID_BITS = 24
GRID = 1 << GRID_BITS


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """A draft law: token_ids int32[k] in order of law, counts int64[k] >= 0 with sum 2^24, 1 <= k <= 32."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.int64]

    def count_of(self, token_id: int) -> int:
        """Return the count of one token, 0 for a token outside the candidates."""
        where = np.flatnonzero(self.token_ids == token_id)
        return int(self.counts[where[0]]) if len(where) else 0


def counts_of_rows(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the counts of many rows of candidates.

    logits: float32 (..., k) in order of law, padded with -inf at the end; element 0 of each row is finite.
    Returns int64 (..., k), each row summing to 2^24; padding has count 0.
    Before the floor a count is within 2^-6 of its real value. Source: DESIGN section 3.
    """
    weights = weights_of(logits)
    counts = np.asarray((weights << GRID_BITS) // weights.sum(axis=-1, keepdims=True))
    counts[..., 0] += GRID - counts.sum(axis=-1)
    return counts


def counts_of(candidates: ShardCandidates) -> DraftCounts:
    """Return the draft law of merged candidates.

    candidates: from merge_candidates, 1 to 32 of them in order of law. Raises ValueError when there is none or
    they are poisoned (such a row is invalid and has no law). Source: DESIGN section 3.
    """
    if candidates.poisoned or not len(candidates.token_ids):
        raise ValueError("counts_of got poisoned or empty candidates; merge_candidates tells an invalid row apart")
    return DraftCounts(candidates.token_ids, counts_of_rows(candidates.logits))


def draft_law(logits: NDArray[np.float32]) -> DraftCounts | InvalidRow:
    """Return the draft law of a whole row of logits, or why the row is invalid.

    logits: float32 (vocabulary,). Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    merged = merge_candidates([shard_candidates(logits, 0)])
    return merged if isinstance(merged, InvalidRow) else counts_of(merged)


def one_hot(token_id: int) -> DraftCounts:
    """Return the law of a greedy draft: the whole grid on one token (arm A). token_id: 0 .. 2^31-1."""
    return DraftCounts(np.array([token_id], dtype=np.int32), np.array([GRID], dtype=np.int64))


def draw_indices(draft_counts: DraftCounts, draws: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return, for every draw, the index of the first candidate whose cumulative count exceeds it.

    draws: int64 (...,), each in 0 .. 2^24-1 (the caller holds that). Returns intp (...,). Source: DESIGN section 3.
    """
    return np.searchsorted(np.cumsum(draft_counts.counts), draws, side="right")


def draw_token(draft_counts: DraftCounts, draw: int) -> int:
    """Return the token that a 24-bit draw picks.

    draw: 0 .. 2^24-1. Raises ValueError for another draw. Source: DESIGN section 3.
    """
    if not 0 <= draw < GRID:
        raise ValueError(f"draw is {draw}, must be in 0 .. 2^{GRID_BITS}-1")
    return int(draft_counts.token_ids[int(draw_indices(draft_counts, np.array(draw, dtype=np.int64)))])
