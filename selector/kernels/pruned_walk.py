"""The whole pruned Markov walk of a round in one launch: a program a request, every depth in turn.

After one exchange of all depths' base candidates no rank needs its peer again: both hold the same words and the same
tables, so both draft the same tokens. A depth reads one row of W1 (of the token just drafted) and at most 64 rows of
W2; while they are on their way, the next depth's union is made, which hangs on no draft.
Must never let a status hang on a drafted token (but for the prefix that it breaks), and never read a table outside the
vocabulary: a foreign id is a status, not a trap.

What limits it (estimated, not measured): latency alone. A depth waits for one read of W1 and W2 from memory, since the
row of W1 hangs on the token before, then for about 8,000 comparisons over four warps, one 64-bit division, three scans
over 32 places: about 2.5 us a depth, whatever the batch up to several hundred requests.
Source: DESIGN section 3; selector/pruned_law.py says what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from selector.fixed_point import WEIGHT_TABLE
from selector.kernels.device_words import (
    MASKED_KEY,
    MASKED_ORDERED,
    POISON_ORDERED,
    counts_of_weights,
    digest_of,
    logits_of_keys,
    philox_words,
    pick_place,
    token_ids_of_keys,
    weight_of_exponent,
)
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.merge_draw import DrawNames, law_number_as_int64
from selector.kernels.shard_select import CANDIDATE_WORDS
from selector.philox import Purpose
from selector.pruned_law import BIAS_SHIFT_RANGE, DEPTH_RANGE, RANK_RANGE, SCALE_Q40, VOCABULARY_RANGE, PrunedLaw

__all__ = ["RANK_TILES", "SPECS", "DeviceHead", "WalkBuffers", "walk_requests", "walk_spec"]

ROW_WORD_STEP: Final = 16
"""Rows of tables are packed into 32-bit words and padded to a multiple of this, so that a lane reads 16 bytes."""
RANK_TILES: Final = (64, 128, 256)

_SCALE_Q40: Final = tl.constexpr(SCALE_Q40)
_EXPONENT_LIMIT: Final = tl.constexpr(63 << 32)
_GRID_LIMIT: Final = tl.constexpr(1073741824.0)
# Adding 1.5 * 2^52 rounds to the nearest integer, ties to even; the bit patterns then differ by that integer.
_ROUNDING: Final = tl.constexpr(6755399441055744.0)
_ROUNDING_BITS: Final = tl.constexpr(0x4338000000000000)
_FIRST_TOKEN_KEY: Final = tl.constexpr(0xFFFFFFFF)
_BELOW_ALL: Final = tl.constexpr(-(1 << 62))


@triton.jit
def union_of_shards(first_row, second_row, width, vocabulary):
    """Return int64 (64,) distinct keys of the first `width` of each shard, MASKED_KEY elsewhere, and the status.

    Of a depth without a law one harmless key (token 0, logit 0), so that what follows reads and divides soundly.
    """
    entry = tl.arange(0, 64)
    pointers = tl.where(entry < 32, first_row + entry, second_row + (entry - 32))
    keys = tl.load(pointers, mask=entry % 32 < width, other=MASKED_KEY)
    flags = tl.load(first_row + 32) | tl.load(second_row + 32)
    ordered = (keys >> 32).to(tl.int32)
    listed = keys != MASKED_KEY
    foreign = listed & ((ordered >= POISON_ORDERED) | (ordered <= MASKED_ORDERED))
    ids = token_ids_of_keys(keys)
    outside = listed & ((ids < 0) | (ids >= vocabulary))
    mine = keys[None, :]
    other = keys[:, None]
    same_token = (ids[None, :] == ids[:, None]) & listed[None, :] & listed[:, None]
    conflicts = tl.sum(tl.sum((same_token & (mine != other)).to(tl.int32), 0), 0)
    repeats = tl.sum(((mine == other) & (entry[:, None] < entry[None, :])).to(tl.int32), 0)
    # One sum answers three questions.
    asked = foreign.to(tl.int32) + (outside.to(tl.int32) << 8) + (listed.to(tl.int32) << 16)
    answer = tl.sum(asked, 0)
    poisoned = (flags != 0) | ((answer & 0xFF) > 0)
    strange = tl.where(conflicts > 0, 3, tl.where(((answer >> 8) & 0xFF) > 0, 5, 0))
    status = tl.where(poisoned, 1, tl.where((answer >> 16) == 0, 2, strange))
    kept = tl.where(repeats == 0, keys, MASKED_KEY)
    return tl.where(status == 0, kept, tl.where(entry == 0, _FIRST_TOKEN_KEY, MASKED_KEY)), status


@triton.jit
def grid_logits_of_keys(keys, grid_bits):
    """Return int64 logits in units of 2^-grid_bits of int64 keys, none of them MASKED_KEY; half to even, saturated."""
    unit = (tl.full((), 1, tl.int64) << grid_bits).to(tl.float64)
    scaled = tl.minimum(tl.maximum(logits_of_keys(keys).to(tl.float64) * unit, -_GRID_LIMIT), _GRID_LIMIT)
    return (scaled + _ROUNDING).to(tl.int64, bitcast=True) - _ROUNDING_BITS


@triton.jit
def shifted_dot(rows, row, bias_shift, BITS: tl.constexpr):  # noqa: N803 - Triton writes constants so
    """Return int64 (n,) dots of packed rows (n, words) with one packed row (1, words), shifted left.

    rows, row: int32, each word 32 // BITS signed integers of BITS bits, 8 or 16.
    """
    # A product of int8 needs 15 bits, so 256 of them stay in 32; one of int16 needs 31, so each is widened at once.
    total = tl.zeros_like(rows).to(tl.int32 if BITS == 8 else tl.int64)
    for part in tl.static_range(32 // BITS):
        left = (rows << (32 - BITS - part * BITS)) >> (32 - BITS)
        right = (row << (32 - BITS - part * BITS)) >> (32 - BITS)
        total += (left * right).to(total.dtype)
    return tl.sum(total, 1).to(tl.int64) << bias_shift


@triton.jit
def listed_by_score(scores, ids, listed, grid_bits):
    """Return ids int32 (32,), -1 behind, and int64 distances below the first, by (score descending, id ascending).

    scores: int64 (64,), below 2^61; ids: int32 (64,). Distances end at 32 logits.
    """
    scores = tl.where(listed, scores, _BELOW_ALL)
    other = scores[:, None]
    mine = scores[None, :]
    comes_before = (other > mine) | ((other == mine) & (ids[:, None] < ids[None, :]))
    place_of = tl.sum(comes_before.to(tl.int32), 0)
    limit = tl.full((), 32, tl.int64) << grid_bits
    distances = tl.minimum(tl.max(scores, 0) - scores, limit)
    packed = tl.where(listed, (distances << 32) | ids.to(tl.int64), -1)
    place = tl.arange(0, 32)
    best = tl.max(tl.where(place_of[:, None] == place[None, :], packed[:, None], -1), 0)
    return tl.where(best >= 0, (best & 0xFFFFFFFF).to(tl.int32), -1), tl.where(best >= 0, best >> 32, 0)


@triton.jit
def exponents_of_distances(distances, grid_bits):
    """Return Q32 int64 exponents of int64 distances, 0 .. 2^(5 + grid_bits); rounded half up, clamped at 63."""
    half = tl.full((), 128, tl.int64) << grid_bits
    return tl.minimum((distances * _SCALE_Q40 + half) >> (8 + grid_bits), _EXPONENT_LIMIT)


@triton.jit
def prefix_after(valid, drawn, before):
    """Return the token that the next depth is conditioned on: the drawn one, or, without a law, any sound one."""
    return tl.where(valid, drawn, before)


@triton.jit
def store_law(token_ids, counts, numbers, output, valid, best_ids, row_counts, number):
    # One depth's candidates and counts, or padding for a depth without a law.
    place = tl.arange(0, 32)
    tl.store(token_ids + output * 32 + place, tl.where(valid, best_ids, -1))
    tl.store(counts + output * 32 + place, tl.where(valid, row_counts, 0))
    tl.store(numbers + output, tl.where(valid, number, 0))


# fmt: off
@triton.jit(
    do_not_specialize=[
        "words",
        "requests_in_all",
        "depth",
        "width",
        "vocabulary",
        "bias_shift",
        "grid_bits",
        "prefix_tokens",
        "seeds",
        "requests",
        "positions",
        "law_number",
    ]
)
def walk_kernel(
    words, requests_in_all: tl.int32, depth: tl.int32, width: tl.int32, previous_table,
    following_table, vocabulary: tl.int32, row_words: tl.int32, bias_shift: tl.int32,
    grid_bits: tl.int32, prefix_tokens, seeds, requests, positions, law_number: tl.int64,
    weight_table, token_ids, counts, numbers, tokens, digests, statuses, WORD_TILE: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr, PURPOSE: tl.constexpr,  # noqa: N803
):
    """Grid (requests,). words: int64 (2, requests, depth, 33); all outputs have one entry or 32 a request and depth."""
    request = tl.program_id(0).to(tl.int64)
    seed = tl.load(seeds + request)
    name = tl.load(requests + request)
    position = tl.load(positions + request)
    token = tl.load(prefix_tokens + request)
    usable = ((token >= 0) & (token < vocabulary)).to(tl.int32)
    token = tl.where(usable != 0, token, 0)
    place = tl.arange(0, 32)
    column = tl.arange(0, WORD_TILE)[None, :]
    first_words = words + request * depth * 33
    second_words = first_words + requests_in_all.to(tl.int64) * depth * 33
    keys, own_status = union_of_shards(first_words, second_words, width, vocabulary)
    for step in range(depth):
        listed = keys != MASKED_KEY
        safe_keys = tl.where(listed, keys, _FIRST_TOKEN_KEY)
        ids = token_ids_of_keys(safe_keys)
        row = tl.load(previous_table + token.to(tl.int64) * row_words + column, mask=column < row_words, other=0)
        inside = (column < row_words) & listed[:, None]
        rows = tl.load(following_table + ids.to(tl.int64)[:, None] * row_words + column, mask=inside, other=0)
        # Neither hangs on the rows just asked for, so both are made while these are on their way.
        word, _, _, _ = philox_words(seed, name, position + step, PURPOSE)
        ahead = tl.minimum(step + 1, depth - 1) * 33
        next_keys, next_status = union_of_shards(first_words + ahead, second_words + ahead, width, vocabulary)
        scores = grid_logits_of_keys(safe_keys, grid_bits) + shifted_dot(rows, row, bias_shift, BITS)
        best_ids, distances = listed_by_score(scores, ids, listed, grid_bits)
        weights = weight_of_exponent(exponents_of_distances(distances, grid_bits), weight_table)
        row_counts = counts_of_weights(tl.where(best_ids >= 0, weights, 0))
        chosen = pick_place(row_counts, (word >> 8).to(tl.int64))
        drawn = tl.sum(tl.where(place == chosen, best_ids, 0), 0)
        number = tl.sum((best_ids >= 0).to(tl.int32), 0)
        digest = digest_of(best_ids, row_counts, number, drawn, law_number).to(tl.int64, bitcast=True)
        status = tl.where(usable != 0, own_status, 4)
        valid = status == 0
        output = request * depth + step
        store_law(token_ids, counts, numbers, output, valid, best_ids, row_counts, number)
        tl.store(tokens + output, tl.where(valid, drawn, -1))
        tl.store(digests + output, tl.where(valid, digest, 0))
        tl.store(statuses + output, status)
        usable = valid.to(tl.int32)
        token = prefix_after(valid, drawn, token)
        keys = next_keys
        own_status = next_status

# fmt: on

_BITS: Final = {torch.int8: 8, torch.int16: 16}


def walk_spec(bits: int, rank: int) -> KernelSpec:
    """Return the specialisation for tables of 8 or 16 bits an entry and a rank of 1 .. 256."""
    tile = next(tile for tile in RANK_TILES if rank <= tile)
    integers = {"depth": "i32", "width": "i32"}
    tables = {"previous_table": "*i32", "following_table": "*i32"}
    scalars = {"vocabulary": "i32", "row_words": "i32", "bias_shift": "i32", "grid_bits": "i32"}
    names = {"prefix_tokens": "*i32", "seeds": "*i64", "requests": "*i64", "positions": "*i64"}
    outputs = {
        "token_ids": "*i32",
        "counts": "*i64",
        "numbers": "*i32",
        "tokens": "*i32",
        "digests": "*i64",
        "statuses": "*i32",
    }
    return KernelSpec(
        name=f"pruned_walk/int{bits}/rank{tile}",
        kernel=walk_kernel,
        signature={
            "words": "*i64",
            "requests_in_all": "i32",
            **integers,
            **tables,
            **scalars,
            **names,
            "law_number": "i64",
            "weight_table": "*i64",
            **outputs,
        },
        constants={"WORD_TILE": tile * bits // 32, "BITS": bits, "PURPOSE": int(Purpose.PROPOSAL)},
        # 128 words of every row, held at once, are too many registers for four warps.
        warps=8 if tile * bits > 2048 else 4,
        stages=1,
        aligned=(*tables, "row_words", "weight_table", *outputs),
    )


SPECS: Final = tuple(walk_spec(bits, rank) for bits in _BITS.values() for rank in RANK_TILES)


@dataclass(frozen=True, slots=True)
class DeviceHead:
    """The Markov head on a device, the same on both ranks.

    previous, following: int32 (V, words), rows of W1 and W2 packed, 0 behind the rank, which changes no dot; rank:
    1 .. 256; bits: of an entry, 8 or 16; bias_shift: as MarkovHead's.
    """

    previous: torch.Tensor
    following: torch.Tensor
    rank: int
    bits: int
    bias_shift: int

    @classmethod
    def of_tables(
        cls, previous: torch.Tensor, following: torch.Tensor, bias_shift: int, device: torch.device
    ) -> DeviceHead:
        """Copy tables (V, r) onto a device, rows packed and padded. Raises ValueError for tables of no Markov head.

        previous, following: both int8 or both int16, 1 <= V <= 163,840, 1 <= r <= 256; bias_shift: 0 .. 16.
        """
        if (
            previous.dtype not in _BITS
            or following.dtype != previous.dtype
            or following.shape != previous.shape
            or previous.ndim != 2
            or previous.shape[0] not in VOCABULARY_RANGE
            or previous.shape[1] not in RANK_RANGE
        ):
            raise ValueError(
                f"tables are {previous.dtype} {tuple(previous.shape)} and {following.dtype} {tuple(following.shape)}, "
                "must both be int8 or both int16 of one shape (1 .. 163,840, 1 .. 256)"
            )
        if bias_shift not in BIAS_SHIFT_RANGE:
            raise ValueError(f"bias_shift is {bias_shift}, must be in 0 .. 16")
        bits, rank = _BITS[previous.dtype], previous.shape[1]
        padding = (0, -rank % (ROW_WORD_STEP * 32 // bits))
        first, second = (
            torch.nn.functional.pad(table, padding).contiguous().view(torch.int32).to(device)
            for table in (previous, following)
        )
        return cls(first, second, rank, bits, bias_shift)


@dataclass(frozen=True, slots=True)
class WalkBuffers:
    """The law and draw of every request and depth, written anew by every launch.

    token_ids: int32 (requests, depth, 32), -1 behind the candidates; counts: int64 (requests, depth, 32), 0 behind
    them; numbers, tokens (-1 without a law), statuses (a WalkStatus): int32 (requests, depth); digests: the bits of
    uint64 as int64 (requests, depth), 0 without a law. weight_table: int64 (256,), a constant.
    """

    weight_table: torch.Tensor
    token_ids: torch.Tensor
    counts: torch.Tensor
    numbers: torch.Tensor
    tokens: torch.Tensor
    digests: torch.Tensor
    statuses: torch.Tensor

    @classmethod
    def allocate(cls, requests: int, depth: int, device: torch.device) -> WalkBuffers:
        """Return room for `requests` >= 1 walks of depth 1 .. 8. Raises ValueError for others."""
        if requests < 1 or depth not in DEPTH_RANGE:
            raise ValueError(f"requests is {requests} and depth {depth}, must be at least 1 and 1 .. 8")

        def room(dtype: torch.dtype, *places: int) -> torch.Tensor:
            return torch.empty((requests, depth, *places), dtype=dtype, device=device)

        return cls(
            torch.tensor(WEIGHT_TABLE.tolist(), dtype=torch.int64, device=device),
            room(torch.int32, 32),
            room(torch.int64, 32),
            room(torch.int32),
            room(torch.int32),
            room(torch.int64),
            room(torch.int32),
        )


def walk_requests(
    words: torch.Tensor,
    head: DeviceHead,
    prefix_tokens: torch.Tensor,
    names: DrawNames,
    law: PrunedLaw,
    buffers: WalkBuffers,
    log: LaunchLog | None = None,
) -> WalkBuffers:
    """Draft every request's whole walk from the exchanged words, in one launch, into buffers.

    words: int64 (2, requests, depth, 33), both shards' in shard order; prefix_tokens: int32 (requests,), the token
    before the walk; names: one a request, of its first depth. Nothing is allocated or waited for.
    Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    requests, depth = buffers.statuses.shape
    for what, tensor, dtype, shape in (
        ("words", words, torch.int64, (2, requests, depth, CANDIDATE_WORDS)),
        ("prefix_tokens", prefix_tokens, torch.int32, (requests,)),
        ("seeds", names.seeds, torch.int64, (requests,)),
        ("requests", names.requests, torch.int64, (requests,)),
        ("positions", names.positions, torch.int64, (requests,)),
    ):
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(f"{what} is {tensor.dtype} {tuple(tensor.shape)}, must be contiguous {dtype} {shape}")
    vocabulary, row_words = head.previous.shape
    scalars = (vocabulary, row_words, head.bias_shift, law.grid_bits)
    arguments = (
        *(words, requests, depth, law.width, head.previous, head.following, *scalars, prefix_tokens),
        *(names.seeds, names.requests, names.positions, law_number_as_int64(law.law_id), buffers.weight_table),
        *(buffers.token_ids, buffers.counts, buffers.numbers, buffers.tokens, buffers.digests, buffers.statuses),
    )
    launch(walk_spec(head.bits, head.rank), (requests,), arguments, log)
    return buffers
