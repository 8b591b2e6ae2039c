"""The 32 greatest logits of one vocabulary shard, for all rows, in one launch.

Each program cuts one tile of a row to its greatest 32 keys; the last program of a row to finish merges the lists of
all of them, so a row needs neither a second launch nor a wait. A bfloat16 tile is sorted as int32 (16 bits of logit
above 16 of place), a float32 tile as int64 keys. NaN and +inf are turned into the greatest keys, so poison reaches the
end of the same network that finds the candidates.
Must never let a tail tile, a row stride or the order in which programs finish change a bit, and never leave a ticket
behind: the next launch starts from zero.

What limits it (estimated from instruction counts at sm_90, not measured): at one row of 81,920 the launch, one read
from memory and one ticket round trip cost about 2 us; sorting 1,024 keys a program about 1 us (float32; half for
bfloat16); the last program's merge of 80 lists about 1.5 us. It is bound by latency, not by bytes: the row itself is
0.1 us of bandwidth. With many rows a launch is bound by the instructions of the sort, about 1,300 a warp and tile.
Source: DESIGN section 3; selector/candidates.py and logit_keys.py say what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from selector.kernels.descending_lists import (
    LIST_LANES,
    LIST_SIZE,
    LIST_SLOTS,
    greatest_32,
    greatest_32_of_lists,
    spread_tile,
    stored_place,
)
from selector.kernels.device_words import (
    MASKED_KEY,
    MASKED_ORDERED,
    POISON_ORDERED,
    candidate_keys,
    ordered_bits,
)
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch

__all__ = [
    "CANDIDATE_WORDS",
    "SPECS",
    "TILES",
    "SelectBuffers",
    "ShardTile",
    "select_shard_rows",
    "select_spec",
    "tile_of_width",
]

CANDIDATE_WORDS: Final = 33
"""Words of a row's candidates: 32 keys and one word of flags."""
_WIDTH_LIMIT: Final = 163_840
_ROW_LIMIT: Final = 65_535
_TOKEN_LIMIT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class ShardTile:
    """How a row is cut: a program of `threads` threads takes slots x threads logits; a row has 1 .. lists programs.

    Powers of two: slots >= 4, threads >= 32, lists >= threads / 8.
    """

    slots: int
    threads: int
    lists: int

    @property
    def size(self) -> int:
        """Logits a program."""
        return self.slots * self.threads


TILES: Final = (ShardTile(8, 128, 16), ShardTile(8, 128, 64), ShardTile(8, 128, 128), ShardTile(16, 128, 128))
"""From narrow to wide: rows of up to 16,384, 65,536, 131,072 and 262,144 logits."""


# Nothing of the row is specialised: aligned reads would put neighbouring logits into one thread, and the network then
# needs twice the shuffles.
@triton.jit(do_not_specialize=["logits", "row_stride", "width", "first_token_id", "blocks", "tickets", "words"])
def select_kernel(
    logits,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    blocks: tl.int32,
    partials,
    tickets,
    words,
    SLOTS: tl.constexpr,  # noqa: N803 - Triton writes constants so
    THREADS: tl.constexpr,  # noqa: N803
    TILE_AXES: tl.constexpr,  # noqa: N803
    LISTS: tl.constexpr,  # noqa: N803
    LIST_AXES: tl.constexpr,  # noqa: N803
):
    """Grid (blocks, rows). partials: int64 (rows, LISTS, 32); tickets: int32 (rows,), 0 before and after."""
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    local = tl.arange(0, SLOTS)[:, None] * THREADS + tl.arange(0, THREADS)[None, :]
    column = block * (SLOTS * THREADS) + local
    values = tl.load(logits + row * row_stride + column, mask=column < width, other=float("-inf"))
    ordered = ordered_bits(values)
    # A negative NaN would sort below everything; as +inf it cannot be lost.
    ordered = tl.where(ordered < MASKED_ORDERED, POISON_ORDERED, ordered)
    first_id = first_token_id + block * (SLOTS * THREADS)
    if values.dtype == tl.bfloat16:
        # The lower 16 ordered bits are all zeros, or all ones below zero: the place takes their room.
        packed = greatest_32(spread_tile((ordered & -0x10000) | (local ^ 0xFFFF), SLOTS, THREADS), TILE_AXES)
        best_ordered = (packed & -0x10000) | ((packed >> 31) & 0xFFFF)
        keys = candidate_keys(best_ordered, first_id + ((packed & 0xFFFF) ^ 0xFFFF))
    else:
        keys = greatest_32(spread_tile(candidate_keys(ordered, first_id + local), SLOTS, THREADS), TILE_AXES)
    place = tl.arange(0, LIST_SIZE)
    lists = partials + row * (LISTS * LIST_SIZE)
    tl.store(lists + block * LIST_SIZE + stored_place(place), keys)
    # Every thread's store comes before the ticket that publishes it.
    tl.debug_barrier()
    ticket = tl.atomic_add(tickets + row, 1, sem="acq_rel", scope="gpu")
    if ticket == blocks - 1:
        best = greatest_32_of_lists(_row_of_lists(lists, blocks, THREADS, LISTS), LIST_AXES)
        poisoned = tl.max(best, 0) >= POISON_ORDERED * (1 << 32)
        tl.store(words + row * (LIST_SIZE + 1) + place, tl.where(poisoned, MASKED_KEY, best))
        tl.store(words + row * (LIST_SIZE + 1) + LIST_SIZE, poisoned.to(tl.int64))
        tl.store(tickets + row, 0)


@triton.jit
def _row_of_lists(lists, blocks, THREADS: tl.constexpr, LISTS: tl.constexpr):  # noqa: N803
    # The stored lists as one row for greatest_32_of_lists: list number = outer slot * teams + team of lanes, but in the
    # row the outer slots stand next to each other, and every second list there is read backwards.
    outer_slots: tl.constexpr = LISTS * LIST_LANES // THREADS
    teams: tl.constexpr = THREADS // LIST_LANES
    slot = tl.arange(0, outer_slots * LIST_SLOTS)[:, None]
    thread = tl.arange(0, THREADS)[None, :]
    number = slot // LIST_SLOTS * teams + thread // LIST_LANES
    place = slot % LIST_SLOTS * LIST_LANES + thread % LIST_LANES
    in_row = thread // LIST_LANES * outer_slots + slot // LIST_SLOTS
    place = tl.where(in_row % 2 == 1, LIST_SIZE - 1 - place, place)
    # Other programs wrote these words: read past this processor's own cache.
    keys = tl.load(lists + number * LIST_SIZE + place, mask=number < blocks, other=MASKED_KEY, cache_modifier=".cg")
    return spread_tile(keys, outer_slots * LIST_SLOTS, THREADS)


_TYPES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def select_spec(tile: ShardTile, dtype: torch.dtype) -> KernelSpec:
    """Return the specialisation for one tile and type of logits, float32 or bfloat16."""
    name = _TYPES[dtype]
    return KernelSpec(
        name=f"shard_select/{name}/slots{tile.slots}-threads{tile.threads}-lists{tile.lists}",
        kernel=select_kernel,
        signature={
            "logits": f"*{name}",
            "row_stride": "i64",
            "width": "i32",
            "first_token_id": "i32",
            "blocks": "i32",
            "partials": "*i64",
            "tickets": "*i32",
            "words": "*i64",
        },
        constants={
            "SLOTS": tile.slots,
            "THREADS": tile.threads,
            "TILE_AXES": tile.size.bit_length() - 1,
            "LISTS": tile.lists,
            "LIST_AXES": (tile.lists * 32).bit_length() - 1,
        },
        warps=tile.threads // 32,
        stages=1,
        aligned=("partials",),
    )


SPECS: Final = tuple(select_spec(tile, dtype) for dtype in _TYPES for tile in TILES)


def tile_of_width(width: int) -> ShardTile:
    """Return the narrowest tile whose lists hold a row. width: 1 .. 163,840. Raises ValueError for another width."""
    if not 1 <= width <= _WIDTH_LIMIT:
        raise ValueError(f"width is {width}, must be in 1 .. {_WIDTH_LIMIT}")
    return next(tile for tile in TILES if width <= tile.size * tile.lists)


@dataclass(frozen=True, slots=True)
class SelectBuffers:
    """Room for one launch at a time, used again by every replay.

    partials: int64 (rows, lists, 32), scratch; tickets: int32 (rows,), 0 between launches; words: int64 (rows, 33),
    contiguous, what the shard sends to its peer: 32 keys in descending order, MASKED_KEY behind them, and 1 for a
    poisoned row (whose keys are all MASKED_KEY), else 0.
    """

    tile: ShardTile
    partials: torch.Tensor
    tickets: torch.Tensor
    words: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, width: int, device: torch.device, tile: ShardTile | None = None) -> SelectBuffers:
        """Return room for `rows` rows, 1 .. 65,535, of up to `width` logits. Raises ValueError beyond."""
        if not 1 <= rows <= _ROW_LIMIT:
            raise ValueError(f"rows is {rows}, must be in 1 .. {_ROW_LIMIT}")
        tile = tile or tile_of_width(width)
        return cls(
            tile,
            torch.empty((rows, tile.lists, 32), dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.empty((rows, CANDIDATE_WORDS), dtype=torch.int64, device=device),
        )


def select_shard_rows(
    logits: torch.Tensor, first_token_id: int, buffers: SelectBuffers, log: LaunchLog | None = None
) -> torch.Tensor:
    """Write the top 32 of one vocabulary shard for every row into buffers.words, in one launch, and return it.

    logits: float32 or bfloat16 (rows, width), any row stride, columns next to each other; first_token_id: global id of
    column 0; ids stay below 2^31. Nothing is allocated or waited for. Raises ValueError for other input.
    Source: DESIGN section 3.
    """
    _check(logits, first_token_id, buffers)
    rows, width = logits.shape
    blocks = -(-width // buffers.tile.size)
    arguments = (
        logits,
        logits.stride(0),
        width,
        first_token_id,
        blocks,
        buffers.partials,
        buffers.tickets,
        buffers.words,
    )
    launch(select_spec(buffers.tile, logits.dtype), (blocks, rows), arguments, log)
    return buffers.words


def _check(logits: torch.Tensor, first_token_id: int, buffers: SelectBuffers) -> None:
    rows = len(buffers.words)
    width_limit = buffers.tile.size * buffers.tile.lists
    if (
        logits.dtype not in _TYPES
        or logits.ndim != 2
        or logits.shape[0] != rows
        or not 1 <= logits.shape[1] <= width_limit
        or (logits.shape[1] > 1 and logits.stride(1) != 1)
    ):
        raise ValueError(
            f"logits are {logits.dtype} {tuple(logits.shape)} with strides {logits.stride()}, must be float32 or "
            f"bfloat16 ({rows}, 1 .. {width_limit}) with columns next to each other"
        )
    if not 0 <= first_token_id <= _TOKEN_LIMIT - logits.shape[1]:
        raise ValueError(
            f"first_token_id is {first_token_id}, must be in 0 .. 2^31 - {logits.shape[1]}, the width of the shard"
        )
