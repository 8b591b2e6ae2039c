"""The 32 greatest logits of a row, found shard by shard and merged without gathering the row.

Order of law: logit descending, then token id ascending; -0.0 equals 0.0; -inf is masked and never listed.
Must never raise for bad logits: NaN and +inf make a shard *poisoned* and the merged row *invalid*, as values.
Source: DESIGN section 3, "Draft law".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TOP_K",
    "InvalidReason",
    "InvalidRow",
    "ShardCandidates",
    "merge_candidates",
    "shard_candidates",
    "shard_candidates_rows",
]

TOP_K = 32


class InvalidReason(StrEnum):
    """Why a row has no draft law."""

    NAN_OR_POSITIVE_INFINITY = "nan_or_positive_infinity"
    NONE_FINITE = "none_finite"
    ONE_TOKEN_TWO_LOGITS = "one_token_two_logits"


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row without a draft law, and why; a value, never an exception."""

    reason: InvalidReason


@dataclass(frozen=True, slots=True)
class ShardCandidates:
    """Candidates in order of law: token_ids int32[<=32] global ids, logits float32[<=32] finite.

    poisoned: the shard holds NaN or +inf; then both arrays are empty.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    poisoned: bool


def shard_candidates(shard_logits: NDArray[np.float32], first_token_id: int) -> ShardCandidates:
    """Return the top 32 finite logits of one vocabulary shard.

    shard_logits: float32 (n,), n >= 1; first_token_id: global id of element 0, >= 0. All -inf is lawful (no candidate).
    Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    if shard_logits.ndim != 1:
        raise ValueError(f"shard_logits has shape {shard_logits.shape}, must be one row (n,)")
    return shard_candidates_rows(shard_logits[np.newaxis, :], first_token_id)[0]


def shard_candidates_rows(shard_logits: NDArray[np.float32], first_token_id: int) -> list[ShardCandidates]:
    """Return the top 32 finite logits of one vocabulary shard for every row.

    shard_logits: float32 (rows, n), n >= 1; first_token_id: global id of column 0, >= 0.
    Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    if shard_logits.ndim != 2 or shard_logits.shape[1] < 1 or shard_logits.dtype != np.float32:
        raise ValueError(
            f"shard_logits is {shard_logits.dtype} {shard_logits.shape}, must be float32 (rows, n) with n >= 1"
        )
    if first_token_id < 0:
        raise ValueError(f"first_token_id is {first_token_id}, must be >= 0")
    width = shard_logits.shape[1]
    # The maximum alone tells: it is NaN when any element is, and +inf when any element is.
    poisoned = ~(shard_logits.max(axis=1) < np.inf)
    if width > TOP_K:
        thresholds = np.partition(shard_logits, width - TOP_K, axis=1)[:, width - TOP_K]
    else:
        thresholds = np.full(len(shard_logits), -np.inf, dtype=np.float32)
    return [
        _empty(poisoned=True) if bad else _row_candidates(row, threshold, first_token_id)
        for row, threshold, bad in zip(shard_logits, thresholds, poisoned.tolist(), strict=True)
    ]


def merge_candidates(shards: Sequence[ShardCandidates]) -> ShardCandidates | InvalidRow:
    """Return the top 32 of the whole row from its shards' candidates, or why the row is invalid.

    shards: any number >= 1, in any order. Candidates are a *set*: a token listed twice with one logit counts once.
    Validity is judged after the merge: a shard without candidates is lawful, a row without any is not.
    Raises ValueError for no shards at all. Source: DESIGN section 3.
    """
    if not shards:
        raise ValueError("merge_candidates got no shards, needs one at least")
    logits = np.concatenate([shard.logits for shard in shards])
    token_ids = np.concatenate([shard.token_ids for shard in shards])
    if any(shard.poisoned for shard in shards) or not np.isfinite(logits).all():
        return InvalidRow(InvalidReason.NAN_OR_POSITIVE_INFINITY)
    if not len(logits):
        return InvalidRow(InvalidReason.NONE_FINITE)
    order = np.lexsort((token_ids, -logits))
    token_ids, logits = token_ids[order], logits[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (token_ids[1:] != token_ids[:-1]) | (logits[1:] != logits[:-1])
    token_ids, logits = token_ids[fresh], logits[fresh]
    if len(set(token_ids.tolist())) != len(token_ids):
        return InvalidRow(InvalidReason.ONE_TOKEN_TWO_LOGITS)
    return ShardCandidates(token_ids[:TOP_K], logits[:TOP_K], poisoned=False)


def _row_candidates(row: NDArray[np.float32], threshold: np.float32, first_token_id: int) -> ShardCandidates:
    above = np.flatnonzero(row > threshold)
    above = above[np.argsort(-row[above], kind="stable")]
    if threshold > -np.inf:
        # Ties at the threshold go to the lower ids, whatever order the partition left them in.
        at_threshold = np.flatnonzero(row == threshold)[: TOP_K - len(above)]
        above = np.concatenate([above, at_threshold])
    # Adding zero turns -0.0 into 0.0, so equal candidates are equal bytes.
    logits = row[above] + np.float32(0.0)
    return ShardCandidates((above + first_token_id).astype(np.int32), logits, poisoned=False)


def _empty(poisoned: bool) -> ShardCandidates:
    return ShardCandidates(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32), poisoned)
