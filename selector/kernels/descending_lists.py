"""Descending lists of 32 integers inside one program: sorted, merged and cut to the greatest 32, as device functions.

The tile is seen as a cube with two places along every axis; a step of a bitonic network exchanges along one axis.
Which axes are registers, lanes and warps is chosen by `spread_tile` so that most steps need no shuffle and every
halving of the tile first frees registers, then lanes, then warps.
Must never depend on the order in which equal integers meet: equal integers are the same integer.
Source: Batcher 1968; Shanbhag et al., "Efficient Top-K Query Processing on Massively Parallel Hardware" (SIGMOD 2018).
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

__all__ = [
    "LIST_LANES",
    "LIST_SIZE",
    "LIST_SLOTS",
    "greatest_32",
    "greatest_32_of_lists",
    "spread_tile",
    "stored_place",
]

LIST_SIZE: Final = tl.constexpr(32)
LIST_SLOTS: Final = tl.constexpr(4)
"""Places of one list that one thread holds in registers, next to each other."""
LIST_LANES: Final = tl.constexpr(8)
"""Lanes that hold one list."""


@triton.jit
def spread_tile(tile, SLOTS: tl.constexpr, THREADS: tl.constexpr):  # noqa: N803 - Triton writes constants so
    """Return (SLOTS, THREADS) values as one (SLOTS * THREADS,) row whose lists of 32 lie in 4 slots of 8 lanes.

    SLOTS: a power of two >= 4; THREADS: 32 times the warps. No value moves between threads.
    """
    parts = tl.reshape(tile, [SLOTS // LIST_SLOTS, LIST_SLOTS, THREADS // LIST_LANES, LIST_LANES])
    return tl.reshape(tl.permute(parts, (2, 0, 3, 1)), [SLOTS * THREADS])


@triton.jit
def stored_place(place):
    """Return where a place 0 .. 31 of a list is stored so that the lanes of one load read neighbouring words."""
    return (place % LIST_SLOTS) * LIST_LANES + place // LIST_SLOTS


# Both networks below are written out in one function each: a call costs Triton's interpreter milliseconds.
@triton.jit
def greatest_32_of_lists(row, AXES: tl.constexpr):  # noqa: N803
    """Return the greatest 32 of a (2^AXES,) row of sorted lists of 32, descending; even lists descend, odd ascend."""
    cube = tl.reshape(row, [2] * AXES)
    for level in tl.static_range(AXES - 5):
        # Of a descending and an ascending list the greater of each pair are the greatest 32, as a bitonic run.
        cube = tl.max(cube, AXES - 6 - level)
        for step in tl.static_range(5):
            # The sum of both less one's own is the other's, wrapping or not; every backend folds a sum quickly.
            other = tl.sum(cube, AXES - 6 - level + step, keep_dims=True) - cube
            keeps_lesser = tl.reshape(tl.arange(0, 2), [1] * (AXES - 6 - level + step) + [2] + [1] * (4 - step))
            if level < AXES - 6:
                ascends = tl.reshape(tl.arange(0, 2), [1] * (AXES - 7 - level) + [2] + [1] * 5)
                keeps_lesser = keeps_lesser ^ ascends
            cube = tl.where((cube < other) == (keeps_lesser == 0), other, cube)
    return tl.reshape(cube, [LIST_SIZE])


@triton.jit
def greatest_32(row, AXES: tl.constexpr):  # noqa: N803
    """Return the greatest 32 of a (2^AXES,) row of integers, descending. AXES: >= 6."""
    cube = tl.reshape(row, [2] * AXES)
    for stage in tl.static_range(1, 6):
        # Makes runs of 2^stage out of bitonic ones, every second run ascending.
        ascends = tl.reshape(tl.arange(0, 2), [1] * (AXES - 1 - stage) + [2] + [1] * stage)
        for step in tl.static_range(stage):
            other = tl.sum(cube, AXES - stage + step, keep_dims=True) - cube
            right = tl.reshape(tl.arange(0, 2), [1] * (AXES - stage + step) + [2] + [1] * (stage - 1 - step))
            cube = tl.where((cube < other) == ((right ^ ascends) == 0), other, cube)
    return greatest_32_of_lists(tl.reshape(cube, [2**AXES]), AXES)
