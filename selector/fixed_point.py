"""Softmax weights at temperature 0.7 in integer fixed point, the same bits on every backend.

One IEEE subtraction, one IEEE multiplication and one rounding turn a logit into an integer exponent; all that
follows is int64. No step can be fused or reordered, so numpy, a C loop and a GPU kernel agree bit for bit.
Must never call libm: the last bit of exp2 varies between platforms.

Error, in units of the greatest weight (2^38): exponent rounding ln2 * 2^-33, polynomial and its rounding
2^-33 + 2^-36, products 2^-38 each; together below 2^-31 relative, plus 2^-38 absolute for the final shift.
Source: DESIGN section 3, "Counts are bit-identical on every backend".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXPONENT_BITS",
    "EXPONENT_LIMIT",
    "EXPONENT_SCALE",
    "LN2_Q36",
    "WEIGHT_BITS",
    "WEIGHT_TABLE",
    "weights_of",
    "weights_of_exponents",
]

WEIGHT_BITS = 38
EXPONENT_SCALE = 2.060992915555662
"""log2(e) / 0.7 rounded to float64."""
LN2_Q36 = 47632711549
"""ln(2) * 2^36 rounded to the nearest integer."""

EXPONENT_BITS = 32
EXPONENT_LIMIT = 63.0
"""From an exponent of 39 on the weight is 0; clamping here keeps every shift below the word length."""

_TABLE_BITS = 8
_FINE_BITS = EXPONENT_BITS - _TABLE_BITS


def _rounded_power(index: int) -> int:
    # 2^(38 - index/256) to the nearest integer. floor(sqrt(floor(sqrt(n)))) is floor(n^(1/4)), so eight
    # integer square roots give the exact floor of the 256th root, here with one bit more than is kept.
    root = 1 << ((WEIGHT_BITS + 1) * 256 - index)
    for _ in range(_TABLE_BITS):
        root = math.isqrt(root)
    return (root + 1) >> 1


WEIGHT_TABLE: NDArray[np.int64] = np.array([_rounded_power(index) for index in range(1 << _TABLE_BITS)], dtype=np.int64)
WEIGHT_TABLE.setflags(write=False)


def weights_of(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return 2^38 * exp((logit - row maximum) / 0.7) in fixed point.

    logits: float32 (..., k), no NaN or +inf, each row with one finite value at least; -inf gives weight 0.
    Returns int64 (..., k), each in 0 .. 2^38; the greatest logit of a row has exactly 2^38.
    Source: DESIGN section 3.
    """
    wide = logits.astype(np.float64)
    distance = wide.max(axis=-1, keepdims=True) - wide
    exponent = np.minimum(distance * EXPONENT_SCALE, EXPONENT_LIMIT)
    return weights_of_exponents(np.rint(exponent * float(1 << EXPONENT_BITS)).astype(np.int64))


def weights_of_exponents(fixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 2^38 * 2^-(fixed / 2^32) in fixed point, int64 (...,). fixed: int64 (...,), each in 0 .. 63 * 2^32.

    Source: DESIGN section 3.
    """
    whole = fixed >> EXPONENT_BITS
    step = (fixed >> _FINE_BITS) & ((1 << _TABLE_BITS) - 1)
    coarse = WEIGHT_TABLE[step]
    loss = _one_minus_power(fixed & ((1 << _FINE_BITS) - 1))
    return np.asarray((coarse - ((coarse * loss) >> EXPONENT_BITS)) >> whole)


def _one_minus_power(fine: NDArray[np.int64]) -> NDArray[np.int64]:
    # 1 - 2^-g in Q32 for g = fine / 2^32 < 2^-8: z - z^2/2 + z^3/6 with z = g ln2 in Q38; the next term is
    # below 2^-38. Largest products: fine * LN2 < 2^60, z * z < 2^59, and coarse * loss < 2^62 in the caller.
    first = (fine * LN2_Q36) >> 30
    second = (first * first) >> 38
    third = (second * first) >> 38
    return np.asarray((first - (second >> 1) + third // 6 + 32) >> 6)
