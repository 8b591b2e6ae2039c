"""The 32 greatest logits of many rows of one shard, in one pass over memory, as the bytes that ranks exchange.

Rows that are laid out against the lanes of selection_kernels.py (all great logits 64 apart) cost more time and give
the same bytes. Must never raise for bad logits and never compare them as floats.
Source: DESIGN section 3, "Draft law"; selector/candidates.py is the naive reference.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from selector.candidates import TOP_K, ShardCandidates
from selector.compiled.selection_kernels import rows_kernel
from selector.logit_keys import ID_MASK, MASKED_KEY

__all__ = [
    "CANDIDATE_WORDS",
    "FLAG_POISONED",
    "candidates_of_words",
    "empty_candidates",
    "logit_bits",
    "select_rows",
    "shard_candidates_rows",
]

CANDIDATE_WORDS: Final = TOP_K + 1
"""32 keys in descending order, then the flags word."""
FLAG_POISONED: Final = 1
ROWS_AXES: Final = 2
ID_LIMIT: Final = 1 << 31
_WORD: Final = np.dtype(np.int64)
_BITS_OF: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    np.dtype(np.float32): np.dtype(np.int32),
    np.dtype(np.uint16): np.dtype(np.int16),
}


def empty_candidates(rows: int) -> NDArray[np.int64]:
    """Return room for the exchanged words of `rows` rows: int64 (rows, 33), not filled. rows: >= 0."""
    return np.empty((rows, CANDIDATE_WORDS), dtype=np.int64)


def logit_bits(logits: NDArray[np.float32] | NDArray[np.uint16]) -> NDArray[np.int32] | NDArray[np.int16]:
    """Return the same bytes as signed integers.

    logits: float32 (rows, n), or uint16 (rows, n) with the bits of bfloat16; n >= 1. Rows that do not lie one after
    the other in memory are copied. Raises ValueError for another shape or dtype.
    """
    kind = _BITS_OF.get(logits.dtype)
    if kind is None or logits.ndim != ROWS_AXES or not logits.shape[1]:
        raise ValueError(
            f"logits are {logits.dtype} {logits.shape}, must be float32 (or uint16, the bits of bfloat16) "
            "(rows, n) with n >= 1"
        )
    bits: NDArray[np.int32] | NDArray[np.int16] = np.ascontiguousarray(logits).view(kind)
    return bits


def select_rows(
    logits: NDArray[np.float32] | NDArray[np.uint16], first_token_id: int, words: NDArray[np.int64]
) -> None:
    """Write the exchanged words of one shard for every row.

    logits: float32 (rows, n), or uint16 (rows, n) with the bits of bfloat16, n >= 1; first_token_id: global id of
    column 0, first_token_id + n <= 2^31. words: int64 (rows, 33), contiguous: 32 keys in descending order (masked where
    there is no candidate), then flags: 1 when the row holds NaN or +inf (all keys masked then), else 0.
    Raises ValueError for another shape, dtype or range. Source: DESIGN section 3.
    """
    bits = logit_bits(logits)
    rows, width = bits.shape
    if not 0 <= first_token_id <= ID_LIMIT - width:
        raise ValueError(f"first_token_id is {first_token_id} with {width} columns, ids must be in 0 .. 2^31-1")
    if words.shape != (rows, CANDIDATE_WORDS) or words.dtype != _WORD or not words.flags.c_contiguous:
        raise ValueError(f"words are {words.dtype} {words.shape}, must be contiguous int64 ({rows}, 33)")
    rows_kernel(bits, first_token_id, words)


def candidates_of_words(words: NDArray[np.int64]) -> list[ShardCandidates]:
    """Return every row's exchanged words as candidates, whose arrays are views of two arrays of all rows.

    words: int64 (rows, 33), masked keys only behind the others. Raises ValueError for another shape.
    """
    if words.ndim != ROWS_AXES or words.shape[1] != CANDIDATE_WORDS:
        raise ValueError(f"words have shape {words.shape}, must be (rows, 33)")
    keys = words[:, :TOP_K]
    ordered = (keys >> 32).astype(np.int32)
    logits = np.where(ordered >= 0, ordered, ordered ^ np.int32(0x7FFFFFFF)).view(np.float32)
    token_ids = (ID_MASK - (keys & ID_MASK)).astype(np.int32)
    numbers = (keys != MASKED_KEY).sum(axis=1).tolist()
    poisoned = (words[:, TOP_K] & FLAG_POISONED).astype(np.bool_).tolist()
    return [
        ShardCandidates(token_ids[row, :number], logits[row, :number], poisoned[row])
        for row, number in enumerate(numbers)
    ]


def shard_candidates_rows(
    shard_logits: NDArray[np.float32] | NDArray[np.uint16], first_token_id: int
) -> list[ShardCandidates]:
    """Return the top 32 finite logits of one vocabulary shard for every row, bit for bit as selector.candidates does.

    shard_logits: float32 (rows, n), or uint16 (rows, n) with the bits of bfloat16, n >= 1; first_token_id: global id of
    column 0, >= 0. Raises ValueError for another shape, dtype or range. Source: DESIGN section 3.
    """
    words = empty_candidates(len(shard_logits))
    select_rows(shard_logits, first_token_id, words)
    return candidates_of_words(words)
