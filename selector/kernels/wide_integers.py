"""Comparisons and products wider than 64 bits as device functions, and draws of 53 and 64 bits.

An acceptance compares 53-bit draw * 25-bit count with a float64; a pick needs the upper half of a 64-bit product.
Both are done in exact integers, so no rounding decides a token.
Must never pass through floating point. Source: DESIGN section 3, "Acceptance"; selector/acceptance.py, philox.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["draw64", "first_shard_picked", "less_than", "multiply_high", "product_below_probability"]


@triton.jit
def multiply_high(left, right):
    """Return the upper 64 bits of the 128-bit product of uint64 values."""
    return tl.umulhi(left, right)


@triton.jit
def less_than(left_high, left_low, right_high, right_low):
    """Return whether left < right, both 128 bits as two uint64."""
    return (left_high < right_high) | ((left_high == right_high) & (left_low < right_low))


@triton.jit
def draw64(upper_word, lower_word):
    """Return the uint64 draw of two uint32 words, the first on top."""
    return (upper_word.to(tl.uint64) << 32) | lower_word.to(tl.uint64)


@triton.jit
def product_below_probability(draw53, counts, probabilities):
    """Return whether draw * count * 2^-77 < p, strictly and exactly.

    draw53: uint64 0 .. 2^53-1; counts: uint64 0 .. 2^24; probabilities: float64 0 .. 1, at their exact value.
    """
    bits = probabilities.to(tl.uint64, bitcast=True)
    field = (bits >> 52).to(tl.int32) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    mantissa = tl.where(field == 0, fraction, fraction | (1 << 52))
    # p * 2^77 = mantissa * 2^shift; p <= 1 gives shift <= 25. The clamps keep unread lanes below the word length.
    shift = tl.where(field == 0, 1, field) - 1075 + 77
    up = tl.minimum(tl.maximum(shift, 0), 25).to(tl.uint64)
    down = tl.minimum(tl.maximum(-shift, 0), 63).to(tl.uint64)
    # For an integer a: a < m / 2^d just when a < ceil(m / 2^d).
    one = tl.zeros_like(mantissa) + 1
    ceiling = (mantissa + ((one << down) - 1)) >> down
    high = (mantissa >> 1) >> (63 - up)
    low = mantissa << up
    falls = shift < 0
    bound_high = tl.where(falls, tl.zeros_like(high), high)
    bound_low = tl.where(falls, ceiling, low)
    return less_than(multiply_high(draw53, counts), draw53 * counts, bound_high, bound_low)


@triton.jit
def first_shard_picked(draw, units0, units1):
    """Return whether a 64-bit draw picks shard 0: draw * (units0 + units1) < units0 * 2^64, exactly. All uint64."""
    total = units0 + units1
    # A total beyond 64 bits adds draw * 2^64; when that sum wraps it is above units0 in any case.
    carried = total < units0
    product = multiply_high(draw, total)
    lifted = product + draw
    return tl.where(carried, (lifted >= draw) & (lifted < units0), product < units0)
