"""First exchange of a verify: what each shard tells about its half of every target row, and how both halves merge.

The target law is the softmax of the processed logits at temperature 1, top_p 1, in float64. Exponentials and sums are
our own, so a shard's numbers have the same bits on every machine; both ranks merge the *exchanged* numbers in shard
order 0, 1 by this code, so they hold the same bits too. Validity is judged after the merge: one shard all -inf is
lawful. Greedy rows need no division: they carry their argmax.
Must never raise for bad logits, never look at the drafted token to judge a row, and never tell -0.0 from 0.0.
Source: DESIGN section 3, "TP2 needs no gathered logits".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.target_exponential import MOST_TERMS, exponential, orderless_sum

__all__ = ["NO_TOKEN", "RowNormaliser", "ShardStatistics", "combine_statistics", "shard_statistics"]

NO_TOKEN = -1
_STATISTICS_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """What one shard tells about its part of every row; all arrays have one entry a row.

    maximum: greatest finite logit, -inf when none or poisoned. sum_exp: sum of exp(logit - maximum), 0 when none.
    poisoned: the part holds NaN or +inf. argmax_id: lowest global id with the maximum, -1 when none.
    draft_logit: the drafted token's logit (-inf when masked), NaN when that token is not in this shard.
    """

    maximum: NDArray[np.float64]
    sum_exp: NDArray[np.float64]
    poisoned: NDArray[np.bool_]
    argmax_id: NDArray[np.int64]
    draft_logit: NDArray[np.float64]

    def pack(self) -> NDArray[np.float64]:
        """Return the statistics as one float64 array (rows, 5) for the exchange; ids are exact below 2^53."""
        columns = (self.maximum, self.sum_exp, self.poisoned, self.argmax_id, self.draft_logit)
        return np.stack([column.astype(np.float64) for column in columns], axis=1)

    @staticmethod
    def unpack(packed: NDArray[np.float64]) -> ShardStatistics:
        """Return the statistics of a packed array float64 (rows, 5). Raises ValueError for another shape or dtype."""
        _check_packed("statistics", packed, _STATISTICS_COLUMNS)
        maximum, sum_exp, poisoned, argmax_id, draft_logit = packed.T.copy()
        return ShardStatistics(maximum, sum_exp, poisoned != 0.0, argmax_id.astype(np.int64), draft_logit)


@dataclass(frozen=True, slots=True)
class RowNormaliser:
    """Every target row after the merge; all arrays have one entry a row.

    maximum, sum_exp: so that p = exp(logit - maximum) / sum_exp. valid: finite somewhere, no NaN, no +inf.
    argmax_id: by (logit, lower global id), -1 when invalid. draft_probability: p of the drafted token, NaN when the
    row is invalid or drafts nothing.
    """

    maximum: NDArray[np.float64]
    sum_exp: NDArray[np.float64]
    valid: NDArray[np.bool_]
    argmax_id: NDArray[np.int64]
    draft_probability: NDArray[np.float64]

    def rows(self, start: int, stop: int) -> RowNormaliser:
        """Return rows start .. stop-1, which cuts one request out of a batch."""
        part = slice(start, stop)
        return RowNormaliser(
            self.maximum[part],
            self.sum_exp[part],
            self.valid[part],
            self.argmax_id[part],
            self.draft_probability[part],
        )


def shard_statistics(
    shard_logits: NDArray[np.float32], first_token_id: int, drafted_token_ids: NDArray[np.int64]
) -> ShardStatistics:
    """Return what this shard tells about every target row.

    shard_logits: float32 (rows, n), n >= 1; first_token_id: global id of column 0;
    drafted_token_ids: int64 (rows,), global ids, -1 for a row that verifies nothing.
    Raises ValueError for other shapes or dtypes and for more than 2^18-1 columns. Source: DESIGN section 3.
    """
    check_rows(shard_logits, len(drafted_token_ids), "drafted token")
    rows, width = shard_logits.shape
    if width > MOST_TERMS:
        raise ValueError(f"a shard of {width} columns is too wide, {MOST_TERMS} fit the integer limbs of its sum")
    highest = shard_logits.max(axis=1) if rows else np.empty(0, dtype=np.float32)
    poisoned = ~(highest < np.inf)
    usable = ~poisoned & (highest > -np.inf)
    # Which of two equal zeros is found depends on the machine; adding zero leaves 0.0 of both.
    maximum = np.where(usable, highest, -np.inf).astype(np.float64) + 0.0
    argmax_id = np.where(usable, shard_logits.argmax(axis=1) + first_token_id, NO_TOKEN).astype(np.int64)
    sum_exp = np.zeros(rows, dtype=np.float64)
    # Row by row, so that a row's bits cannot depend on the rows beside it.
    for row in np.flatnonzero(usable).tolist():
        sum_exp[row] = orderless_sum(exponential(shard_logits[row].astype(np.float64) - maximum[row]))
    column = np.asarray(drafted_token_ids) - first_token_id
    here = (column >= 0) & (column < width) & (np.asarray(drafted_token_ids) != NO_TOKEN) & ~poisoned
    draft_logit = np.full(rows, np.nan, dtype=np.float64)
    draft_logit[here] = shard_logits[here, column[here]].astype(np.float64) + 0.0
    return ShardStatistics(maximum, sum_exp, poisoned, argmax_id, draft_logit)


def combine_statistics(shard0: ShardStatistics, shard1: ShardStatistics) -> RowNormaliser:
    """Return every row's normaliser from both shards' statistics, always in shard order 0, 1.

    Both: the same number of rows. Raises ValueError when they differ or both shards claim a row's drafted token.
    Source: DESIGN section 3.
    """
    if len(shard0.maximum) != len(shard1.maximum):
        raise ValueError(f"shards tell about {len(shard0.maximum)} and {len(shard1.maximum)} rows, must be equal")
    claimed_twice = ~np.isnan(shard0.draft_logit) & ~np.isnan(shard1.draft_logit)
    if claimed_twice.any():
        raise ValueError(f"row {int(np.argmax(claimed_twice))}: both shards claim the drafted token, one must hold it")
    maximum = np.maximum(shard0.maximum, shard1.maximum)
    valid = ~shard0.poisoned & ~shard1.poisoned & np.isfinite(maximum)
    # An invalid row has no scale; zero keeps the arithmetic below free of inf - inf, and nothing reads it.
    scale = np.where(valid, maximum, 0.0)
    part0 = np.where(valid, shard0.sum_exp * exponential(np.minimum(shard0.maximum - scale, 0.0)), 0.0)
    part1 = np.where(valid, shard1.sum_exp * exponential(np.minimum(shard1.maximum - scale, 0.0)), 0.0)
    sum_exp = part0 + part1
    lower_id = np.minimum(shard0.argmax_id, shard1.argmax_id)
    argmax_id = np.where(shard0.maximum > shard1.maximum, shard0.argmax_id, shard1.argmax_id)
    argmax_id = np.where(shard0.maximum == shard1.maximum, lower_id, argmax_id)
    draft_logit = np.where(np.isnan(shard0.draft_logit), shard1.draft_logit, shard0.draft_logit)
    numerator = exponential(np.minimum(draft_logit - scale, 0.0))
    drafted = valid & ~np.isnan(draft_logit)
    draft_probability = np.divide(numerator, sum_exp, out=np.full(len(valid), np.nan), where=drafted)
    return RowNormaliser(maximum, sum_exp, valid, np.where(valid, argmax_id, NO_TOKEN), draft_probability)


def check_rows(shard_logits: NDArray[np.float32], companions: int, name: str) -> None:
    """Hold that shard_logits is float32 (rows, n), n >= 1, with one companion a row. Raises ValueError."""
    if shard_logits.ndim != 2 or shard_logits.shape[1] < 1 or shard_logits.dtype != np.float32:
        raise ValueError(
            f"shard_logits is {shard_logits.dtype} {shard_logits.shape}, must be float32 (rows, n) with n >= 1"
        )
    if companions != len(shard_logits):
        raise ValueError(f"{len(shard_logits)} rows of logits came with {companions} entries, need one {name} a row")


def _check_packed(name: str, packed: NDArray[np.float64], columns: int) -> None:
    if packed.ndim != 2 or packed.shape[1] != columns or packed.dtype != np.float64:
        raise ValueError(f"packed {name} is {packed.dtype} {packed.shape}, must be float64 (rows, {columns})")
