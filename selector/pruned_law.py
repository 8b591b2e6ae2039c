"""The pruned Markov draft law: a whole drafted walk from one exchange of base candidates, in integers.

Candidates of a depth: the union, as a set, over the shards of each shard's first M base logits in order of law. A base
logit is rounded once, when the walk reads it, to the grid 2^-G (half to even), and saturates at 2^30 grid units; which
M are a shard's first is decided before, on the unrounded float32. Score = grid logit + bias of the token before, an
integer dot of a row of W1 with a row of W2, shifted left. The 32 greatest by (score descending, id ascending) make the
law; a weight's Q32 exponent is (distance * round(2^40 log2(e) / 0.7) + half) >> (8 + G), clamped at 63, and all that
follows is the exact law's: the same weights, floor, remainder to the first, draw and digest.
Must never judge a depth by the token drafted at it, and never be taken for the exact law: the id is its own.
Source: DESIGN section 3, "Sampled Markov drafts".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from selector.candidates import TOP_K, ShardCandidates
from selector.draft_law import GRID, GRID_BITS, DraftCounts, draw_token
from selector.fixed_point import EXPONENT_BITS, EXPONENT_LIMIT, weights_of_exponents
from selector.law_digest import counts_digest
from selector.law_ids import GRID_BITS_RANGE, pruned_law_id
from selector.philox import Purpose, draw24, draw_words

__all__ = [
    "BIAS_SHIFT_RANGE",
    "DEPTH_RANGE",
    "DISTANCE_LIMIT",
    "GRID_LIMIT",
    "PRUNED_WIDTH_RANGE",
    "RANK_RANGE",
    "SCALE_BITS",
    "SCALE_Q40",
    "VOCABULARY_RANGE",
    "DepthDraft",
    "DraftName",
    "MarkovHead",
    "PrunedLaw",
    "WalkStatus",
    "exponents_of_distances",
    "grid_logits",
    "pruned_counts",
    "pruned_walk",
]

SCALE_BITS: Final = 40
SCALE_Q40: Final = 2266085675417
"""2^40 * log2(e) / 0.7 rounded to the nearest integer."""
GRID_LIMIT: Final = 1 << 30
"""Grid units at which a base logit saturates."""
DISTANCE_LIMIT: Final = 32
"""A candidate this many logits below the first has the exponent limit; clamping here keeps the product in 63 bits."""
PRUNED_WIDTH_RANGE: Final = range(1, TOP_K + 1)
"""A shard sends 32 candidates; wider laws can be named but not drawn."""
DEPTH_RANGE: Final = range(1, 9)
RANK_RANGE: Final = range(1, 257)
VOCABULARY_RANGE: Final = range(1, 163_841)
BIAS_SHIFT_RANGE: Final = range(17)

DraftName = tuple[int, int, int]
"""(seed, request, position) of a walk's first draw, unsigned; depth j draws at position + j - 1."""
_EXPONENT_LIMIT_FIXED: Final = int(EXPONENT_LIMIT) << EXPONENT_BITS


class WalkStatus(IntEnum):
    """Whether a depth has a law, else why not."""

    VALID = 0
    NAN_OR_POSITIVE_INFINITY = 1
    NONE_FINITE = 2
    ONE_TOKEN_TWO_LOGITS = 3
    PREFIX_UNUSABLE = 4
    """An earlier depth has no draft, or the token before the walk is none of the vocabulary."""
    TOKEN_OUTSIDE_VOCABULARY = 5


@dataclass(frozen=True, slots=True)
class PrunedLaw:
    """width: candidates a shard and depth (M), 1 .. 32; grid_bits: 0 .. 16. Raises ValueError beyond."""

    width: int
    grid_bits: int

    def __post_init__(self) -> None:
        if self.width not in PRUNED_WIDTH_RANGE or self.grid_bits not in GRID_BITS_RANGE:
            raise ValueError(f"width is {self.width} and grid_bits {self.grid_bits}, must be in 1 .. 32 and 0 .. 16")

    @property
    def law_id(self) -> str:
        """The id under which these counts are drawn and voted on."""
        return pruned_law_id(self.width, self.grid_bits)


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """The low-rank bias in fixed point: (previous[x] . following[y]) << bias_shift, in units of the grid.

    previous, following: W1 and W2, both int8 or both int16 (V, r), 1 <= V <= 163,840, 1 <= r <= 256; bias_shift:
    0 .. 16. Then a bias is below 2^55. Raises ValueError for others.
    """

    previous: NDArray[np.int8] | NDArray[np.int16]
    following: NDArray[np.int8] | NDArray[np.int16]
    bias_shift: int

    def __post_init__(self) -> None:
        shape, dtype = self.previous.shape, self.previous.dtype
        if (
            dtype not in (np.int8, np.int16)
            or self.following.dtype != dtype
            or self.following.shape != shape
            or len(shape) != 2
            or shape[0] not in VOCABULARY_RANGE
            or shape[1] not in RANK_RANGE
        ):
            raise ValueError(
                f"tables are {dtype} {shape} and {self.following.dtype} {self.following.shape}, must both be int8 or "
                "both int16 of one shape (1 .. 163,840, 1 .. 256)"
            )
        if self.bias_shift not in BIAS_SHIFT_RANGE:
            raise ValueError(f"bias_shift is {self.bias_shift}, must be in 0 .. 16")

    def bias(self, previous_token: int, token_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the bias of every token after previous_token, int64 (n,) grid units. All ids: 0 .. V-1."""
        row = self.previous[previous_token].astype(np.int64)
        return np.asarray((self.following[token_ids].astype(np.int64) @ row) << self.bias_shift)


@dataclass(frozen=True, slots=True)
class DepthDraft:
    """One depth of a walk. counts: None without a law; then token is -1 and digest 0."""

    status: WalkStatus
    counts: DraftCounts | None = None
    token: int = -1
    digest: int = 0


def grid_logits(logits: NDArray[np.float32], grid_bits: int) -> NDArray[np.int64]:
    """Return finite logits in units of 2^-grid_bits, half to even, saturated at -2^30 and 2^30.

    logits: float32 (...,), finite; grid_bits: 0 .. 16. Returns int64 (...,). Source: DESIGN section 3.
    """
    scaled = logits.astype(np.float64) * float(1 << grid_bits)
    return np.asarray(np.rint(np.clip(scaled, -GRID_LIMIT, GRID_LIMIT)).astype(np.int64))


def exponents_of_distances(distances: NDArray[np.int64], grid_bits: int) -> NDArray[np.int64]:
    """Return Q32 exponents, int64 (...,) in 0 .. 63 * 2^32, of score distances >= 0 in units of 2^-grid_bits.

    Rounded half up; within 2^-33 + 2^-36 of log2(e) / 0.7 times the distance. Source: DESIGN section 3.
    """
    shift = SCALE_BITS - EXPONENT_BITS + grid_bits
    # At most 2^21 times 2^41.1: below 2^63.
    product = np.minimum(distances, DISTANCE_LIMIT << grid_bits) * SCALE_Q40
    return np.asarray(np.minimum((product + (1 << (shift - 1))) >> shift, _EXPONENT_LIMIT_FIXED))


def pruned_counts(token_ids: NDArray[np.int32], scores: NDArray[np.int64], grid_bits: int) -> DraftCounts:
    """Return the law of a depth's candidates.

    token_ids: int32 (n,), distinct, n >= 1, in any order; scores: int64 (n,) in units of 2^-grid_bits, below 2^62.
    Returns the 32 greatest by (score descending, id ascending). Source: DESIGN section 3.
    """
    order = np.lexsort((token_ids, -scores))[:TOP_K]
    distances = scores[order[0]] - scores[order]
    weights = weights_of_exponents(exponents_of_distances(distances, grid_bits))
    counts = (weights << GRID_BITS) // weights.sum()
    counts[0] += GRID - counts.sum()
    return DraftCounts(token_ids[order], counts)


def pruned_walk(
    depths: Sequence[Sequence[ShardCandidates]], head: MarkovHead, prefix_token: int, law: PrunedLaw, name: DraftName
) -> tuple[DepthDraft, ...]:
    """Return what a request drafts at every depth, each conditioned on the drafted token before.

    depths: 1 .. 8 of them, each with the shards' base candidates in order of law; only the first M of a shard are read.
    prefix_token: the token before the walk; one outside the vocabulary makes every depth PREFIX_UNUSABLE. After a depth
    without a law all later ones are PREFIX_UNUSABLE, whatever their own candidates say.
    Raises ValueError for another number of depths. Source: DESIGN section 3.
    """
    if len(depths) not in DEPTH_RANGE:
        raise ValueError(f"a walk of {len(depths)} depths, must be 1 .. 8")
    seed, request, position = name
    token = prefix_token if 0 <= prefix_token < len(head.previous) else -1
    drafts = []
    for step, shards in enumerate(depths):
        if token < 0:
            drafts.append(DepthDraft(WalkStatus.PREFIX_UNUSABLE))
            continue
        union = _union(shards, law.width, len(head.following))
        if isinstance(union, WalkStatus):
            drafts.append(DepthDraft(union))
            token = -1
            continue
        token_ids, logits = union
        scores = grid_logits(logits, law.grid_bits) + head.bias(token, token_ids)
        counts = pruned_counts(token_ids, scores, law.grid_bits)
        token = draw_token(counts, draw24(draw_words(seed, request, position + step, Purpose.PROPOSAL)))
        drafts.append(DepthDraft(WalkStatus.VALID, counts, token, counts_digest(counts, token, law.law_id)))
    return tuple(drafts)


def _union(
    shards: Sequence[ShardCandidates], width: int, vocabulary: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]] | WalkStatus:
    # The same order of reasons as the exact law's merge; a token's two logits are told apart before rounding.
    logits = np.concatenate([shard.logits[:width] for shard in shards])
    token_ids = np.concatenate([shard.token_ids[:width] for shard in shards])
    if any(shard.poisoned for shard in shards) or not np.isfinite(logits).all():
        return WalkStatus.NAN_OR_POSITIVE_INFINITY
    if not len(logits):
        return WalkStatus.NONE_FINITE
    listed = dict(zip(token_ids.tolist(), logits.tolist(), strict=True))
    if any(listed[token] != logit for token, logit in zip(token_ids.tolist(), logits.tolist(), strict=True)):
        return WalkStatus.ONE_TOKEN_TWO_LOGITS
    if min(listed) < 0 or max(listed) >= vocabulary:
        return WalkStatus.TOKEN_OUTSIDE_VOCABULARY
    return np.array(list(listed), dtype=np.int32), np.array(list(listed.values()), dtype=np.float32)
