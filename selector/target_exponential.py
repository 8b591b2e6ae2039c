"""The exponential of the target law and its sums, the same bits on every machine.

exp(x) for x <= 0 is 2^(steps/256) from a table, times a polynomial in what is left; every step is one IEEE addition or
multiplication in a written order, so numpy, a C loop and a GPU kernel that fuses nothing agree bit for bit. A sum is
taken over two integer limbs of each term, so its order does not matter: blocks and threads may add as they like.
Must never call libm: the last bit of exp varies between machines, and two ranks would then hold two laws.

Error. The reduced argument r is within 2^-63 + 2^-77 of x - steps * ln2/256, because steps * STEP_HIGH and its
subtraction are exact; |r| < 2^-9.5, so the polynomial leaves r^6/720 < 2^-66 and rounds by 2^-63 + 2^-72; its product
with the table and the sum with the table's low part round by 2^-62 each; all that is below 2^-60. The last sum rounds
by 2^-53 relative, and scaling is exact. Together below EXPONENTIAL_ERROR, relative. Arguments at or below
EXPONENT_LIMIT give 0; above it neither a value nor its quotient by a sum is subnormal.
Source: DESIGN section 3, "Acceptance"; Cody and Waite, "Software Manual for the Elementary Functions" (1980);
P. T. P. Tang, "Table-driven implementation of the exponential function" (ACM TOMS 1989).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXPONENTIAL_ERROR",
    "EXPONENT_BIAS",
    "EXPONENT_LIMIT",
    "LIMB_BITS",
    "MANTISSA_BITS",
    "MOST_TERMS",
    "POLYNOMIAL",
    "POWER_TABLE",
    "ROUNDING_SHIFT",
    "STEPS_PER_UNIT",
    "STEP_BITS",
    "STEP_HIGH",
    "STEP_LOW",
    "exponential",
    "limbs_of",
    "orderless_sum",
    "sum_of_limbs",
]

STEP_BITS: Final = 8
EXPONENT_LIMIT: Final = -690.0
STEPS_PER_UNIT: Final = float.fromhex("0x1.71547652b82fep+8")
"""256 / ln 2 rounded to float64."""
STEP_HIGH: Final = float.fromhex("0x1.62e42fefcp-9")
"""The first 35 bits of ln 2 / 256: times any number of steps (18 bits) it is exact."""
STEP_LOW: Final = float.fromhex("-0x1.c610ca86c3899p-45")
"""What STEP_HIGH leaves of ln 2 / 256, rounded to float64."""
ROUNDING_SHIFT: Final = 1.5 * 2.0**52
"""Added and taken away again it rounds to the nearest integer, ties to even."""
POLYNOMIAL: Final = (1 / 120, 1 / 24, 1 / 6, 1 / 2)
"""Of (exp(r) - 1 - r) / r^2, from the highest power down."""
EXPONENTIAL_ERROR: Final = Fraction(129, 128) / (1 << 53)
LIMB_BITS: Final = 45
"""A term in 0 .. 1 is cut into units of 2^-45 and of 2^-90."""
MOST_TERMS: Final = (1 << 18) - 1
"""More terms of 1 would not fit an int64 limb."""

EXPONENT_BIAS: Final = 1023
MANTISSA_BITS: Final = 52

_FRACTION_BITS = 160


def _power_table() -> NDArray[np.float64]:
    # 2^(j/256) is the product of the roots 2^(1/2), 2^(1/4) .. that the bits of j name, all with 160 fractional bits.
    one = 1 << _FRACTION_BITS
    powers = [one]
    root = one << 1
    for _ in range(STEP_BITS):
        root = math.isqrt(root << _FRACTION_BITS)
        powers = [value for power in powers for value in (power, power * root >> _FRACTION_BITS)]
    high = [power / one for power in powers]
    low = [(power - int(first * one)) / one for power, first in zip(powers, high, strict=True)]
    return np.array([high, low], dtype=np.float64)


POWER_TABLE: NDArray[np.float64] = _power_table()
"""float64 (2, 256): 2^(j/256) rounded, and what rounding took, rounded."""
POWER_TABLE.setflags(write=False)


def exponential(exponents: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp of every exponent, within EXPONENTIAL_ERROR, the same bits on every machine.

    exponents: float64 (...,), each <= 0; -inf and all at or below EXPONENT_LIMIT give 0, and so does NaN, which the
    caller refuses beforehand. Returns float64 (...,) in 0 .. 1; exp(0) is exactly 1. Source: the module docstring.
    """
    inside = exponents > EXPONENT_LIMIT
    reduced = np.where(inside, exponents, 0.0)
    steps = (reduced * STEPS_PER_UNIT + ROUNDING_SHIFT) - ROUNDING_SHIFT
    reduced = (reduced - steps * STEP_HIGH) - steps * STEP_LOW
    series = reduced * POLYNOMIAL[0] + POLYNOMIAL[1]
    for coefficient in POLYNOMIAL[2:]:
        series = reduced * series + coefficient
    series = reduced + (reduced * reduced) * series
    number = steps.astype(np.int64)
    place = number & ((1 << STEP_BITS) - 1)
    high = POWER_TABLE[0][place]
    scale = (((number >> STEP_BITS) + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float64)
    value = (high + (POWER_TABLE[1][place] + high * series)) * scale
    return np.asarray(np.where(inside, value, 0.0))


def limbs_of(terms: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the whole units of 2^-45 of every term, and the whole units of 2^-90 of what they leave.

    terms: float64 (...,), each in 0 .. 1. Returns int64 (...,) twice; both together fall short of the term by less
    than 2^-90.
    """
    scaled = terms * float(1 << LIMB_BITS)
    high = scaled.astype(np.int64)
    low = ((scaled - high.astype(np.float64)) * float(1 << LIMB_BITS)).astype(np.int64)
    return high, low


def sum_of_limbs(high: int, low: int) -> float:
    """Return high * 2^-45 + low * 2^-90 as a float64, within 2^-52 relative, the same bits for the same sums.

    high, low: sums of at most MOST_TERMS limbs each, 0 .. 2^63-1.
    """
    high += low >> LIMB_BITS
    low &= (1 << LIMB_BITS) - 1
    return float(high) * 0.5**LIMB_BITS + float(low) * 0.5 ** (2 * LIMB_BITS)


def orderless_sum(terms: NDArray[np.float64]) -> float:
    """Return the sum of terms (n,), the same bits in whatever order and grouping they come.

    terms: float64, each in 0 .. 1, n <= MOST_TERMS. Raises ValueError for more of them.
    """
    if len(terms) > MOST_TERMS:
        raise ValueError(f"{len(terms)} terms are to be added, {MOST_TERMS} fit the integer limbs of a sum")
    high, low = limbs_of(terms)
    return sum_of_limbs(int(high.sum()), int(low.sum()))
