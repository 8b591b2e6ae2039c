"""Verification of one round on one rank, in three pure steps around two exchanges of fixed size.

Each rank gives (maximum, sum-exp, flags, argmax, draft logit) and then (masses, candidate tokens) for all rows at
once; both merge the *exchanged* numbers in shard order 0, 1 and decide by the same code. Must never gather logits,
and never let a verdict change what is exchanged. Source: DESIGN section 3 "TP2 needs no gathered logits".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ranks.draw_depth import draws_its_token
from ranks.rank_events import VerifyEntry
from ranks.round_plan import PlanEntry, RoundPlan
from selector.acceptance import (
    Q_X_MISMATCH,
    ProofOfFailure,
    RoundOutcome,
    RowNormaliser,
    ShardMasses,
    ShardStatistics,
    combine_statistics,
    decide_round,
    shard_masses,
    shard_statistics,
)
from selector.philox import Purpose, Words, draw_words
from selector.target_statistics import NO_TOKEN

__all__ = ["RoundVerification", "prove_draws"]


def prove_draws(plan: RoundPlan, entries: Sequence[VerifyEntry]) -> None:
    """Hold that every draft to be verified is the token that its recorded draw picks.

    Raises ProofOfFailure (q_x_mismatch): an earlier check failed, nothing of this round may be released.
    """
    for place, entry in zip(plan.entries, entries, strict=True):
        for index in range(entry.usable_depth):
            drawn = entry.drawn[index]
            position = place.position + index
            if drawn is None or not draws_its_token(drawn, plan.draft_mode, place.seed, place.request, position):
                raise ProofOfFailure(Q_X_MISMATCH, f"position {position} did not draft the token that its draw picks")


class RoundVerification:
    """One round's verification: `statistics`, then `masses`, then `outcomes`, each fed what was exchanged.

    shard_logits: float32 (entries, depth+1, n), this rank's vocabulary half, in plan order.
    """

    def __init__(
        self,
        plan: RoundPlan,
        entries: Sequence[VerifyEntry],
        shard_logits: NDArray[np.float32],
        first_token_id: int,
    ) -> None:
        """Check the draws. Raises ProofOfFailure."""
        prove_draws(plan, entries)
        self._plan = plan
        self._entries = entries
        self._rows = plan.depth + 1
        self._first_token_id = first_token_id
        self._logits = np.ascontiguousarray(shard_logits.reshape(len(entries) * self._rows, -1))
        self._residual_words = self._all_words(Purpose.RESIDUAL)
        self._target_words = self._all_words(Purpose.TARGET_ONLY)
        self._normaliser: RowNormaliser | None = None

    def statistics(self) -> NDArray[np.float64]:
        """Return this rank's part of the first exchange, float64 (rows, 5)."""
        # Behind k the ranks may have fed different ids, so those rows verify nothing; their number never changes.
        unverified = [(NO_TOKEN,) * (self._rows - entry.usable_depth) for entry in self._entries]
        verified = [entry.drafted[: entry.usable_depth] for entry in self._entries]
        drafted = np.array([(*kept, *none) for kept, none in zip(verified, unverified, strict=True)], dtype=np.int64)
        return shard_statistics(self._logits, self._first_token_id, drafted.reshape(-1)).pack()

    def masses(self, statistics: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take both ranks' statistics (2, rows, 5) and return this rank's part of the second exchange (rows, 4)."""
        first, second = ShardStatistics.unpack(statistics[0]), ShardStatistics.unpack(statistics[1])
        self._normaliser = combine_statistics(first, second)
        counts = [
            entry.draft_counts[row] if row < entry.usable_depth else None
            for entry in self._entries
            for row in range(self._rows)
        ]
        own = shard_masses(
            self._logits, self._first_token_id, self._normaliser, counts, self._residual_words, self._target_words
        )
        return own.pack()

    def outcomes(self, masses: NDArray[np.float64]) -> list[RoundOutcome]:
        """Take both ranks' masses (2, rows, 4) and return what every request emits. Raises ProofOfFailure."""
        normaliser = self._normaliser
        if normaliser is None:
            raise RuntimeError("outcomes were asked for before the first exchange")
        shard0, shard1 = ShardMasses.unpack(masses[0]), ShardMasses.unpack(masses[1])
        outcomes = []
        for index, (place, entry) in enumerate(zip(self._plan.entries, self._entries, strict=True)):
            start, stop = index * self._rows, (index + 1) * self._rows
            outcomes.append(
                decide_round(
                    entry.usable_depth,
                    self._plan.depth,
                    place.temperature,
                    entry.drafted,
                    entry.draft_counts,
                    normaliser.rows(start, stop),
                    shard0.rows(start, stop),
                    shard1.rows(start, stop),
                    _words(place, self._plan.depth, Purpose.ACCEPTANCE),
                    self._residual_words[start:stop],
                    self._target_words[start:stop],
                )
            )
        return outcomes

    def _all_words(self, purpose: Purpose) -> list[Words]:
        return [words for place in self._plan.entries for words in _words(place, self._rows, purpose)]


def _words(place: PlanEntry, rows: int, purpose: Purpose) -> list[Words]:
    return [draw_words(place.seed, place.request, place.position + row, purpose) for row in range(rows)]
