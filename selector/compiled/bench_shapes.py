"""Which rounds the benchmark times: requests in the batch, depth, vocabulary and in how many parts it is held.

Source: DESIGN section 1 (B1 .. B4, depth 4 or 5) and section 2 (two tensor-parallel halves).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["AIM_SHAPE", "FULL_SHAPES", "QUICK_SHAPES", "BenchShape"]

BATCHES: Final = (1, 2, 3, 4)
DEPTHS: Final = (4, 5)
VOCABULARIES: Final = (32_000, 129_280, 163_840)


@dataclass(frozen=True, slots=True)
class BenchShape:
    """One round: `depth` steps one after the other, each of `batch` rows of `vocabulary` logits in `shards` parts.

    All >= 1; vocabulary is a multiple of shards.
    """

    batch: int
    depth: int
    vocabulary: int
    shards: int = 2

    @property
    def name(self) -> str:
        """How tables call it."""
        parts = "whole" if self.shards == 1 else f"TP{self.shards}"
        return f"B{self.batch} depth {self.depth} V {self.vocabulary:,} {parts}"

    @property
    def width(self) -> int:
        """Logits of one part."""
        return self.vocabulary // self.shards


AIM_SHAPE: Final = BenchShape(batch=1, depth=1, vocabulary=81_920, shards=1)
"""One row, for which the two aims are stated."""
FULL_SHAPES: Final = (
    AIM_SHAPE,
    *(BenchShape(batch, depth, size) for size in VOCABULARIES for depth in DEPTHS for batch in BATCHES),
)
QUICK_SHAPES: Final = (AIM_SHAPE, BenchShape(1, 4, 32_000), BenchShape(2, 5, 32_000))
