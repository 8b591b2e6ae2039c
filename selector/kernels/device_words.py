"""The selector's integer arithmetic as device functions: keys, weights, counts, draws and digests.

Every function gives the bits of its numpy namesake, in Triton's interpreter and compiled. Kernels that call them must
be launched with enable_fp_fusion=False. A weight needs one float64 subtraction, one multiplication and one rounding;
all else is integer, so no last bit hangs on a library, a flushed denormal or the order of a sum.
Must never call a floating-point library function and never keep a draw: a draw is its name.
Source: DESIGN section 3; selector/logit_keys.py, fixed_point.py, draft_law.py, philox.py and law_digest.py.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

__all__ = [
    "candidate_keys",
    "counts_of_weights",
    "digest_of",
    "exponents_of",
    "logits_of_keys",
    "mix64",
    "ordered_bits",
    "philox_words",
    "pick_place",
    "poisoned_bits",
    "token_ids_of_keys",
    "weight_of_exponent",
    "weights_of_keys",
]

MASKED_KEY: Final = tl.constexpr(-(1 << 63))
MASKED_ORDERED: Final = tl.constexpr(-0x7F800001)
POISON_ORDERED: Final = tl.constexpr(0x7F800000)
GRID_BITS: Final = tl.constexpr(24)
GRID: Final = tl.constexpr(1 << 24)
_ID_MASK: Final = tl.constexpr(0xFFFFFFFF)
_MAGNITUDE: Final = tl.constexpr(0x7FFFFFFF)

_PHILOX_0: Final = tl.constexpr(0xD2511F53)
_PHILOX_1: Final = tl.constexpr(0xCD9E8D57)
_WEYL_0: Final = tl.constexpr(0x9E3779B9)
_WEYL_1: Final = tl.constexpr(0xBB67AE85)
_MIX_0: Final = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_1: Final = tl.constexpr(0x94D049BB133111EB)
_TOKEN_MARK: Final = tl.constexpr(1 << 63)

_EXPONENT_SCALE: Final = tl.constexpr(2.060992915555662)
_EXPONENT_LIMIT: Final = tl.constexpr(63.0)
_EXPONENT_UNIT: Final = tl.constexpr(4294967296.0)
_LN2_Q36: Final = tl.constexpr(47632711549)
# Adding 1.5 * 2^52 leaves no bits below one, so the addition itself rounds to the nearest integer, ties to even;
# the integer is then the difference of the two bit patterns. Holds for |x| < 2^51.
_ROUNDING: Final = tl.constexpr(6755399441055744.0)
_ROUNDING_BITS: Final = tl.constexpr(0x4338000000000000)


@triton.jit
def ordered_bits(logits):
    """Return int32 bits of float32 or bfloat16 logits in their order; -0.0 as 0.0, every NaN beyond the infinities."""
    # Integers only: no addition that might flush a denormal or renormalise a NaN.
    if logits.dtype == tl.bfloat16:
        bits = logits.to(tl.int16, bitcast=True).to(tl.int32) << 16
    else:
        bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    # -0.0 alone turns into -1.
    return tl.where(ordered == -1, 0, ordered)


@triton.jit
def poisoned_bits(ordered):
    """Return which ordered bits are those of NaN or +inf."""
    return (ordered >= POISON_ORDERED) | (ordered < MASKED_ORDERED)


@triton.jit
def candidate_keys(ordered, token_ids):
    """Return int64 keys of int32 ordered bits and token ids 0 .. 2^31-1; -inf and below give MASKED_KEY."""
    keys = (ordered.to(tl.int64) << 32) | (token_ids.to(tl.int64) ^ _ID_MASK)
    return tl.where(ordered <= MASKED_ORDERED, MASKED_KEY, keys)


@triton.jit
def token_ids_of_keys(keys):
    """Return the int32 token ids of int64 keys that are not MASKED_KEY."""
    return ((keys & _ID_MASK) ^ _ID_MASK).to(tl.int32)


@triton.jit
def logits_of_keys(keys):
    """Return the float32 logits of int64 keys that are not MASKED_KEY."""
    ordered = (keys >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit
def exponents_of(distances):
    """Return the Q32 int64 exponents of float64 distances below the row's greatest logit, each >= 0 and finite."""
    scaled = tl.minimum(distances * _EXPONENT_SCALE, _EXPONENT_LIMIT) * _EXPONENT_UNIT
    return (scaled + _ROUNDING).to(tl.int64, bitcast=True) - _ROUNDING_BITS


@triton.jit
def weight_of_exponent(fixed, table_ptr):
    """Return 2^38 * 2^-(fixed / 2^32) as int64. fixed: int64, 0 .. 63 * 2^32; table_ptr: 256 int64, WEIGHT_TABLE."""
    coarse = tl.load(table_ptr + ((fixed >> 24) & 0xFF))
    first = ((fixed & 0xFFFFFF) * _LN2_Q36) >> 30
    second = (first * first) >> 38
    third = (second * first) >> 38
    # third is below 2^22, where a 32-bit division gives the same quotient.
    loss = (first - (second >> 1) + (third.to(tl.uint32) // 6).to(tl.int64) + 32) >> 6
    return (coarse - ((coarse * loss) >> 32)) >> (fixed >> 32)


@triton.jit
def weights_of_keys(keys, greatest_key, table_ptr):
    """Return the int64 weights of int64 keys, 0 for MASKED_KEY; greatest_key: the row's first, not masked."""
    listed = keys != MASKED_KEY
    logits = logits_of_keys(tl.where(listed, keys, greatest_key)).to(tl.float64)
    distances = logits_of_keys(greatest_key).to(tl.float64) - logits
    weights = weight_of_exponent(exponents_of(distances), table_ptr)
    return tl.where(listed, weights, 0)


@triton.jit
def counts_of_weights(weights):
    """Return int64 counts (n,) that sum to 2^24 of int64 weights (n,), 0 .. 2^38, n <= 32, place 0 the greatest."""
    total = tl.sum(weights, 0).to(tl.uint64)
    counts = ((weights.to(tl.uint64) << GRID_BITS) // total).to(tl.int64)
    places = tl.arange(0, weights.shape[0])
    return counts + tl.where(places == 0, GRID - tl.sum(counts, 0), 0)


@triton.jit
def pick_place(counts, draw24):
    """Return the int32 place of the first cumulative count that exceeds the draw, 0 .. 2^24-1. counts: int64 (n,)."""
    return tl.sum((tl.cumsum(counts, 0) <= draw24).to(tl.int32), 0)


@triton.jit
def philox_words(seed, request, position, purpose):
    """Return the four uint32 words of the draw named (seed, request, position, purpose).

    seed, request: 64 bits as int64 or uint64; position: 0 .. 2^32-1 as int64; purpose: a Purpose.
    """
    word0 = request.to(tl.uint32)
    word1 = (request.to(tl.uint64) >> 32).to(tl.uint32)
    word2 = position.to(tl.uint32)
    word3 = (tl.zeros_like(word0) + purpose).to(tl.uint32)
    key0 = seed.to(tl.uint32)
    key1 = (seed.to(tl.uint64) >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        product0 = word0.to(tl.uint64) * _PHILOX_0
        product1 = word2.to(tl.uint64) * _PHILOX_1
        word0 = (product1 >> 32).to(tl.uint32) ^ word1 ^ key0
        word1 = product1.to(tl.uint32)
        word2 = (product0 >> 32).to(tl.uint32) ^ word3 ^ key1
        word3 = product0.to(tl.uint32)
        key0 += _WEYL_0
        key1 += _WEYL_1
    return word0, word1, word2, word3


@triton.jit
def mix64(words):
    """Return uint64 words scrambled one by one: the finaliser of SplitMix64."""
    words = (words ^ (words >> 30)) * _MIX_0
    words = (words ^ (words >> 27)) * _MIX_1
    return words ^ (words >> 31)


@triton.jit
def digest_of(token_ids, counts, number, token, law_number):
    """Return the uint64 digest of a law and its drafted token.

    token_ids: int32 (n,); counts: int64 (n,); only the first `number` places count; token: int32; law_number: 64 bits.
    """
    places = tl.arange(0, token_ids.shape[0])
    words = (places.to(tl.uint64) << 56) | (token_ids.to(tl.uint64) << 25) | counts.to(tl.uint64)
    mixed = tl.where(places < number, mix64(words), 0)
    token_word = (number.to(tl.uint64) << 32) | token.to(tl.uint32).to(tl.uint64) | _TOKEN_MARK
    return mix64(tl.sum(mixed, 0) + mix64(token_word) + law_number.to(tl.uint64))
