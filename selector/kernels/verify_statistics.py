"""First exchange of a verify on the device: every row's (maximum, sum-exp, poison, argmax, draft logit) of one shard.

Two launches: an exponential needs the maximum of the whole shard, and blocks of one launch may not wait for each other
(they need not all be resident, and on one shared device a waiting kernel can starve its peer). The first launch leaves
one key a block; in the second every block reads its row's few keys, adds its exponentials as two integer limbs, and the
last block of a row adds the limbs of all blocks. Integer sums have no order, so the bits are those of numpy.
Must never look at the drafted token to judge a row, allocate, or leave a counter that a replay would find raised.
Source: DESIGN section 3, "TP2 needs no gathered logits"; the reference is selector/target_statistics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from selector.kernels.device_exponential import (
    CANONICAL_NAN_BITS,
    exponential,
    high_limb,
    logits_as_float64,
    low_limb,
    sum_of_limbs,
)
from selector.kernels.device_words import (
    MASKED_KEY,
    candidate_keys,
    logits_of_keys,
    ordered_bits,
    poisoned_bits,
    token_ids_of_keys,
)
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.verify_round import (
    LOGIT_TYPES,
    TILES,
    VerifyRound,
    VerifyTile,
    launch_shape,
    power_table,
    tile_of,
)

__all__ = ["SPECS", "STATISTICS_COLUMNS", "StatisticsBuffers", "launch_statistics", "maxima_spec", "sums_spec"]

STATISTICS_COLUMNS: Final = 5
_POISONED_KEY: Final = tl.constexpr((1 << 63) - 1)
"""Above every candidate's key, so that one maximum tells poison too."""


@triton.jit(do_not_specialize=["logits_ptr", "row_stride", "width", "first_token_id"])
def find_block_maxima(
    logits_ptr,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    keys_ptr,
    BLOCK: tl.constexpr,  # noqa: N803 - Triton writes constants so
):
    """Leave the greatest key of every block of every row; grid (blocks, rows)."""
    block, row = tl.program_id(0), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    address = logits_ptr + row.to(tl.int64) * row_stride + columns
    ordered = ordered_bits(tl.load(address, mask=columns < width, other=-float("inf")))
    keys = candidate_keys(ordered, first_token_id + columns)
    keys = tl.where(poisoned_bits(ordered), _POISONED_KEY, keys)
    tl.store(keys_ptr + row * tl.num_programs(0) + block, tl.max(keys, 0))


@triton.jit
def write_statistics(statistics_ptr, logits_ptr, row_key, usable, drafted, width, first_token_id, high, low):
    """Write the five float64 columns of one row; logits_ptr: column 0 of that row, drafted: global id or -1."""
    poisoned = row_key == _POISONED_KEY
    maximum = tl.where(usable, logits_as_float64(logits_of_keys(row_key)), -float("inf"))
    argmax = tl.where(usable, token_ids_of_keys(row_key), -1)
    column = drafted - first_token_id
    here = (drafted >= 0) & (column >= 0) & (column < width) & (row_key != _POISONED_KEY)
    logit = logits_as_float64(tl.load(logits_ptr + column, mask=here, other=0.0))
    absent = tl.full((), CANONICAL_NAN_BITS, tl.int64).to(tl.float64, bitcast=True)
    tl.store(statistics_ptr, maximum)
    tl.store(statistics_ptr + 1, tl.where(usable, sum_of_limbs(high, low), 0.0))
    tl.store(statistics_ptr + 2, tl.where(poisoned, 1.0, 0.0))
    tl.store(statistics_ptr + 3, argmax.to(tl.float64))
    tl.store(statistics_ptr + 4, tl.where(here, logit, absent))


# The output may be one half of the exchanged buffer, at any multiple of 8 bytes.
@triton.jit(do_not_specialize=["logits_ptr", "row_stride", "width", "first_token_id", "depth", "statistics_ptr"])
def sum_exponentials(
    logits_ptr,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    drafted_ptr,
    usable_ptr,
    depth: tl.int32,
    table_ptr,
    keys_ptr,
    limbs_ptr,
    arrivals_ptr,
    statistics_ptr,
    BLOCK: tl.constexpr,  # noqa: N803
    PLACES: tl.constexpr,  # noqa: N803
):
    """Add exponentials below the row's maximum, and write the row's statistics; grid (blocks, rows)."""
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    places = tl.arange(0, PLACES)
    listed = places < blocks
    row_key = tl.max(tl.load(keys_ptr + row * blocks + places, mask=listed, other=MASKED_KEY), 0)
    usable = (row_key != MASKED_KEY) & (row_key != _POISONED_KEY)
    maximum = logits_as_float64(logits_of_keys(tl.where(usable, row_key, 0)))
    columns = block * BLOCK + tl.arange(0, BLOCK)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    # A row without candidates is not read: its exponentials would be numbers of nothing.
    logits = logits_as_float64(tl.load(row_ptr + columns, mask=(columns < width) & usable, other=-float("inf")))
    terms = exponential(logits - maximum, table_ptr)
    high = high_limb(terms)
    limbs = limbs_ptr + row * blocks * 2
    tl.store(limbs + block * 2, tl.sum(high, 0))
    tl.store(limbs + block * 2 + 1, tl.sum(low_limb(terms, high), 0))
    tl.debug_barrier()
    if tl.atomic_add(arrivals_ptr + row, 1, sem="acq_rel") == blocks - 1:
        high_sum = tl.sum(tl.load(limbs + places * 2, mask=listed, other=0, cache_modifier=".cg"), 0)
        low_sum = tl.sum(tl.load(limbs + places * 2 + 1, mask=listed, other=0, cache_modifier=".cg"), 0)
        request, place = row // (depth + 1), row % (depth + 1)
        verified = (place < depth) & (place < tl.load(usable_ptr + request))
        drafted = tl.load(drafted_ptr + request * depth + place, mask=verified, other=-1)
        write_statistics(
            statistics_ptr + row * 5, row_ptr, row_key, usable, drafted, width, first_token_id, high_sum, low_sum
        )
        tl.store(arrivals_ptr + row, 0)


_SHARD: Final = {"row_stride": "i64", "width": "i32", "first_token_id": "i32"}


def maxima_spec(tile: VerifyTile, logit_type: str) -> KernelSpec:
    """Return the specialisation of the first launch. logit_type: fp32 or bf16."""
    return KernelSpec(
        name=f"verify_maxima/{logit_type}/tile{tile.columns}",
        kernel=find_block_maxima,
        signature={"logits_ptr": f"*{logit_type}", **_SHARD, "keys_ptr": "*i64"},
        constants={"BLOCK": tile.columns},
        warps=tile.warps,
        stages=1,
        aligned=("keys_ptr",),
    )


def sums_spec(tile: VerifyTile, logit_type: str) -> KernelSpec:
    """Return the specialisation of the second launch. logit_type: fp32 or bf16."""
    pointers = {
        "table_ptr": "*fp64",
        "keys_ptr": "*i64",
        "limbs_ptr": "*i64",
        "arrivals_ptr": "*i32",
        "statistics_ptr": "*fp64",
    }
    drafts = {"drafted_ptr": "*i32", "usable_ptr": "*i32", "depth": "i32"}
    return KernelSpec(
        name=f"verify_sums/{logit_type}/tile{tile.columns}",
        kernel=sum_exponentials,
        signature={"logits_ptr": f"*{logit_type}", **_SHARD, **drafts, **pointers},
        constants={"BLOCK": tile.columns, "PLACES": tile.places},
        warps=tile.warps,
        stages=1,
        aligned=("drafted_ptr", "usable_ptr", "table_ptr", "keys_ptr", "limbs_ptr", "arrivals_ptr"),
    )


SPECS: Final = tuple(
    make(tile, logit_type) for make in (maxima_spec, sums_spec) for logit_type in LOGIT_TYPES.values() for tile in TILES
)


@dataclass(frozen=True, slots=True)
class StatisticsBuffers:
    """Scratch and output of launch_statistics, used again by every replay.

    keys int64 [rows, blocks], limbs int64 [rows, blocks, 2], arrivals int32 [rows] (0 between launches),
    table float64 [512], statistics float64 [rows, 5]: the bytes of the first exchange.
    """

    tile: VerifyTile
    keys: torch.Tensor
    limbs: torch.Tensor
    arrivals: torch.Tensor
    table: torch.Tensor
    statistics: torch.Tensor

    @classmethod
    def allocate(
        cls, rows: int, width: int, device: torch.device | str, tile: VerifyTile | None = None
    ) -> StatisticsBuffers:
        """Return buffers for rows of a shard of `width` columns, 1 .. 2^18-1. Raises ValueError for another width."""
        tile = tile or tile_of(width)
        blocks = triton.cdiv(width, tile.columns)
        return cls(
            tile=tile,
            keys=torch.empty((rows, blocks), dtype=torch.int64, device=device),
            limbs=torch.empty((rows, blocks, 2), dtype=torch.int64, device=device),
            arrivals=torch.zeros(rows, dtype=torch.int32, device=device),
            table=power_table(device),
            statistics=torch.empty((rows, STATISTICS_COLUMNS), dtype=torch.float64, device=device),
        )


def launch_statistics(
    logits: torch.Tensor,
    first_token_id: int,
    verify_round: VerifyRound,
    buffers: StatisticsBuffers,
    log: LaunchLog | None = None,
) -> torch.Tensor:
    """Write the bytes that shard_statistics(...).pack() gives into buffers.statistics, in two launches; return it.

    logits: float32 or bfloat16 [rows, width], columns contiguous; rows = requests * (depth + 1). Nothing is allocated
    or waited for. Raises ValueError for other shapes. Source: selector/target_statistics.py.
    """
    shape = launch_shape(logits, verify_round, buffers.keys.shape, buffers.tile)
    shard = (logits, logits.stride(0), shape.width, first_token_id)
    launch(maxima_spec(buffers.tile, shape.logit_type), shape.grid, (*shard, buffers.keys), log)
    launch(
        sums_spec(buffers.tile, shape.logit_type),
        shape.grid,
        (
            *shard,
            verify_round.drafted,
            verify_round.usable_depth,
            verify_round.depth,
            buffers.table,
            buffers.keys,
            buffers.limbs,
            buffers.arrivals,
            buffers.statistics,
        ),
        log,
    )
    return buffers.statistics
