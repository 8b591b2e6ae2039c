"""Float32 logits as integers in the same order, so that order of law is order of one integer.

The bits of a float, read as int32 with the magnitude of negatives turned round, sort as the numbers do. With the id
below it, one int64 key is greater exactly when a candidate comes first in order of law: logit descending, id ascending.
Must never tell -0.0 from 0.0, and never give a masked logit (-inf) a key that can be listed.
Source: DESIGN section 3, "Draft law"; IEEE 754 totalOrder.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ID_MASK",
    "LEAST_ORDERED",
    "MASKED_KEY",
    "MASKED_ORDERED",
    "POISON_ORDERED",
    "candidate_keys",
    "keys_to_candidates",
    "ordered_bits",
    "poisoned_bits",
]

POISON_ORDERED: Final = 0x7F800000
"""Ordered bits of +inf; every positive NaN lies above."""
MASKED_ORDERED: Final = -0x7F800001
"""Ordered bits of -inf; every negative NaN lies below."""
LEAST_ORDERED: Final = -0x7F800000
"""Ordered bits of the least finite float32."""
ID_MASK: Final = 0xFFFFFFFF
MASKED_KEY: Final = -(1 << 63)
"""Stands for "no candidate"; below every candidate's key."""

_NEGATIVE_ZERO: Final = -(1 << 31)


def ordered_bits(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return int32 (...,) in the order of the logits (...,): greater logit, greater integer; -0.0 as 0.0.

    NaN lies above POISON_ORDERED or below MASKED_ORDERED. Source: IEEE 754 totalOrder.
    """
    # In integers alone: float arithmetic would raise a signal for some NaNs, and may flush denormals to zero.
    bits = logits.view(np.int32)
    ordered = np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))
    return np.where(bits == _NEGATIVE_ZERO, np.int32(0), ordered)


def poisoned_bits(ordered: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which ordered bits are those of NaN or +inf. ordered: int32 (...,)."""
    return (ordered >= POISON_ORDERED) | (ordered < MASKED_ORDERED)


def candidate_keys(logits: NDArray[np.float32], token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 (...,) keys: ordered bits above, bitwise complement of the id below; -inf gives MASKED_KEY.

    token_ids: 0 .. 2^31-1. NaN and +inf must have been refused before.
    """
    ordered = ordered_bits(logits)
    keys = (ordered.astype(np.int64) << 32) | (ID_MASK - token_ids)
    return np.where(ordered == MASKED_ORDERED, np.int64(MASKED_KEY), keys)


def keys_to_candidates(keys: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return token ids int32 and logits float32 of keys (n,), those equal to MASKED_KEY left out, order kept."""
    kept = keys[keys != MASKED_KEY]
    ordered = (kept >> 32).astype(np.int32)
    bits = np.where(ordered >= 0, ordered, ordered ^ np.int32(0x7FFFFFFF))
    return (ID_MASK - (kept & ID_MASK)).astype(np.int32), bits.view(np.float32)
