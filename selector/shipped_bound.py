"""The proved distance between the law that verification emits and the target law, as exact fractions.

Write p for the real softmax of the row's logits, x_i = logit_i - maximum, S = sum of exp(x_i) >= 1, u = 2^-53, V for
the vocabulary size, and eps for the relative error of the shipped exponential.

The float64 law p'. The entropy of p is sum p_i |x_i| + ln S and at most ln V, so sum p_i |x_i| <= ln V.
  numerator    |x_i| u from the rounded subtraction, eps from the exponential: ln V u + eps, averaged over p
  sum          the same over both steps (token to shard maximum, shard maximum to row maximum): ln V u + 2 eps; two
               roundings of a limb sum, one of its scaling, one of the last addition: 4u; what the limbs cut: V 2^-90
  division     u
  cut tokens   what lies EXPONENT_LIMIT below a maximum has p_i < 2^-995, once in the numerator, once in the sum
so the L1 error e of p' is at most (2 ln V + 5) u + 3 eps + V 2^-90 + V 2^-994, times 1 + 2^-40 for products of errors.

The emitted law. A weight is within half a unit of 2^-63 of p', so weights err by f = e + V 2^-64 in L1.
  target-only  normalising at most doubles f in L1: f in total variation, plus the picks
  rejection    what is accepted errs by e + u in L1, and so does the chance of a rejection; the residual law, weighted
               by that chance, errs by 2f, plus the picks: together 2e + u + V 2^-64 in total variation, plus the picks
  no residual  then (p - q)+ itself is below f in L1, and emitting the draft's law errs by less than f
  picks        a token owns its share of the 2^64 draws to within one: V/2 2^-64 in total variation; choosing the
               shard: 2^-64, and u for two masses rounded to float64
Together at most 2e + 2u + (3V/2 + 1) 2^-64 a position.
Must never be loosened to fit: a change of the arithmetic changes a term here, and the tests hold each term.
Source: DESIGN section 3, "Acceptance"; Leviathan et al. 2023, appendix A.1.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from selector.target_exponential import EXPONENTIAL_ERROR, LIMB_BITS, MOST_TERMS

__all__ = ["TOTAL_VARIATION_AIM", "target_law_error", "total_variation_bound"]

TOTAL_VARIATION_AIM: Final = Fraction(1, 1 << 45)
"""What a position may cost at a vocabulary of 163,840."""

_ROUNDING = Fraction(1, 1 << 53)
_LN2_ABOVE = Fraction(6932, 10_000)


def target_law_error(vocabulary_size: int) -> Fraction:
    """Return the bound on the L1 distance between the float64 target law and the real softmax.

    vocabulary_size: 1 .. 2 * MOST_TERMS. Raises ValueError for another size. Source: the module docstring.
    """
    if not 1 <= vocabulary_size <= 2 * MOST_TERMS:
        raise ValueError(f"vocabulary_size is {vocabulary_size}, must be in 1 .. {2 * MOST_TERMS}")
    log_size = (vocabulary_size - 1).bit_length() * _LN2_ABOVE
    cut = vocabulary_size * (Fraction(1, 1 << 2 * LIMB_BITS) + Fraction(1, 1 << 994))
    first_order = (2 * log_size + 5) * _ROUNDING + 3 * EXPONENTIAL_ERROR + cut
    return first_order * (1 + Fraction(1, 1 << 40))


def total_variation_bound(vocabulary_size: int) -> Fraction:
    """Return the bound on the total variation between the emitted law of one position and the target law.

    vocabulary_size: 1 .. 2 * MOST_TERMS. Raises ValueError for another size. Source: the module docstring.
    """
    draws = 2 * _ROUNDING + (Fraction(3 * vocabulary_size, 2) + 1) / (1 << 64)
    return 2 * target_law_error(vocabulary_size) + draws
