"""The 64-bit digest of a draft law and the token drawn from it, in a form that every lane computes by itself.

Each candidate becomes one word (place, id, count); a bijection scrambles the word; the sum over candidates needs no
order, so a GPU block, a C loop and numpy give the same bits. A change of any one candidate, of the token, of the number
of candidates or of the law always changes the digest; any other change goes unseen with a chance of 2^-64. It protects
against faults, not against an adversary.
Must never be computed from anything but the very counts that are drawn from or accepted with.
Source: DESIGN section 4, "Two checks, not one"; the bijection is the finaliser of SplitMix64 (Steele et al. 2014).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from selector.draft_law import DraftCounts
from selector.law_ids import law_number

__all__ = [
    "ID_SHIFT",
    "MIX_MULTIPLIERS",
    "MIX_SHIFTS",
    "NUMBER_SHIFT",
    "PLACE_SHIFT",
    "TOKEN_MARK",
    "counts_digest",
    "mix64",
]

ID_SHIFT: Final = 25
"""A count needs 25 bits, 0 .. 2^24."""
PLACE_SHIFT: Final = 56
"""A token id needs 31 bits; the candidate's place in order of law stands above both."""
NUMBER_SHIFT: Final = 32
TOKEN_MARK: Final = 1 << 63
"""Set in the word of the drafted token only, so that no candidate's word equals it."""
MIX_SHIFTS: Final = (30, 27, 31)
MIX_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the words scrambled one by one, a bijection on 64 bits. words: uint64 (...,). Source: SplitMix64."""
    first, second, third = (np.uint64(shift) for shift in MIX_SHIFTS)
    words = (words ^ (words >> first)) * np.uint64(MIX_MULTIPLIERS[0])
    words = (words ^ (words >> second)) * np.uint64(MIX_MULTIPLIERS[1])
    return np.asarray(words ^ (words >> third))


def counts_digest(draft_counts: DraftCounts, drafted_token: int, law_id: str) -> int:
    """Return the 64-bit digest of a law's counts and the token drafted from them.

    With candidates i = 0 .. k-1: mix64(sum of mix64(i << 56 | id_i << 25 | count_i) + mix64(2^63 | k << 32 | token) +
    law_number(law_id)), all modulo 2^64. drafted_token: -2^31 .. 2^31-1, its 32 bits are taken.
    Raises ValueError for a token out of range. Source: DESIGN section 4, "Two checks, not one".
    """
    if not -(1 << 31) <= drafted_token < 1 << 31:
        raise ValueError(f"drafted_token is {drafted_token}, must be in -2^31 .. 2^31-1")
    number = len(draft_counts.token_ids)
    words = np.arange(number, dtype=np.uint64) << np.uint64(PLACE_SHIFT)
    words |= draft_counts.token_ids.astype(np.uint64) << np.uint64(ID_SHIFT)
    words |= draft_counts.counts.astype(np.uint64)
    token_word = np.array([TOKEN_MARK | number << NUMBER_SHIFT | (drafted_token & 0xFFFFFFFF)], dtype=np.uint64)
    total = mix64(words).sum(dtype=np.uint64) + mix64(token_word) + np.uint64(law_number(law_id))
    return int(mix64(total)[0])
