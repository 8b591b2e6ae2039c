"""What merge and draw computes, in numpy and plain integers: the law and the drawn token of every row.

Must never share code with the kernel beyond the pure laws. Source: DESIGN section 3; selector/draft_law.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.candidates import TOP_K, InvalidRow, ShardCandidates, merge_candidates
from selector.draft_law import counts_of, draw_token
from selector.law_digest import counts_digest
from selector.law_ids import EXACT_LAW_ID
from selector.logit_keys import keys_to_candidates
from selector.philox import Purpose, draw24, draw_words
from selector.row_status import STATUS_OF_REASON

__all__ = ["DrawName", "ReferenceRows", "reference_rows"]

DrawName = tuple[int, int, int]
"""(seed, request, position) of one row's draw, unsigned."""


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The fields of MergeBuffers as numpy arrays of the same shapes and dtypes."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    numbers: NDArray[np.int32]
    tokens: NDArray[np.int32]
    digests: NDArray[np.int64]
    statuses: NDArray[np.int32]


def reference_rows(
    shards: Sequence[NDArray[np.int64]], names: Sequence[DrawName], law_id: str = EXACT_LAW_ID
) -> ReferenceRows:
    """Return laws and draws of rows from their shards' words.

    shards: each int64 (rows, 33); names: one a row. Source: DESIGN section 3.
    """
    rows = len(names)
    result = ReferenceRows(
        token_ids=np.full((rows, TOP_K), -1, dtype=np.int32),
        counts=np.zeros((rows, TOP_K), dtype=np.int64),
        numbers=np.zeros(rows, dtype=np.int32),
        tokens=np.full(rows, -1, dtype=np.int32),
        digests=np.zeros(rows, dtype=np.int64),
        statuses=np.zeros(rows, dtype=np.int32),
    )
    for row, (seed, request, position) in enumerate(names):
        merged = merge_candidates([_candidates(words[row]) for words in shards])
        if isinstance(merged, InvalidRow):
            result.statuses[row] = STATUS_OF_REASON[merged.reason]
            continue
        law = counts_of(merged)
        token = draw_token(law, draw24(draw_words(seed, request, position, Purpose.PROPOSAL)))
        number = len(law.token_ids)
        result.token_ids[row, :number] = law.token_ids
        result.counts[row, :number] = law.counts
        result.numbers[row] = number
        result.tokens[row] = token
        result.digests[row] = np.array(counts_digest(law, token, law_id), dtype=np.uint64).view(np.int64)
    return result


def _candidates(words: NDArray[np.int64]) -> ShardCandidates:
    token_ids, logits = keys_to_candidates(words[:TOP_K])
    return ShardCandidates(token_ids, logits, poisoned=bool(words[TOP_K]))
