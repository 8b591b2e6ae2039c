"""The target law's arithmetic as device functions: exponential, sums in limbs, merged rows, masses.

Every function gives the bits of its numpy namesake; kernels that call them must be launched with
enable_fp_fusion=False, because a fused multiplication and addition rounds once where the law rounds twice.
Must never call a floating-point library function and never add floats in an order that a launch decides.
Source: selector/target_exponential.py, target_statistics.py, target_masses.py.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from selector.target_exponential import (
    EXPONENT_LIMIT,
    POLYNOMIAL,
    STEP_HIGH,
    STEP_LOW,
    STEPS_PER_UNIT,
)

__all__ = [
    "CANONICAL_NAN_BITS",
    "MASS_SCALE",
    "MASS_UNIT",
    "exponential",
    "finite",
    "high_limb",
    "logits_as_float64",
    "low_limb",
    "mass_of_probability",
    "merged_scale",
    "merged_sum",
    "sum_of_limbs",
]

CANONICAL_NAN_BITS: Final = tl.constexpr(0x7FF8000000000000)
"""The bits of numpy's nan."""
MASS_SCALE: Final = tl.constexpr(2.0**63)
MASS_UNIT: Final = tl.constexpr(2.0**-63)

_LIMIT: Final = tl.constexpr(EXPONENT_LIMIT)
_STEPS_PER_UNIT: Final = tl.constexpr(STEPS_PER_UNIT)
_STEP_HIGH: Final = tl.constexpr(STEP_HIGH)
_STEP_LOW: Final = tl.constexpr(STEP_LOW)
_FIFTH: Final = tl.constexpr(POLYNOMIAL[0])
_FOURTH: Final = tl.constexpr(POLYNOMIAL[1])
_THIRD: Final = tl.constexpr(POLYNOMIAL[2])
_SECOND: Final = tl.constexpr(POLYNOMIAL[3])
_ROUNDING: Final = tl.constexpr(1.5 * 2.0**52)
_ROUNDING_BITS: Final = tl.constexpr(0x4338000000000000)
_LIMB_SCALE: Final = tl.constexpr(2.0**45)
_LIMB_UNIT: Final = tl.constexpr(2.0**-45)
_LOW_UNIT: Final = tl.constexpr(2.0**-90)
_WHOLE: Final = tl.constexpr(2.0**52)
_INFINITY: Final = tl.constexpr(float("inf"))


@triton.jit
def logits_as_float64(logits):
    """Return float64 of float32 or bfloat16 logits, exactly, -0.0 as 0.0."""
    if logits.dtype == tl.bfloat16:
        # The bits of a bfloat16 are the upper half of a float32's; no conversion that might flush a denormal.
        logits = (logits.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return logits.to(tl.float64) + 0.0


@triton.jit
def exponential(exponents, table_ptr):
    """Return float64 exp of float64 exponents <= 0; table_ptr: 512 float64, POWER_TABLE row by row."""
    inside = exponents > _LIMIT
    reduced = tl.where(inside, exponents, 0.0)
    shifted = reduced * _STEPS_PER_UNIT + _ROUNDING
    steps = shifted - _ROUNDING
    number = shifted.to(tl.int64, bitcast=True) - _ROUNDING_BITS
    reduced = (reduced - steps * _STEP_HIGH) - steps * _STEP_LOW
    series = reduced * _FIFTH + _FOURTH
    series = reduced * series + _THIRD
    series = reduced * series + _SECOND
    series = reduced + (reduced * reduced) * series
    place = (number & 0xFF).to(tl.int32)
    high = tl.load(table_ptr + place)
    low = tl.load(table_ptr + 256 + place)
    scale = (((number >> 8) + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(inside, (high + (low + high * series)) * scale, 0.0)


@triton.jit
def high_limb(terms):
    """Return the int64 whole units of 2^-45 of float64 terms in 0 .. 1."""
    return (terms * _LIMB_SCALE).to(tl.int64)


@triton.jit
def low_limb(terms, high):
    """Return the int64 whole units of 2^-90 that the high limbs leave of float64 terms."""
    return ((terms * _LIMB_SCALE - high.to(tl.float64)) * _LIMB_SCALE).to(tl.int64)


@triton.jit
def sum_of_limbs(high, low):
    """Return the float64 of int64 limb sums."""
    carried = high + (low >> 45)
    left = low & ((1 << 45) - 1)
    return carried.to(tl.float64) * _LIMB_UNIT + left.to(tl.float64) * _LOW_UNIT


@triton.jit
def finite(values):
    """Return which float64 values are neither infinite nor NaN."""
    return (values < _INFINITY) & (values > -_INFINITY)


@triton.jit
def merged_scale(maximum0, poisoned0, maximum1, poisoned1):
    """Return (maximum, valid) of rows from both shards' maxima and poison flags, all float64."""
    maximum = tl.where(maximum0 > maximum1, maximum0, maximum1)
    told = (maximum0 == maximum0) & (maximum1 == maximum1)
    return maximum, told & (poisoned0 == 0.0) & (poisoned1 == 0.0) & finite(maximum)


@triton.jit
def merged_sum(maximum0, sum0, maximum1, sum1, maximum, valid, table_ptr):
    """Return the float64 sum of exponentials of rows from both shards, 1 for an invalid row.

    maximum: the merged maximum, 0 for an invalid row, which keeps the arithmetic free of inf - inf.
    """
    part0 = tl.where(valid, sum0 * exponential(maximum0 - maximum, table_ptr), 1.0)
    part1 = tl.where(valid, sum1 * exponential(maximum1 - maximum, table_ptr), 0.0)
    return part0 + part1


@triton.jit
def mass_of_probability(probabilities):
    """Return uint64 units of 2^-63 of float64 probabilities in 0 .. 1, rounded to nearest, ties to even."""
    scaled = probabilities * MASS_SCALE
    # Above 2^52 a float64 is an integer already; below, adding 2^52 leaves no bits after the point.
    rounded = tl.where(scaled < _WHOLE, (scaled + _WHOLE) - _WHOLE, scaled)
    return rounded.to(tl.uint64)
