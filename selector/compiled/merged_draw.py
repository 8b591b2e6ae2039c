"""Exchanged words of all shards to law, counts, drawn token and digest, for many rows in one call.

Keys of all shards are merged as a set, the 32 greatest become counts by the integer fixed point of
selector/fixed_point.py, a Philox block named by (seed, request, position) picks the token, and the digest is taken from
the very counts that were drawn from. A row without a law is a status, never an exception.
Must never draw from anything but the named Philox block.
Source: DESIGN section 3; selector/candidates.py, draft_law.py, philox.py and law_digest.py are the naive references.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from selector.candidates import TOP_K, InvalidRow
from selector.compiled.row_selection import CANDIDATE_WORDS, logit_bits
from selector.compiled.selection_kernels import draw_kernel, whole_rows_kernel
from selector.draft_law import DraftCounts
from selector.law_ids import EXACT_LAW_ID, law_number
from selector.row_status import REASON_OF_STATUS, RowStatus

__all__ = [
    "DIGEST_AT",
    "DRAWN_WORDS",
    "NUMBER_AT",
    "STATUS_AT",
    "TOKEN_AT",
    "DrawnRows",
    "RowStatus",
    "draw_names",
    "draw_rows",
    "draw_rows_at",
    "select_and_draw",
]

NAME_WORDS: Final = 3
WORDS_AXES: Final = 3
NUMBER_AT: Final = 2 * TOP_K
TOKEN_AT: Final = NUMBER_AT + 1
DIGEST_AT: Final = NUMBER_AT + 2
STATUS_AT: Final = NUMBER_AT + 3
DRAWN_WORDS: Final = NUMBER_AT + 4

_INT64: Final = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Laws and drawn tokens of all rows. words: int64 (rows, 68): 32 ids, 32 counts, number, token, digest, status."""

    words: NDArray[np.int64]

    @classmethod
    def allocate(cls, rows: int) -> DrawnRows:
        """Return room for `rows` rows, not filled. rows: >= 0."""
        return cls(np.empty((rows, DRAWN_WORDS), dtype=np.int64))

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Ids in order of law, int32 (rows, 32), -1 where there is no candidate."""
        return self.words[:, :TOP_K].astype(np.int32)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Counts, int64 (rows, 32), summing to 2^24 in a valid row, else 0."""
        return self.words[:, TOP_K:NUMBER_AT]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Candidates a row, int64 (rows,), 0 .. 32."""
        return self.words[:, NUMBER_AT]

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Drawn tokens, int64 (rows,), -1 in an invalid row."""
        return self.words[:, TOKEN_AT]

    @property
    def digests(self) -> NDArray[np.uint64]:
        """Digests of counts and token, uint64 (rows,), 0 in an invalid row."""
        return self.words[:, DIGEST_AT].view(np.uint64)

    @property
    def statuses(self) -> NDArray[np.int64]:
        """RowStatus of every row, int64 (rows,)."""
        return self.words[:, STATUS_AT]

    def law(self, row: int) -> DraftCounts | InvalidRow:
        """Return one row's law, or why it has none. row: 0 .. rows-1."""
        status = RowStatus(int(self.statuses[row]))
        if status is not RowStatus.VALID:
            return InvalidRow(REASON_OF_STATUS[status])
        number = int(self.numbers[row])
        return DraftCounts(self.token_ids[row, :number], self.counts[row, :number].copy())


def draw_names(
    seeds: NDArray[np.uint64], requests: NDArray[np.uint64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the names of all rows' draws as one int64 (rows, 3), made once and read by every call.

    seeds, requests: uint64 (rows,); positions: int64 (rows,), each in 0 .. 2^32-1; the caller may advance column 2.
    Raises ValueError for another shape or a position out of range. Source: DESIGN section 3, "Randomness".
    """
    positions = np.asarray(positions, dtype=np.int64)
    columns = (np.asarray(seeds, np.uint64).view(np.int64), np.asarray(requests, np.uint64).view(np.int64), positions)
    if any(column.shape != (len(positions),) for column in columns):
        raise ValueError(f"draw names have shapes {[column.shape for column in columns]}, need one entry a row in each")
    if ((positions < 0) | (positions >> 32 != 0)).any():
        raise ValueError("a draw's position is out of range, must be in 0 .. 2^32-1")
    return np.stack(columns, axis=1)


def draw_rows(words: NDArray[np.int64], names: NDArray[np.int64], drawn: DrawnRows, law_id: str = EXACT_LAW_ID) -> None:
    """Merge the shards' exchanged words, make each row's law and draw its token by its name.

    words: int64 (shards, rows, 33), contiguous, shards >= 1 in their order; names: int64 (rows, 3) from draw_names;
    drawn: room for as many rows, overwritten. Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    _check(words, names, NAME_WORDS, drawn)
    draw_kernel(words, names, _law_word(law_id), drawn.words)


def draw_rows_at(
    words: NDArray[np.int64], draws: NDArray[np.int64], drawn: DrawnRows, law_id: str = EXACT_LAW_ID
) -> None:
    """Do the same with given draws, for enumeration and tests.

    words: int64 (shards, rows, 33), contiguous; draws: int64 (rows,), each in 0 .. 2^24-1; drawn: overwritten.
    Raises ValueError for another shape, dtype or range. Source: DESIGN section 3.
    """
    if ((draws < 0) | (draws >> 24 != 0)).any():
        raise ValueError("a draw is out of range, must be in 0 .. 2^24-1")
    names = np.ascontiguousarray(draws, dtype=np.int64).reshape(-1, 1)
    _check(words, names, 1, drawn)
    draw_kernel(words, names, _law_word(law_id), drawn.words)


def select_and_draw(
    logits: NDArray[np.float32] | NDArray[np.uint16],
    names: NDArray[np.int64],
    words: NDArray[np.int64],
    drawn: DrawnRows,
    law_id: str = EXACT_LAW_ID,
) -> None:
    """Do it all for rows that hold the whole vocabulary, in one call.

    logits: float32 (rows, n), or uint16 (rows, n) with the bits of bfloat16, 1 <= n <= 2^31; names: int64 (rows, 3)
    from draw_names; words: int64 (1, rows, 33) and drawn, as many rows: overwritten.
    Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    bits = logit_bits(logits)
    _check(words, names, NAME_WORDS, drawn)
    if words.shape[0] != 1 or len(bits) != len(drawn.words):
        raise ValueError(f"logits are {bits.shape} and words {words.shape}, must be (rows, n) and (1, rows, 33)")
    whole_rows_kernel(bits, names, _law_word(law_id), words, drawn.words)


@lru_cache(maxsize=64)
def _law_word(law_id: str) -> np.uint64:
    return np.uint64(law_number(law_id))


def _check(words: NDArray[np.int64], names: NDArray[np.int64], columns: int, drawn: DrawnRows) -> None:
    rows = len(drawn.words)
    shape = words.shape
    if (
        len(shape) != WORDS_AXES
        or shape != (shape[0] or 1, rows, CANDIDATE_WORDS)
        or names.shape != (rows, columns)
        or words.dtype != _INT64
        or names.dtype != _INT64
        or not words.flags.c_contiguous
        or not names.flags.c_contiguous
    ):
        raise ValueError(
            f"words are {words.dtype} {shape} and names {names.dtype} {names.shape} for {rows} rows, must be "
            f"contiguous int64 (shards, {rows}, 33) and ({rows}, {columns})"
        )
