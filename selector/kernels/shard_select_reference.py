"""What shard select computes, in numpy: the exchanged words of a vocabulary shard.

Must never share code with the kernel beyond the pure laws. Source: DESIGN section 3; selector/candidates.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selector.candidates import TOP_K, shard_candidates_rows
from selector.logit_keys import MASKED_KEY, candidate_keys

__all__ = ["reference_words"]


def reference_words(logits: NDArray[np.float32], first_token_id: int) -> NDArray[np.int64]:
    """Return int64 (rows, 33): 32 keys in descending order, padded with MASKED_KEY, then 1 for a poisoned row.

    logits: float32 (rows, n), n >= 1; first_token_id: >= 0. Raises ValueError for another shape or dtype.
    """
    shards = shard_candidates_rows(logits, first_token_id)
    words = np.full((len(shards), TOP_K + 1), MASKED_KEY, dtype=np.int64)
    for row, shard in zip(words, shards, strict=True):
        row[: len(shard.token_ids)] = candidate_keys(shard.logits, shard.token_ids.astype(np.int64))
        row[TOP_K] = shard.poisoned
    return words
