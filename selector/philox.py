"""Counter-based random words: Philox4x32-10, keyed by what is drawn and never by when.

A draw is named by (seed, request, position, purpose); the same name always gives the same words, so a
permuted batch, another batch size, another slot or a repeated attempt changes nothing.
Must never hold state, read a clock or count how many draws happened.
Source: DESIGN section 3, "Randomness"; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Purpose", "Words", "draw24", "draw53", "draw64", "draw_words", "philox4x32", "request_key"]

Words = tuple[int, int, int, int]

_ROUNDS = 10
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK_32 = 0xFFFFFFFF


class Purpose(IntEnum):
    """What a draw is for; each purpose is its own stream. TARGET_ONLY also serves bonus and forced rejection."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    RESIDUAL = 3
    TARGET_ONLY = 4


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return Philox4x32-10 of every counter under its key.

    counter: uint32 (..., 4); key: uint32 (..., 2), leading shapes broadcast. Returns uint32 (..., 4).
    Raises ValueError when a last axis has another length. Source: Random123.
    """
    if counter.shape[-1:] != (4,) or key.shape[-1:] != (2,):
        raise ValueError(f"philox4x32 needs counters (..., 4) and keys (..., 2), got {counter.shape} and {key.shape}")
    mask, half = np.uint64(_MASK_32), np.uint64(32)
    word0, word1, word2, word3 = (counter[..., lane].astype(np.uint64) for lane in range(4))
    key0, key1 = (key[..., lane].astype(np.uint64) for lane in range(2))
    for _ in range(_ROUNDS):
        product0 = word0 * np.uint64(_MULTIPLIER_0)
        product1 = word2 * np.uint64(_MULTIPLIER_1)
        word0, word1, word2, word3 = (
            (product1 >> half) ^ word1 ^ key0,
            product1 & mask,
            (product0 >> half) ^ word3 ^ key1,
            product0 & mask,
        )
        key0 = (key0 + np.uint64(_WEYL_0)) & mask
        key1 = (key1 + np.uint64(_WEYL_1)) & mask
    return np.stack(np.broadcast_arrays(word0, word1, word2, word3), axis=-1).astype(np.uint32)


def request_key(request_digest: bytes, sample_index: int) -> int:
    """Return the 64-bit name of a registered request for the random streams.

    request_digest: any non-empty digest bytes (32 as registered); sample_index: 0 .. 2^64-1.
    Raises ValueError for an empty digest or an index out of range. Source: DESIGN section 3.
    """
    if not request_digest:
        raise ValueError("request_digest is empty; the registered request digest keys every draw")
    if not 0 <= sample_index < 1 << 64:
        raise ValueError(f"sample_index is {sample_index}, must be in 0 .. 2^64-1")
    message = request_digest + sample_index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, person=b"draw-request-key").digest(), "little")


def draw_words(seed: int, request_key: int, position: int, purpose: Purpose) -> Words:
    """Return the four 32-bit words of one named draw.

    seed, request_key: 64-bit unsigned; position: 0 .. 2^32-1, the absolute index of the token that is drawn.
    Counter = (request_key low, high, position, purpose), key = (seed low, high).
    Raises ValueError for a value out of range. Source: DESIGN section 3.
    """
    for name, value, bits in (("seed", seed, 64), ("request_key", request_key, 64), ("position", position, 32)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} is {value}, must be in 0 .. 2^{bits}-1")
    counter = (request_key & _MASK_32, request_key >> 32, position, int(Purpose(purpose)))
    return _block(counter, seed & _MASK_32, seed >> 32)


def draw24(words: Words) -> int:
    """Return the 24-bit proposal integer: the top bits of word 0. words: four 32-bit words. Range 0 .. 2^24-1."""
    return words[0] >> 8


def draw53(words: Words, lane: int) -> int:
    """Return a 53-bit integer from words 0, 1 (lane 0) or words 2, 3 (lane 1).

    words: four 32-bit words. Range 0 .. 2^53-1. Raises ValueError for another lane.
    """
    return draw64(words, lane) >> 11


def draw64(words: Words, lane: int) -> int:
    """Return a 64-bit integer from words 0, 1 (lane 0) or words 2, 3 (lane 1), the lower word index on top.

    words: four 32-bit words. Range 0 .. 2^64-1. Raises ValueError for another lane.
    """
    if lane not in (0, 1):
        raise ValueError(f"lane is {lane}, must be 0 or 1")
    return words[2 * lane] << 32 | words[2 * lane + 1]


def _block(counter: Words, key0: int, key1: int) -> Words:
    # One block in plain integers: ten times faster than the array form for the few draws of a round.
    word0, word1, word2, word3 = counter
    for _ in range(_ROUNDS):
        product0 = word0 * _MULTIPLIER_0
        product1 = word2 * _MULTIPLIER_1
        word0, word1, word2, word3 = (
            (product1 >> 32) ^ word1 ^ key0,
            product1 & _MASK_32,
            (product0 >> 32) ^ word3 ^ key1,
            product0 & _MASK_32,
        )
        key0 = (key0 + _WEYL_0) & _MASK_32
        key1 = (key1 + _WEYL_1) & _MASK_32
    return word0, word1, word2, word3
