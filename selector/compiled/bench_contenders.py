"""The contenders on a CPU: ours, the floor (reading every logit once), torch as people would use it, the reference.

All work on the same logits. Ours runs as a round does: depth after depth, each shard's rows in one call, then merge and
draw in one call; rows that hold the whole vocabulary take one call for all. torch gets whole rows, which spares it the
merge of halves.
Must never hand a contender other logits than the ones the gate has compared. Source: DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from selector.compiled.bench_shapes import BenchShape
from selector.compiled.jit import compiled
from selector.compiled.merged_draw import DrawnRows, draw_names, draw_rows, select_and_draw
from selector.compiled.reference_comparison import DrawRows, SelectRows, selection_difference
from selector.compiled.row_selection import CANDIDATE_WORDS, select_rows
from selector.kernels.merge_draw_reference import reference_rows
from selector.kernels.shard_select_reference import reference_words

__all__ = ["FLOOR", "NUMPY", "OURS", "TORCH", "RoundLogits", "cpu_contenders", "round_difference", "round_logits"]

FLOOR, OURS, TORCH, NUMPY = "read once", "compiled", "torch", "numpy reference"
TEMPERATURE = 0.7
SPREAD = 2.5


@dataclass(frozen=True, slots=True)
class RoundLogits:
    """Logits of one round. whole: float32 (depth, batch, vocabulary); shards: its parts, each (depth, batch, width)."""

    shape: BenchShape
    whole: NDArray[np.float32]
    shards: tuple[NDArray[np.float32], ...]


def round_logits(shape: BenchShape, seed: int) -> RoundLogits:
    """Return a round of normal logits of standard deviation 2.5. seed: >= 0, the same seed gives the same round."""
    generator = np.random.default_rng([seed, shape.batch, shape.depth, shape.vocabulary])
    whole = generator.standard_normal((shape.depth, shape.batch, shape.vocabulary), dtype=np.float32)
    whole *= np.float32(SPREAD)
    parts = tuple(
        np.ascontiguousarray(whole[..., part * shape.width : (part + 1) * shape.width]) for part in range(shape.shards)
    )
    return RoundLogits(shape, whole, parts)


def round_difference(logits: RoundLogits, select: SelectRows = select_rows, draw: DrawRows = draw_rows) -> str | None:
    """Return the first difference between compiled code and reference on a round's rows, None when there is none."""
    for depth in range(logits.shape.depth):
        difference = selection_difference([part[depth] for part in logits.shards], depth, select, draw)
        if difference is not None:
            return f"{logits.shape.name}, depth {depth + 1}, {difference}"
    return None


@compiled
def _greatest_word(words):
    # A running maximum over an index, in the narrow type, becomes vector code; a loop over the values does not.
    greatest = np.int32(-0x80000000)
    for place in range(words.shape[0]):
        greatest = max(greatest, words[place])
    return greatest


def _ours(logits: RoundLogits) -> Callable[[], object]:
    shape = logits.shape
    words = np.empty((shape.shards, shape.batch, CANDIDATE_WORDS), dtype=np.int64)
    drawn = DrawnRows.allocate(shape.batch)
    keys = np.arange(shape.batch, dtype=np.uint64)
    names = [draw_names(keys, keys, np.full(shape.batch, depth)) for depth in range(shape.depth)]
    parts = [[part[depth] for part in logits.shards] for depth in range(shape.depth)]
    exchanged = list(words)

    def run_whole() -> None:
        for depth in range(shape.depth):
            select_and_draw(parts[depth][0], names[depth], words, drawn)

    def run() -> None:
        for depth in range(shape.depth):
            for shard, part in enumerate(parts[depth]):
                select_rows(part, shard * shape.width, exchanged[shard])
            draw_rows(words, names[depth], drawn)

    return run_whole if shape.shards == 1 else run


def _floor(logits: RoundLogits) -> Callable[[], object]:
    flat = [part.reshape(-1).view(np.int32) for part in logits.shards]
    return lambda: [_greatest_word(part) for part in flat]


def _torch(logits: RoundLogits) -> Callable[[], object]:
    rows = [torch.from_numpy(part) for part in logits.whole]

    def run() -> None:
        with torch.inference_mode():
            for part in rows:
                values, places = torch.topk(part, 32)
                chances = torch.softmax(values / TEMPERATURE, dim=-1)
                places.gather(1, torch.multinomial(chances, 1))

    return run


def _numpy(logits: RoundLogits) -> Callable[[], object]:
    shape = logits.shape

    def run() -> None:
        for depth in range(shape.depth):
            words = [reference_words(part[depth], shard * shape.width) for shard, part in enumerate(logits.shards)]
            reference_rows(words, [(row, row, depth) for row in range(shape.batch)])

    return run


def cpu_contenders(logits: RoundLogits) -> dict[str, Callable[[], object]]:
    """Return what runs one round, by name; each allocates what it keeps beforehand, except torch and numpy."""
    return {FLOOR: _floor(logits), OURS: _ours(logits), TORCH: _torch(logits), NUMPY: _numpy(logits)}
