"""Is the compiled selection, on these very rows, what the numpy reference gives, bit for bit?

The gate before every timing and the check of machine code that was kept on disk. Must never tolerate a difference.
Source: DESIGN section 3, "Counts are bit-identical on every backend".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from selector.compiled.merged_draw import (
    DIGEST_AT,
    DRAWN_WORDS,
    NUMBER_AT,
    STATUS_AT,
    TOKEN_AT,
    DrawnRows,
    draw_names,
    draw_rows,
    select_and_draw,
)
from selector.compiled.row_selection import CANDIDATE_WORDS, select_rows
from selector.draft_law import TOP_K
from selector.kernels.merge_draw_reference import reference_rows
from selector.kernels.shard_select_reference import reference_words

__all__ = ["reference_drawn", "selection_difference", "widened"]

SelectRows = Callable[[Any, int, NDArray[np.int64]], None]
DrawRows = Callable[[NDArray[np.int64], NDArray[np.int64], DrawnRows], None]

_PARTS: Final = (
    ("ids", 0),
    ("counts", TOP_K),
    ("number", NUMBER_AT),
    ("token", TOKEN_AT),
    ("digest", DIGEST_AT),
    ("status", STATUS_AT),
)
_POISON: Final = 0x5A5A5A5A
"""What outputs hold before a run, so that a word that was never written is a difference."""


def widened(logits: NDArray[np.float32] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return float32 logits of the same shape; uint16 (the bits of bfloat16) widens exactly, float32 stays."""
    if logits.dtype == np.uint16:
        return (logits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(logits, dtype=np.float32)


def reference_drawn(words: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return what DrawnRows must hold, int64 (rows, 68), by numpy.

    words: int64 (shards, rows, 33); row i is drawn under (seed, i, i). seed: 64-bit unsigned.
    """
    found = reference_rows(list(words), [(seed, row, row) for row in range(words.shape[1])])
    single = (found.numbers, found.tokens, found.digests, found.statuses)
    columns = [found.token_ids, found.counts, *(each[:, np.newaxis] for each in single)]
    return np.concatenate([column.astype(np.int64) for column in columns], axis=1)


def selection_difference(
    shards: Sequence[NDArray[np.float32] | NDArray[np.uint16]],
    seed: int = 0,
    select: SelectRows = select_rows,
    draw: DrawRows = draw_rows,
) -> str | None:
    """Return the first difference between compiled code and reference on these rows in a sentence, None when none.

    shards: the parts of the vocabulary, each float32 or uint16 (rows, n), in shard order; row i is drawn under
    (seed, i, i). select, draw: what is compared with the reference; with one shard select_and_draw is compared too.
    Raises ValueError for no shard. Source: DESIGN section 3.
    """
    if not shards:
        raise ValueError("selection_difference got no shards, needs one at least")
    rows = len(shards[0])
    places = np.arange(rows, dtype=np.int64)
    names = draw_names(np.full(rows, seed, np.uint64), places.view(np.uint64), places)
    words = np.full((len(shards), rows, CANDIDATE_WORDS), _POISON, dtype=np.int64)
    drawn = DrawnRows(np.full((rows, DRAWN_WORDS), _POISON, dtype=np.int64))
    first_token_id = 0
    expected = []
    for index, part in enumerate(shards):
        select(part, first_token_id, words[index])
        with np.errstate(invalid="ignore"):
            expected.append(reference_words(widened(part), first_token_id))
        first_token_id += part.shape[1]
    draw(words, names, drawn)
    wanted = np.array(expected)
    wanted_drawn = reference_drawn(wanted, seed)
    found = _difference(wanted, words, wanted_drawn, drawn)
    if found is None and len(shards) == 1:
        words[:], drawn.words[:] = _POISON, _POISON
        select_and_draw(shards[0], names, words, drawn)
        found = _difference(wanted, words, wanted_drawn, drawn)
    return found


def _difference(
    wanted: NDArray[np.int64], words: NDArray[np.int64], wanted_drawn: NDArray[np.int64], drawn: DrawnRows
) -> str | None:
    for shard, row in np.ndindex(words.shape[:2]):
        if not np.array_equal(wanted[shard, row], words[shard, row]):
            place = int(np.argmax(wanted[shard, row] != words[shard, row]))
            return (
                f"shard {shard}, row {row}: exchanged word {place} is {words[shard, row, place]}, "
                f"the reference has {wanted[shard, row, place]}"
            )
    for row, reference in enumerate(wanted_drawn):
        if not np.array_equal(reference, drawn.words[row]):
            place = int(np.argmax(reference != drawn.words[row]))
            name, start = [pair for pair in _PARTS if pair[1] <= place][-1]
            return (
                f"row {row}: {name}[{place - start}] is {drawn.words[row, place]}, the reference has {reference[place]}"
            )
    return None
