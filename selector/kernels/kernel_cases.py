"""One registry of named rows that tests, benchmark and the GPU script all read.

A case is made from its name and a width alone, so every reader sees the same bytes. Rows are float32; those for
bfloat16 are the same rows cut to 16 bits, which keeps infinities, quiet NaN, ties and signed zeros.
Must never draw from anything but a seeded generator. Source: DESIGN section 3, validity and order of candidates.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CASES", "LARGE_WIDTHS", "SMALL_WIDTHS", "RowCase", "case_row", "cut_to_bfloat16"]

Row = NDArray[np.float32]
Maker = Callable[[np.random.Generator, int], Row]

SMALL_WIDTHS: Final = (1, 2, 31, 33, 127, 128, 129, 300)
"""Widths that the interpreter bears: one value, odd tails, less than 32 values, whole tiles."""
LARGE_WIDTHS: Final = (16_000, 64_640, 81_920, 163_840)
"""Halves of vocabularies of 32,000, 129,280 and 163,840, and the greatest vocabulary whole."""


@dataclass(frozen=True, slots=True)
class RowCase:
    """A kind of row. make: from a generator and a width >= 1 to float32 (width,)."""

    name: str
    make: Maker


def _normal(generator: np.random.Generator, width: int) -> Row:
    return generator.normal(0.0, 3.0, width).astype(np.float32)


def _few_values(generator: np.random.Generator, width: int) -> Row:
    return generator.integers(-2, 3, width).astype(np.float32)


def _all_equal(_generator: np.random.Generator, width: int) -> Row:
    return np.full(width, 1.25, dtype=np.float32)


def _signed_zeros(generator: np.random.Generator, width: int) -> Row:
    return generator.choice(np.array([-0.0, 0.0], dtype=np.float32), width)


def _tie_at_the_cut(generator: np.random.Generator, width: int) -> Row:
    # 31 values stand out, so the last place is a tie between all the rest.
    row = np.full(width, -1.0, dtype=np.float32)
    row[generator.permutation(width)[:31]] = generator.normal(5.0, 1.0, min(31, width)).astype(np.float32)
    return row


def _ascending(_generator: np.random.Generator, width: int) -> Row:
    return (np.arange(width, dtype=np.float32) / np.float32(64.0)) - np.float32(1.0)


def _descending(generator: np.random.Generator, width: int) -> Row:
    return np.ascontiguousarray(_ascending(generator, width)[::-1])


def _one_tile_holds_all(generator: np.random.Generator, width: int) -> Row:
    row = _normal(generator, width)
    start = int(generator.integers(0, width))
    row[start : start + 40] += np.float32(50.0)
    return row


def _half_masked(generator: np.random.Generator, width: int) -> Row:
    row = _normal(generator, width)
    row[generator.random(width) < 0.5] = -np.inf
    return row


def _few_finite(generator: np.random.Generator, width: int) -> Row:
    row = np.full(width, -np.inf, dtype=np.float32)
    kept = generator.permutation(width)[:5]
    row[kept] = generator.normal(0.0, 3.0, len(kept)).astype(np.float32)
    return row


def _all_masked(_generator: np.random.Generator, width: int) -> Row:
    return np.full(width, -np.inf, dtype=np.float32)


def _first_half_masked(generator: np.random.Generator, width: int) -> Row:
    row = _normal(generator, width)
    row[: width // 2] = -np.inf
    return row


def _last_is_greatest(generator: np.random.Generator, width: int) -> Row:
    row = _normal(generator, width)
    row[-1] = 40.0
    return row


def _denormals(generator: np.random.Generator, width: int) -> Row:
    bits = generator.integers(0, 1 << 23, width, dtype=np.uint32)
    signs = generator.integers(0, 2, width, dtype=np.uint32) << np.uint32(31)
    return (bits | signs).view(np.float32)


def _huge(generator: np.random.Generator, width: int) -> Row:
    return (generator.uniform(-1.0, 1.0, width) * 3.0e38).astype(np.float32)


def _tiny_gaps(generator: np.random.Generator, width: int) -> Row:
    # Neighbouring float32 values around 10: every candidate weighs nearly the same.
    return (np.float32(10.0).view(np.int32) + generator.integers(0, 200, width, dtype=np.int32)).view(np.float32)


def _steep(generator: np.random.Generator, width: int) -> Row:
    # Far below the greatest: counts of 0 among the candidates.
    row = generator.uniform(-60.0, -20.0, width).astype(np.float32)
    row[int(generator.integers(0, width))] = 0.0
    return row


def _with(bits: int) -> Maker:
    def make(generator: np.random.Generator, width: int) -> Row:
        row = _normal(generator, width)
        row.view(np.uint32)[int(generator.integers(0, width))] = bits
        return row

    return make


def _infinity_among_masked(generator: np.random.Generator, width: int) -> Row:
    row = _all_masked(generator, width)
    row[int(generator.integers(0, width))] = np.inf
    return row


_MAKERS: Final[dict[str, Maker]] = {
    "normal": _normal,
    "few values": _few_values,
    "all equal": _all_equal,
    "signed zeros": _signed_zeros,
    "tie at the cut": _tie_at_the_cut,
    "ascending": _ascending,
    "descending": _descending,
    "one tile holds all": _one_tile_holds_all,
    "half masked": _half_masked,
    "few finite": _few_finite,
    "all masked": _all_masked,
    "first half masked": _first_half_masked,
    "last is greatest": _last_is_greatest,
    "denormals": _denormals,
    "huge": _huge,
    "tiny gaps": _tiny_gaps,
    "steep": _steep,
    "positive NaN": _with(0x7FC00000),
    "negative NaN": _with(0xFFC00000),
    "positive infinity": _with(0x7F800000),
    "infinity among masked": _infinity_among_masked,
}

CASES: Final = tuple(RowCase(name, make) for name, make in _MAKERS.items())


def case_row(case: RowCase, width: int) -> Row:
    """Return the row of a case, float32 (width,), always the same one. width: >= 1."""
    seed = zlib.crc32(f"{case.name}/{width}".encode())
    return case.make(np.random.default_rng(seed), width)


def cut_to_bfloat16(row: Row) -> Row:
    """Return float32 values with their lower 16 bits cleared: exactly what bfloat16 holds. row: float32 (...,)."""
    return (row.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
