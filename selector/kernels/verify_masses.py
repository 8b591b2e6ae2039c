"""Second exchange of a verify on the device: a shard's masses of p and of (p - q)+, and its candidate token for both.

Two launches. In the first every block merges its row's exchanged statistics, turns its logits into integer masses and
leaves two sums: of p, and of (p - q)+, which differ only at the draft law's candidates, so the block looks at those 32
and at nothing twice. In the second one program a row and law adds the block sums up, finds the block that holds the aim
of draw lane 1, and weighs that block alone again; a last block of the first launch would have to make both picks one
after the other, and would need registers that the weighing lacks.
Sums and picks are exact integers, so the bits are those of numpy.
Must never see the peer's logits, and never draw from a mass of zero.
Source: DESIGN section 3, "Acceptance"; the reference is selector/target_masses.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from selector.kernels.device_exponential import (
    MASS_UNIT,
    exponential,
    logits_as_float64,
    mass_of_probability,
    merged_scale,
    merged_sum,
)
from selector.kernels.device_words import philox_words
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.verify_round import (
    CANDIDATES,
    LOGIT_TYPES,
    TILES,
    VerifyRound,
    VerifyTile,
    launch_shape,
    power_table,
    tile_of,
)
from selector.kernels.wide_integers import draw64, multiply_high
from selector.philox import Purpose

__all__ = [
    "MASSES_COLUMNS",
    "SPECS",
    "MassesBuffers",
    "check_exchanged",
    "launch_masses",
    "merged_row",
    "pick_spec",
    "weigh_spec",
]

MASSES_COLUMNS: Final = 4
_RESIDUAL: Final = tl.constexpr(int(Purpose.RESIDUAL))
_TARGET_ONLY: Final = tl.constexpr(int(Purpose.TARGET_ONLY))
# A count of 2^-24 in units of 2^-63.
_COUNT_SHIFT: Final = tl.constexpr(39)


@triton.jit
def merged_row(statistics_ptr, shard_stride, rows, inside, table_ptr):
    """Return (maximum, sum-exp, valid) of rows from float64 [2, rows, 5]; rows not inside are invalid, with 0 and 1."""
    shard0 = statistics_ptr + rows * 5
    shard1 = shard0 + shard_stride
    maximum0 = tl.load(shard0, mask=inside, other=-float("inf"))
    maximum1 = tl.load(shard1, mask=inside, other=-float("inf"))
    poisoned0 = tl.load(shard0 + 2, mask=inside, other=1.0)
    poisoned1 = tl.load(shard1 + 2, mask=inside, other=1.0)
    maximum, valid = merged_scale(maximum0, poisoned0, maximum1, poisoned1)
    sum0 = tl.load(shard0 + 1, mask=inside, other=0.0)
    sum1 = tl.load(shard1 + 1, mask=inside, other=0.0)
    maximum = tl.where(valid, maximum, 0.0)
    sum_exp = merged_sum(maximum0, sum0, maximum1, sum1, maximum, valid, table_ptr)
    # By way of an integer: the interpreter spreads a scalar comparison of floats over a block as floats.
    return maximum, sum_exp, tl.where(valid, 1, 0) != 0


@triton.jit
def masses_at(row_ptr, columns, inside, maximum, sum_exp, table_ptr):
    """Return the uint64 masses of a row's columns, 0 where not inside; row_ptr: column 0 of that row."""
    logits = logits_as_float64(tl.load(row_ptr + columns, mask=inside, other=-float("inf")))
    return mass_of_probability(exponential(logits - maximum, table_ptr) / sum_exp)


@triton.jit
def aim_of(sums, draw):
    """Return (total, place of the block that holds the aim, aim within it) for uint64 block sums; total may be 0."""
    total = tl.sum(sums, 0)
    aim = multiply_high(draw, total)
    below = tl.cumsum(sums, 0) <= aim
    place = tl.sum(below.to(tl.int32), 0)
    return total, place, aim - tl.sum(tl.where(below, sums, tl.zeros_like(sums)), 0)


@triton.jit
def write_pick(masses_ptr, masses, block, aim, total, first_token_id, BLOCK: tl.constexpr):  # noqa: N803
    """Write a mass as float64, and the global id of the token that holds the aim within its block, -1 for no mass."""
    index = tl.sum((tl.cumsum(masses, 0) <= aim).to(tl.int32), 0)
    token = tl.where(total > 0, first_token_id + block * BLOCK + index, -1)
    tl.store(masses_ptr, total.to(tl.float64) * MASS_UNIT)
    tl.store(masses_ptr + 1, token.to(tl.float64))


@triton.jit
def draw_within_shard(seed_ptr, request_ptr, position_ptr, request, place, purpose):
    """Return the uint64 draw of lane 1 for row `place` of a request."""
    seed, name = tl.load(seed_ptr + request), tl.load(request_ptr + request)
    _, _, upper, lower = philox_words(seed, name, tl.load(position_ptr + request) + place, purpose)
    return draw64(upper, lower)


@triton.jit
def without_draft_law(masses, columns, ids_ptr, counts_ptr, number, first_token_id):
    """Return the uint64 masses of (p - q)+ at those columns from those of p; ids, counts: those of the row."""
    for place in range(number):
        column = tl.load(ids_ptr + place) - first_token_id
        drafted = tl.load(counts_ptr + place).to(tl.uint64) << _COUNT_SHIFT
        masses = tl.where(columns == column, masses - tl.minimum(masses, drafted), masses)
    return masses


@triton.jit
def law_size(usable_ptr, number_ptr, request, place, depth, row, CANDIDATES: tl.constexpr):  # noqa: N803
    """Return the number of candidates that a row is verified with, 0 for a row that verifies nothing."""
    verified = (place < depth) & (place < tl.load(usable_ptr + request))
    return tl.where(verified, tl.minimum(tl.load(number_ptr + row), CANDIDATES), 0)


@triton.jit(do_not_specialize=["logits_ptr", "row_stride", "width", "first_token_id", "depth"])
def weigh_blocks(
    logits_ptr,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    statistics_ptr,
    usable_ptr,
    ids_ptr,
    counts_ptr,
    number_ptr,
    depth: tl.int32,
    table_ptr,
    sums_ptr,
    BLOCK: tl.constexpr,  # noqa: N803 - Triton writes constants so
    CANDIDATES: tl.constexpr,  # noqa: N803
):
    """Leave both sums of one block of one row; grid (blocks, rows)."""
    block, row = tl.program_id(0), tl.program_id(1)
    maximum, sum_exp, valid = merged_row(statistics_ptr, tl.num_programs(1) * 5, row, row >= 0, table_ptr)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    columns = block * BLOCK + tl.arange(0, BLOCK)
    target = tl.sum(masses_at(row_ptr, columns, (columns < width) & valid, maximum, sum_exp, table_ptr), 0)
    number = law_size(usable_ptr, number_ptr, row // (depth + 1), row % (depth + 1), depth, row, CANDIDATES)
    lanes = tl.arange(0, CANDIDATES)
    listed = tl.load(ids_ptr + row * CANDIDATES + lanes, mask=lanes < number, other=-1) - first_token_id
    drafted = tl.load(counts_ptr + row * CANDIDATES + lanes, mask=lanes < number, other=0).to(tl.uint64) << _COUNT_SHIFT
    here = (lanes < number) & (listed >= block * BLOCK) & (listed < tl.minimum(width, (block + 1) * BLOCK)) & valid
    shared = tl.minimum(masses_at(row_ptr, listed, here, maximum, sum_exp, table_ptr), drafted)
    residual = tl.where(number > 0, target - tl.sum(shared, 0), tl.zeros_like(target))
    sums = sums_ptr + (row * tl.num_programs(0) + block) * 2
    tl.store(sums, target.to(tl.int64, bitcast=True))
    tl.store(sums + 1, residual.to(tl.int64, bitcast=True))


# The output may be one half of the exchanged buffer, at any multiple of 8 bytes.
@triton.jit(do_not_specialize=["logits_ptr", "row_stride", "width", "first_token_id", "depth", "blocks", "masses_ptr"])
def pick_tokens(
    logits_ptr,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    statistics_ptr,
    usable_ptr,
    ids_ptr,
    counts_ptr,
    number_ptr,
    depth: tl.int32,
    table_ptr,
    sums_ptr,
    seed_ptr,
    request_ptr,
    position_ptr,
    blocks: tl.int32,
    masses_ptr,
    BLOCK: tl.constexpr,  # noqa: N803
    PLACES: tl.constexpr,  # noqa: N803
    CANDIDATES: tl.constexpr,  # noqa: N803
):
    """Write mass and candidate of one row from p (program 0) or from (p - q)+ (program 1); grid (2, rows)."""
    which, row = tl.program_id(0), tl.program_id(1)
    request, place = row // (depth + 1), row % (depth + 1)
    maximum, sum_exp, valid = merged_row(statistics_ptr, tl.num_programs(1) * 5, row, row >= 0, table_ptr)
    places = tl.arange(0, PLACES)
    sums = tl.load(sums_ptr + (row * blocks + places) * 2 + which, mask=places < blocks, other=0)
    purpose = _TARGET_ONLY + which * (_RESIDUAL - _TARGET_ONLY)
    draw = draw_within_shard(seed_ptr, request_ptr, position_ptr, request, place, purpose)
    total, home, aim = aim_of(sums.to(tl.uint64, bitcast=True), draw)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    columns = home * BLOCK + tl.arange(0, BLOCK)
    masses = masses_at(row_ptr, columns, (columns < width) & valid, maximum, sum_exp, table_ptr)
    # The two laws differ by the draft law's candidates alone.
    number = which * law_size(usable_ptr, number_ptr, request, place, depth, row, CANDIDATES)
    law = row * CANDIDATES
    masses = without_draft_law(masses, columns, ids_ptr + law, counts_ptr + law, number, first_token_id)
    write_pick(masses_ptr + row * 4 + which * 2, masses, home, aim, total, first_token_id, BLOCK)


_LAW: Final = {"usable_ptr": "*i32", "ids_ptr": "*i32", "counts_ptr": "*i64", "number_ptr": "*i32"}
_SCRATCH: Final = {"table_ptr": "*fp64", "sums_ptr": "*i64"}


def _shard(logit_type: str) -> dict[str, str]:
    shard = {"logits_ptr": f"*{logit_type}", "row_stride": "i64", "width": "i32", "first_token_id": "i32"}
    return {**shard, "statistics_ptr": "*fp64", **_LAW, "depth": "i32", **_SCRATCH}


def weigh_spec(tile: VerifyTile, logit_type: str) -> KernelSpec:
    """Return the specialisation of the first launch. logit_type: fp32 or bf16."""
    return KernelSpec(
        name=f"verify_weigh/{logit_type}/tile{tile.columns}",
        kernel=weigh_blocks,
        signature=_shard(logit_type),
        constants={"BLOCK": tile.columns, "CANDIDATES": CANDIDATES},
        warps=tile.warps,
        stages=1,
        aligned=("statistics_ptr", *_LAW, *_SCRATCH),
    )


def pick_spec(tile: VerifyTile, logit_type: str) -> KernelSpec:
    """Return the specialisation of the second launch. logit_type: fp32 or bf16."""
    names = {"seed_ptr": "*i64", "request_ptr": "*i64", "position_ptr": "*i64"}
    return KernelSpec(
        name=f"verify_pick/{logit_type}/tile{tile.columns}",
        kernel=pick_tokens,
        signature={**_shard(logit_type), **names, "blocks": "i32", "masses_ptr": "*fp64"},
        constants={"BLOCK": tile.columns, "PLACES": tile.places, "CANDIDATES": CANDIDATES},
        warps=tile.warps,
        stages=1,
        aligned=("statistics_ptr", *_LAW, *_SCRATCH, *names),
    )


SPECS: Final = tuple(
    make(tile, logit_type) for make in (weigh_spec, pick_spec) for logit_type in LOGIT_TYPES.values() for tile in TILES
)


@dataclass(frozen=True, slots=True)
class MassesBuffers:
    """Scratch and output of launch_masses, used again by every replay.

    sums int64 [rows, blocks, 2] (uint64 bits), table float64 [512], masses float64 [rows, 4]: the bytes of the second
    exchange.
    """

    tile: VerifyTile
    sums: torch.Tensor
    table: torch.Tensor
    masses: torch.Tensor

    @classmethod
    def allocate(
        cls, rows: int, width: int, device: torch.device | str, tile: VerifyTile | None = None
    ) -> MassesBuffers:
        """Return buffers for rows of a shard of `width` columns, 1 .. 2^18-1. Raises ValueError for another width."""
        tile = tile or tile_of(width)
        return cls(
            tile=tile,
            sums=torch.empty((rows, triton.cdiv(width, tile.columns), 2), dtype=torch.int64, device=device),
            table=power_table(device),
            masses=torch.empty((rows, MASSES_COLUMNS), dtype=torch.float64, device=device),
        )


def launch_masses(
    logits: torch.Tensor,
    first_token_id: int,
    exchanged_statistics: torch.Tensor,
    verify_round: VerifyRound,
    buffers: MassesBuffers,
    log: LaunchLog | None = None,
) -> torch.Tensor:
    """Write the bytes that shard_masses(...).pack() gives into buffers.masses, in two launches, and return it.

    logits: float32 or bfloat16 [rows, width], columns contiguous; exchanged_statistics: float64 [2, rows, 5],
    contiguous, in shard order. Nothing is allocated or waited for. Raises ValueError for other shapes.
    Source: selector/target_masses.py.
    """
    shape = launch_shape(logits, verify_round, buffers.sums.shape, buffers.tile)
    check_exchanged("statistics", exchanged_statistics, (2, verify_round.rows, 5))
    blocks, rows = shape.grid
    shard = (
        *(logits, logits.stride(0), shape.width, first_token_id, exchanged_statistics, verify_round.usable_depth),
        *(verify_round.ids, verify_round.counts, verify_round.number, verify_round.depth, buffers.table, buffers.sums),
    )
    launch(weigh_spec(buffers.tile, shape.logit_type), shape.grid, shard, log)
    names = (verify_round.seed, verify_round.request, verify_round.position)
    launch(pick_spec(buffers.tile, shape.logit_type), (2, rows), (*shard, *names, blocks, buffers.masses), log)
    return buffers.masses


def check_exchanged(name: str, exchanged: torch.Tensor, shape: tuple[int, int, int]) -> None:
    """Hold that exchanged numbers are contiguous float64 of that shape. Raises ValueError."""
    if tuple(exchanged.shape) != shape or exchanged.dtype != torch.float64 or not exchanged.is_contiguous():
        raise ValueError(
            f"exchanged {name} are {exchanged.dtype} {tuple(exchanged.shape)}, must be contiguous float64 {shape}"
        )
