"""Second exchange of a verify: each shard's masses of p and of (p - q)+, and its candidate token for both.

Probabilities become integers in units of 2^-63, so that sums, (p - q)+ and the inverse of the cumulative law are
exact; a draw of 64 bits picks within the shard (lane 1), another picks the shard (lane 0). A token of weight 0 can
never be picked, and a shard or row of mass 0 has no candidate.
Must never see the peer's logits and never draw from a mass of zero.
Source: DESIGN section 3, "Acceptance" and "TP2 needs no gathered logits".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.draft_law import GRID_BITS, DraftCounts
from selector.philox import Words, draw64
from selector.target_exponential import exponential
from selector.target_statistics import NO_TOKEN, RowNormaliser, check_rows

__all__ = [
    "MASS_BITS",
    "ShardMasses",
    "masses_of_probabilities",
    "pick_index",
    "pick_shard_token",
    "shard_masses",
    "target_probabilities",
]

MASS_BITS = 63
_MASSES_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class ShardMasses:
    """One shard's masses and candidates; all arrays have one entry a row.

    target_mass: sum of p over the shard, float64. target_token: its candidate drawn from p, -1 when the mass is 0.
    residual_mass, residual_token: the same for (p - q)+, 0 and -1 for a row without a draft law.
    """

    target_mass: NDArray[np.float64]
    target_token: NDArray[np.int64]
    residual_mass: NDArray[np.float64]
    residual_token: NDArray[np.int64]

    def pack(self) -> NDArray[np.float64]:
        """Return the masses as one float64 array (rows, 4) for the exchange; ids are exact below 2^53."""
        columns = (self.target_mass, self.target_token, self.residual_mass, self.residual_token)
        return np.stack([column.astype(np.float64) for column in columns], axis=1)

    @staticmethod
    def unpack(packed: NDArray[np.float64]) -> ShardMasses:
        """Return the masses of a packed array float64 (rows, 4). Raises ValueError for another shape or dtype."""
        if packed.ndim != 2 or packed.shape[1] != _MASSES_COLUMNS or packed.dtype != np.float64:
            raise ValueError(f"packed masses are {packed.dtype} {packed.shape}, must be float64 (rows, 4)")
        target_mass, target_token, residual_mass, residual_token = packed.T.copy()
        return ShardMasses(target_mass, target_token.astype(np.int64), residual_mass, residual_token.astype(np.int64))

    def rows(self, start: int, stop: int) -> ShardMasses:
        """Return rows start .. stop-1, which cuts one request out of a batch."""
        part = slice(start, stop)
        return ShardMasses(
            self.target_mass[part], self.target_token[part], self.residual_mass[part], self.residual_token[part]
        )


def target_probabilities(
    shard_logits: NDArray[np.float32], normaliser: RowNormaliser
) -> list[NDArray[np.float64] | None]:
    """Return p over the shard for every row, None for an invalid row.

    shard_logits: float32 (rows, n). Each p is float64 (n,) in 0 .. 1. Raises ValueError when rows differ in number.
    """
    check_rows(shard_logits, len(normaliser.valid), "normaliser entry")
    return [
        exponential(row.astype(np.float64) - normaliser.maximum[index]) / normaliser.sum_exp[index]
        if normaliser.valid[index]
        else None
        for index, row in enumerate(shard_logits)
    ]


def masses_of_probabilities(
    probabilities: Sequence[NDArray[np.float64] | None],
    first_token_id: int,
    draft_counts: Sequence[DraftCounts | None],
    residual_words: Sequence[Words],
    target_words: Sequence[Words],
) -> ShardMasses:
    """Return masses and candidates of one shard from its probabilities.

    Every sequence has one entry a row. probabilities: float64 (n,) in 0 .. 1, None for an invalid row;
    draft_counts: the row's law q over global ids, None for a row that verifies nothing.
    Raises ValueError when the sequences differ in length. Source: DESIGN section 3.
    """
    rows = len(probabilities)
    masses = ShardMasses(
        np.zeros(rows), np.full(rows, NO_TOKEN, np.int64), np.zeros(rows), np.full(rows, NO_TOKEN, np.int64)
    )
    rows_of_input = zip(probabilities, draft_counts, residual_words, target_words, strict=True)
    for index, (row, law, words_residual, words_target) in enumerate(rows_of_input):
        if row is None:
            continue
        weights = np.rint(row * float(1 << MASS_BITS)).astype(np.uint64)
        masses.target_mass[index], masses.target_token[index] = _candidate(weights, first_token_id, words_target)
        if law is not None:
            residual = _residual_weights(weights, first_token_id, law)
            masses.residual_mass[index], masses.residual_token[index] = _candidate(
                residual, first_token_id, words_residual
            )
    return masses


def shard_masses(
    shard_logits: NDArray[np.float32],
    first_token_id: int,
    normaliser: RowNormaliser,
    draft_counts: Sequence[DraftCounts | None],
    residual_words: Sequence[Words],
    target_words: Sequence[Words],
) -> ShardMasses:
    """Return masses and candidates of one shard for every target row.

    shard_logits: float32 (rows, n); every sequence has one entry a row; lane 1 of a row's words picks within the
    shard. Raises ValueError when lengths differ. Source: DESIGN section 3.
    """
    probabilities = target_probabilities(shard_logits, normaliser)
    return masses_of_probabilities(probabilities, first_token_id, draft_counts, residual_words, target_words)


def pick_index(weights: NDArray[np.uint64], words: Words) -> int | None:
    """Return the index that lane 1 picks in proportion to integer weights, None when all are zero.

    weights: uint64 (n,), sum below 2^64. Index i has just those draws d for which floor(d * sum / 2^64) lies in
    cumulative(i-1) .. cumulative(i)-1.
    """
    cumulative = np.cumsum(weights, dtype=np.uint64)
    total = int(cumulative[-1])
    if total == 0:
        return None
    aim = draw64(words, 1) * total >> 64
    return int(np.searchsorted(cumulative, np.uint64(aim), side="right"))


def pick_shard_token(mass0: float, token0: int, mass1: float, token1: int, words: Words) -> int | None:
    """Return the candidate of the shard that lane 0 picks in proportion to the masses, None when both are zero.

    mass0, mass1: float64, whole multiples of 2^-63, as shard_masses makes them; token0, token1: the candidates.
    The comparison is in exact integers. Raises ValueError for a mass that is negative or not finite.
    """
    if not (0.0 <= mass0 < 2.0 and 0.0 <= mass1 < 2.0):
        raise ValueError(f"shard masses are {mass0} and {mass1}, each must be in 0 .. 1")
    units0, units1 = int(mass0 * float(1 << MASS_BITS)), int(mass1 * float(1 << MASS_BITS))
    if units0 + units1 == 0:
        return None
    return token0 if draw64(words, 0) * (units0 + units1) < units0 << 64 else token1


def _candidate(weights: NDArray[np.uint64], first_token_id: int, words: Words) -> tuple[float, int]:
    index = pick_index(weights, words)
    if index is None:
        return 0.0, NO_TOKEN
    return int(weights.sum(dtype=np.uint64)) / (1 << MASS_BITS), first_token_id + index


def _residual_weights(weights: NDArray[np.uint64], first_token_id: int, law: DraftCounts) -> NDArray[np.uint64]:
    residual = weights.copy()
    columns = law.token_ids.astype(np.int64) - first_token_id
    here = (columns >= 0) & (columns < len(weights))
    columns = columns[here]
    drafted = law.counts[here].astype(np.uint64) << np.uint64(MASS_BITS - GRID_BITS)
    kept = weights[columns]
    residual[columns] = np.where(kept > drafted, kept - np.minimum(kept, drafted), np.uint64(0))
    return residual
