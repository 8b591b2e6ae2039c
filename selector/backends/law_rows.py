"""One row's law and draw as plain integers, and the same rows through numpy and through compiled code.

Every backend gets each row twice: as one shard, and as two shards whose exchanged words are merged.
Must never hold a tolerance: a row is equal or it is not. Source: DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.candidates import InvalidRow, merge_candidates, shard_candidates
from selector.compiled.merged_draw import DrawnRows, draw_names, draw_rows
from selector.compiled.row_selection import empty_candidates, select_rows
from selector.draft_law import DraftCounts, counts_of, draw_token
from selector.law_digest import counts_digest
from selector.law_ids import EXACT_LAW_ID
from selector.logit_keys import MASKED_KEY
from selector.philox import Purpose, draw24, draw_words
from selector.row_status import REASON_OF_STATUS, STATUS_OF_REASON, RowStatus

__all__ = ["DRAW_SEED", "LawRow", "compiled_rows", "cut_in_two", "law_of_row", "numpy_rows"]

DRAW_SEED = 24
"""Row i is drawn under (24, i, i), so that every backend draws the same token."""


@dataclass(frozen=True, slots=True)
class LawRow:
    """status: a RowStatus; ids, counts: in order of law, empty without a law; token: -1 and digest: 0 then."""

    status: int
    ids: tuple[int, ...]
    counts: tuple[int, ...]
    token: int
    digest: int


def cut_in_two(row: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return a row (n,) as its two shards, the first one longer for odd n; one logit alone has no second shard."""
    middle = (len(row) + 1) // 2
    return [part for part in (row[:middle], row[middle:]) if len(part)]


def law_of_row(row: LawRow) -> DraftCounts | InvalidRow:
    """Return the law or the reason that a row stands for."""
    if row.status != RowStatus.VALID:
        return InvalidRow(REASON_OF_STATUS[RowStatus(row.status)])
    return DraftCounts(np.array(row.ids, dtype=np.int32), np.array(row.counts, dtype=np.int64))


def numpy_rows(rows: Sequence[NDArray[np.float32]], shards: int) -> list[LawRow]:
    """Return what the reference makes of each row. rows: float32 (n,), of any lengths; shards: 1 or 2."""
    laws = []
    for index, row in enumerate(rows):
        parts = [row] if shards == 1 else cut_in_two(row)
        starts = [0, len(parts[0])]
        merged = merge_candidates([shard_candidates(part, start) for part, start in zip(parts, starts, strict=False)])
        if isinstance(merged, InvalidRow):
            laws.append(LawRow(int(STATUS_OF_REASON[merged.reason]), (), (), -1, 0))
            continue
        law = counts_of(merged)
        token = draw_token(law, draw24(draw_words(DRAW_SEED, index, index, Purpose.PROPOSAL)))
        digest = counts_digest(law, token, EXACT_LAW_ID)
        laws.append(LawRow(0, tuple(law.token_ids.tolist()), tuple(law.counts.tolist()), token, digest))
    return laws


def compiled_rows(rows: Sequence[NDArray[np.float32]], shards: int) -> list[LawRow]:
    """Return what compiled code makes of each row. rows: float32 (n,), of any lengths; shards: 1 or 2."""
    laws = []
    for index, row in enumerate(rows):
        words = np.full((2, 1, empty_candidates(0).shape[1]), MASKED_KEY, dtype=np.int64)
        words[:, :, -1] = 0
        start = 0
        for shard, part in enumerate([row] if shards == 1 else cut_in_two(row)):
            select_rows(part[np.newaxis, :], start, words[shard])
            start += len(part)
        drawn = DrawnRows.allocate(1)
        place = np.array([index], dtype=np.int64)
        draw_rows(words, draw_names(np.array([DRAW_SEED], np.uint64), place.view(np.uint64), place), drawn)
        number = int(drawn.numbers[0])
        laws.append(
            LawRow(
                int(drawn.statuses[0]),
                tuple(drawn.token_ids[0, :number].tolist()),
                tuple(drawn.counts[0, :number].tolist()),
                int(drawn.tokens[0]),
                int(drawn.digests[0]),
            )
        )
    return laws
