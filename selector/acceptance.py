"""Acceptance: which drafts of a round stand, and the one token that follows them.

Standard rejection with the draft's own counts. Draft x stands iff u * q(x) < p(x), strictly; the first that falls is
replaced by a draw from (p - q)+; when all usable drafts stand, one token is drawn from p (bonus, forced rejection and
target-only alike). At temperature 0 a draft stands iff it is the argmax, and the argmax is emitted.

The emitted law of a position is within total_variation_bound(V) of the real softmax in total variation, below 2^-45 for
V = 163,840; selector/shipped_bound.py derives it term by term: the exponential, its sums, the division, the weights in
units of 2^-63, and the draws.

Must never recompute a softmax of the draft, clamp a count, or let a bad row raise: a target row without a law ends the
request as a value, a count of 0 under a drafted token is proof of an earlier failure and raises.
Source: DESIGN section 3, "Acceptance"; Leviathan et al. 2023, appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from selector.draft_law import GRID, GRID_BITS, DraftCounts
from selector.philox import Words, draw53
from selector.target_masses import (
    ShardMasses,
    masses_of_probabilities,
    pick_shard_token,
    shard_masses,
    target_probabilities,
)
from selector.target_statistics import NO_TOKEN, RowNormaliser, ShardStatistics, combine_statistics, shard_statistics

__all__ = [
    "ACCEPTANCE_DRAW_BITS",
    "Q_X_MISMATCH",
    "ProofOfFailure",
    "RoundOutcome",
    "RowNormaliser",
    "ShardMasses",
    "ShardStatistics",
    "accepts",
    "combine_statistics",
    "decide_round",
    "masses_of_probabilities",
    "shard_masses",
    "shard_statistics",
    "target_probabilities",
]

ACCEPTANCE_DRAW_BITS = 53
Q_X_MISMATCH: Final = "q_x_mismatch"


class ProofOfFailure(RuntimeError):
    """An earlier check must have failed: nothing of this round may be released and the epoch ends."""

    def __init__(self, reason: str, detail: str) -> None:
        """Keep the reason code beside the sentence. reason: a short code, such as q_x_mismatch."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a round emits: token_ids are the accepted drafts and one token more.

    forced: all usable drafts stood but not all were usable, so the last token is a forced rejection's.
    invalid_row: index of the first target row reached that has no law, else None; then token_ids holds only what
    precedes that row and the request must end.
    """

    accepted: int
    token_ids: tuple[int, ...]
    forced: bool
    invalid_row: int | None


def accepts(draw: int, draw_bits: int, count: int, target_prob: float) -> bool:
    """Return whether u * q < p, strictly, in exact integers; u = draw / 2^draw_bits, q = count / 2^24, p = target_prob.

    draw: 0 .. 2^draw_bits-1; count: 1 .. 2^24; target_prob: float64 in 0 .. 1, taken at its exact value. p = 0 never
    stands. Of all draws just min(2^draw_bits, ceil(2^draw_bits * p / q)) stand, so the chance of standing is within
    2^-draw_bits above min(1, p / q), and the emitted law within 2^-45 of p a position (selector/shipped_bound.py).
    Raises ProofOfFailure for count 0, ValueError for another value out of range. Source: DESIGN section 3.
    """
    if not 0 <= draw < 1 << draw_bits:
        raise ValueError(f"draw is {draw}, must be in 0 .. 2^{draw_bits}-1")
    if not 0.0 <= target_prob <= 1.0:
        raise ValueError(f"target_prob is {target_prob}, must be in 0 .. 1")
    if not 0 <= count <= GRID:
        raise ValueError(f"count is {count}, must be in 0 .. 2^{GRID_BITS}")
    if count == 0:
        raise ProofOfFailure(Q_X_MISMATCH, "a drafted token has count 0 in the law that it was drawn from")
    numerator, denominator = target_prob.as_integer_ratio()
    return draw * count * denominator < numerator << (draw_bits + GRID_BITS)


def decide_round(
    usable_depth: int,
    depth: int,
    temperature: int,
    drafted: Sequence[int],
    draft_counts: Sequence[DraftCounts | None],
    normaliser: RowNormaliser,
    masses0: ShardMasses,
    masses1: ShardMasses,
    acceptance_words: Sequence[Words],
    residual_words: Sequence[Words],
    target_words: Sequence[Words],
) -> RoundOutcome:
    """Return what one request emits in a round.

    Rows are the depth+1 target rows of one request; row j verifies drafted[j]. usable_depth: 0 .. depth drafts are
    verified; drafted and draft_counts need that many entries. temperature: 0 or 1. normaliser and masses: depth+1
    rows. acceptance_words need usable_depth entries, residual_words and target_words one a row that can be reached.
    Raises ProofOfFailure (q_x_mismatch) when any verified draft has count 0, ValueError for a value out of range.
    Source: DESIGN sections 3 and 4.
    """
    if not 0 <= usable_depth <= depth or temperature not in (0, 1) or len(normaliser.valid) != depth + 1:
        raise ValueError(
            f"usable_depth {usable_depth}, depth {depth}, temperature {temperature}, {len(normaliser.valid)} rows: "
            "needs 0 <= usable_depth <= depth, temperature 0 or 1, depth+1 rows"
        )
    counts = [_verified_count(row, drafted[row], draft_counts[row]) for row in range(usable_depth)]
    for row in range(usable_depth):
        if not normaliser.valid[row]:
            return _ended(drafted, row)
        if temperature == 0:
            replacement = int(normaliser.argmax_id[row])
            stands = replacement == drafted[row]
        else:
            draw = draw53(acceptance_words[row], 0)
            stands = accepts(draw, ACCEPTANCE_DRAW_BITS, counts[row], float(normaliser.draft_probability[row]))
            if not stands:
                picked = _pick_residual(masses0, masses1, row, residual_words[row])
                # No residual mass: p and q are equal to the last bit and the rejection is pure rounding, so x stands.
                stands, replacement = picked is None, NO_TOKEN if picked is None else picked
        if not stands:
            return RoundOutcome(row, (*drafted[:row], replacement), forced=False, invalid_row=None)
    if not normaliser.valid[usable_depth]:
        return _ended(drafted, usable_depth)
    last = (
        int(normaliser.argmax_id[usable_depth])
        if temperature == 0
        else _pick_target(masses0, masses1, usable_depth, target_words[usable_depth])
    )
    return RoundOutcome(usable_depth, (*drafted[:usable_depth], last), usable_depth < depth, invalid_row=None)


def _verified_count(row: int, token_id: int, law: DraftCounts | None) -> int:
    if law is None:
        raise ValueError(f"row {row} is to be verified but has no draft law; usable_depth must end before it")
    count = law.count_of(token_id)
    if count == 0:
        raise ProofOfFailure(
            Q_X_MISMATCH, f"row {row} drafted token {token_id}, which has count 0 in the law that it was drawn from"
        )
    return count


def _ended(drafted: Sequence[int], row: int) -> RoundOutcome:
    return RoundOutcome(row, tuple(drafted[:row]), forced=False, invalid_row=row)


def _pick_residual(masses0: ShardMasses, masses1: ShardMasses, row: int, words: Words) -> int | None:
    return pick_shard_token(
        float(masses0.residual_mass[row]),
        int(masses0.residual_token[row]),
        float(masses1.residual_mass[row]),
        int(masses1.residual_token[row]),
        words,
    )


def _pick_target(masses0: ShardMasses, masses1: ShardMasses, row: int, words: Words) -> int:
    token = pick_shard_token(
        float(masses0.target_mass[row]),
        int(masses0.target_token[row]),
        float(masses1.target_mass[row]),
        int(masses1.target_token[row]),
        words,
    )
    if token is None:
        raise ValueError(f"row {row} is valid but both shards report a target mass of 0; masses and rows do not match")
    return token
