"""The naive reference of the verify kernels: the pure numpy verification, fed with the same inputs.

Must never share arithmetic with the kernels. Source: selector/target_statistics.py, target_masses.py, acceptance.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.acceptance import ProofOfFailure, decide_round
from selector.draft_law import DraftCounts
from selector.kernels.verify_decide import DECIDED, Q_X_MISMATCH_STATUS, UNFIT
from selector.philox import Purpose, Words, draw_words
from selector.target_masses import ShardMasses, shard_masses
from selector.target_statistics import NO_TOKEN, ShardStatistics, combine_statistics, shard_statistics

__all__ = ["Decision", "VerifyCase", "decision_reference", "masses_reference", "statistics_reference"]

_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class VerifyCase:
    """One batch to verify, in numpy; rows are request by request, depth+1 a request.

    logits float32 [rows, vocabulary] (exact in bfloat16 where a kernel is to read that); cut: first id of shard 1;
    drafted int32 [B, depth]; usable_depth, temperature int32 [B]; ids int32, counts int64 [rows, 32]; number int32
    [rows]; seed, request: 64-bit unsigned; position: absolute index of row 0, each a tuple of B.
    """

    name: str
    depth: int
    logits: NDArray[np.float32]
    cut: int
    drafted: NDArray[np.int32]
    usable_depth: NDArray[np.int32]
    temperature: NDArray[np.int32]
    ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    number: NDArray[np.int32]
    seed: tuple[int, ...]
    request: tuple[int, ...]
    position: tuple[int, ...]

    def shards(self) -> list[tuple[NDArray[np.float32], int]]:
        """Return both shards as (logits [rows, n], id of column 0)."""
        parts = (self.logits[:, : self.cut], 0), (self.logits[:, self.cut :], self.cut)
        return [(np.ascontiguousarray(part), first) for part, first in parts]

    def law_of(self, row: int) -> DraftCounts | None:
        """Return the draft law that a row is verified with, None for a row that verifies nothing."""
        request, place = divmod(row, self.depth + 1)
        number = int(self.number[row])
        if place >= min(int(self.usable_depth[request]), self.depth) or number == 0:
            return None
        return DraftCounts(self.ids[row, :number], self.counts[row, :number])

    def words(self, purpose: Purpose) -> list[Words]:
        """Return the words of every row for one purpose."""
        names = zip(self.seed, self.request, self.position, strict=True)
        return [
            draw_words(seed % _WORD, request % _WORD, position + place, purpose)
            for seed, request, position in names
            for place in range(self.depth + 1)
        ]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one request emits, as DecisionBuffers hold it; token_ids are padded with -1."""

    accepted: int
    token_ids: tuple[int, ...]
    forced: int
    invalid_row: int
    status: int


def statistics_reference(case: VerifyCase) -> NDArray[np.float64]:
    """Return the bytes of the first exchange, float64 [2, rows, 5]."""
    ids = np.full((len(case.usable_depth), case.depth + 1), NO_TOKEN, dtype=np.int64)
    for index, usable in enumerate(np.minimum(case.usable_depth, case.depth).tolist()):
        ids[index, : max(usable, 0)] = case.drafted[index, : max(usable, 0)]
    return np.stack([shard_statistics(part, first, ids.reshape(-1)).pack() for part, first in case.shards()])


def masses_reference(case: VerifyCase, statistics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bytes of the second exchange, float64 [2, rows, 4], from the exchanged statistics [2, rows, 5]."""
    normaliser = combine_statistics(*(ShardStatistics.unpack(part) for part in statistics))
    laws = [case.law_of(row) for row in range(len(case.logits))]
    residual, target = case.words(Purpose.RESIDUAL), case.words(Purpose.TARGET_ONLY)
    return np.stack(
        [shard_masses(part, first, normaliser, laws, residual, target).pack() for part, first in case.shards()]
    )


def decision_reference(
    case: VerifyCase, statistics: NDArray[np.float64], masses: NDArray[np.float64]
) -> list[Decision]:
    """Return what every request emits, from the exchanged statistics [2, rows, 5] and masses [2, rows, 4]."""
    return [_decided(case, index, statistics, masses) for index in range(len(case.usable_depth))]


def _decided(case: VerifyCase, index: int, statistics: NDArray[np.float64], masses: NDArray[np.float64]) -> Decision:
    start, stop = index * (case.depth + 1), (index + 1) * (case.depth + 1)
    none = (-1,) * (case.depth + 1)
    words = {purpose: case.words(purpose)[start:stop] for purpose in Purpose}
    try:
        outcome = decide_round(
            int(case.usable_depth[index]),
            case.depth,
            int(case.temperature[index]),
            case.drafted[index].tolist(),
            [case.law_of(row) for row in range(start, stop)],
            combine_statistics(*(ShardStatistics.unpack(part[start:stop]) for part in statistics)),
            ShardMasses.unpack(masses[0, start:stop]),
            ShardMasses.unpack(masses[1, start:stop]),
            words[Purpose.ACCEPTANCE],
            words[Purpose.RESIDUAL],
            words[Purpose.TARGET_ONLY],
        )
    except ProofOfFailure:
        return Decision(0, none, 0, -1, Q_X_MISMATCH_STATUS)
    except ValueError:
        return Decision(0, none, 0, -1, UNFIT)
    tokens = (*outcome.token_ids, *none)[: case.depth + 1]
    invalid = -1 if outcome.invalid_row is None else outcome.invalid_row
    return Decision(outcome.accepted, tokens, int(outcome.forced), invalid, DECIDED)
