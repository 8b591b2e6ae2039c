"""Both shards' exchanged words to law, counts, drawn token and digest, for all rows in one launch.

One program a row compares all 64 keys with each other: that finds a token listed twice, a token with two logits and
the place of every key at once, without trusting that a shard sent its keys sorted. Weights, counts, draw and digest
then are those of the pure laws, bit for bit. A row without a law is a status, never a trap.
Must never read a draw from anywhere but its name (seed, request, position), which lie in device memory so that a
replayed graph draws anew; never take the digest of other counts than those drawn from.

What limits it (estimated, not measured): latency alone. Two dependent reads from memory, 4,096 comparisons of keys over
four warps, one 64-bit division and ten rounds of Philox: about 2 us, whatever the number of rows up to several hundred.
Source: DESIGN section 3; selector/candidates.py, draft_law.py, philox.py and law_digest.py say what is computed.
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
    philox_words,
    pick_place,
    token_ids_of_keys,
    weights_of_keys,
)
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.shard_select import CANDIDATE_WORDS
from selector.law_ids import EXACT_LAW_ID, law_number
from selector.philox import Purpose

__all__ = ["SPECS", "DrawNames", "MergeBuffers", "law_number_as_int64", "merge_and_draw"]


@triton.jit
def _merged_keys(first_row, second_row):
    # Returns the 32 greatest distinct keys in descending order, and the row's status; of a row without a law, one
    # harmless key instead, so that what follows divides by no zero.
    entry = tl.arange(0, 64)
    pointers = tl.where(entry < 32, first_row + entry, second_row + (entry - 32))
    keys = tl.load(pointers)
    flags = tl.load(first_row + 32) | tl.load(second_row + 32)
    ordered = (keys >> 32).to(tl.int32)
    listed = keys != MASKED_KEY
    # A key of NaN or an infinity was never written by a shard that kept the law; it poisons the row all the same.
    foreign = listed & ((ordered >= POISON_ORDERED) | (ordered <= MASKED_ORDERED))
    poisoned = (flags != 0) | (tl.sum(foreign.to(tl.int32), 0) > 0)
    # Lanes hold keys and registers run over what each is compared with, so that sums need no shuffles.
    mine = keys[None, :]
    other = keys[:, None]
    same_token = (token_ids_of_keys(mine) == token_ids_of_keys(other)) & (mine != MASKED_KEY) & (other != MASKED_KEY)
    conflicts = tl.sum(tl.sum((same_token & (mine != other)).to(tl.int32), 0), 0)
    repeats = tl.sum(((mine == other) & (entry[:, None] < entry[None, :])).to(tl.int32), 0)
    kept = tl.where(repeats == 0, keys, MASKED_KEY)
    place_of = tl.sum((kept[:, None] > kept[None, :]).to(tl.int32), 0)
    number = tl.sum((kept != MASKED_KEY).to(tl.int32), 0)
    status = tl.where(poisoned, 1, tl.where(number == 0, 2, tl.where(conflicts > 0, 3, 0)))
    place = tl.arange(0, 32)
    merged = tl.max(tl.where(place_of[:, None] == place[None, :], kept[:, None], MASKED_KEY), 0)
    return tl.where(status == 0, merged, tl.where(place == 0, 0, MASKED_KEY)), status


@triton.jit(do_not_specialize=["first_words", "second_words", "law_number", "seeds", "requests", "positions"])
def merge_kernel(
    first_words,
    second_words,
    seeds,
    requests,
    positions,
    law_number: tl.int64,
    weight_table,
    token_ids,
    counts,
    numbers,
    tokens,
    digests,
    statuses,
    PURPOSE: tl.constexpr,  # noqa: N803 - Triton writes constants so
):
    """Grid (rows,). first_words, second_words: int64 (rows, 33); all other tensors have one entry or 32 a row."""
    row = tl.program_id(0).to(tl.int64)
    # The draw hangs on nothing that was exchanged, so it is made while the words are on their way.
    word, _, _, _ = philox_words(tl.load(seeds + row), tl.load(requests + row), tl.load(positions + row), PURPOSE)
    keys, status = _merged_keys(first_words + row * 33, second_words + row * 33)
    place = tl.arange(0, 32)
    listed = keys != MASKED_KEY
    valid = status == 0
    number = tl.sum(listed.to(tl.int32), 0)
    ids = tl.where(listed & valid, token_ids_of_keys(keys), -1)
    row_counts = counts_of_weights(weights_of_keys(keys, tl.max(keys, 0), weight_table))
    chosen = pick_place(row_counts, (word >> 8).to(tl.int64))
    token = tl.sum(tl.where(place == chosen, ids, 0), 0)
    digest = digest_of(ids, row_counts, number, token, law_number).to(tl.int64, bitcast=True)
    tl.store(token_ids + row * 32 + place, ids)
    tl.store(counts + row * 32 + place, tl.where(valid, row_counts, 0))
    tl.store(numbers + row, tl.where(valid, number, 0))
    tl.store(tokens + row, tl.where(valid, token, -1))
    tl.store(digests + row, tl.where(valid, digest, 0))
    tl.store(statuses + row, status)


MERGE_SPEC: Final = KernelSpec(
    name="merge_draw",
    kernel=merge_kernel,
    signature={
        "first_words": "*i64",
        "second_words": "*i64",
        "seeds": "*i64",
        "requests": "*i64",
        "positions": "*i64",
        "law_number": "i64",
        "weight_table": "*i64",
        "token_ids": "*i32",
        "counts": "*i64",
        "numbers": "*i32",
        "tokens": "*i32",
        "digests": "*i64",
        "statuses": "*i32",
    },
    constants={"PURPOSE": int(Purpose.PROPOSAL)},
    warps=4,
    stages=1,
    aligned=("weight_table", "token_ids", "counts", "numbers", "tokens", "digests", "statuses"),
)
SPECS: Final = (MERGE_SPEC,)


@dataclass(frozen=True, slots=True)
class DrawNames:
    """Names of all rows' draws, in device memory; whoever replays a graph advances positions.

    seeds, requests: the bits of uint64 as int64 (rows,); positions: int64 (rows,), each in 0 .. 2^32-1.
    """

    seeds: torch.Tensor
    requests: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class MergeBuffers:
    """The law and draw of every row, written anew by every launch.

    token_ids: int32 (rows, 32), -1 behind the candidates; counts: int64 (rows, 32), 0 behind them; numbers: int32
    (rows,); tokens: int32 (rows,), -1 without a law; digests: the bits of uint64 as int64 (rows,), 0 without a law;
    statuses: int32 (rows,), a RowStatus. weight_table: int64 (256,), a constant.
    """

    weight_table: torch.Tensor
    token_ids: torch.Tensor
    counts: torch.Tensor
    numbers: torch.Tensor
    tokens: torch.Tensor
    digests: torch.Tensor
    statuses: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> MergeBuffers:
        """Return room for `rows` rows, >= 1. Raises ValueError for none."""
        if rows < 1:
            raise ValueError(f"rows is {rows}, must be at least 1")

        def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            torch.tensor(WEIGHT_TABLE.tolist(), dtype=torch.int64, device=device),
            room(rows, 32, dtype=torch.int32),
            room(rows, 32, dtype=torch.int64),
            room(rows, dtype=torch.int32),
            room(rows, dtype=torch.int32),
            room(rows, dtype=torch.int64),
            room(rows, dtype=torch.int32),
        )


def law_number_as_int64(law_id: str) -> int:
    """Return law_number(law_id) as the signed integer of the same 64 bits, as kernels take it."""
    number = law_number(law_id)
    return number - (1 << 64) if number >> 63 else number


def merge_and_draw(
    first_words: torch.Tensor,
    second_words: torch.Tensor,
    names: DrawNames,
    buffers: MergeBuffers,
    law_id: str = EXACT_LAW_ID,
    log: LaunchLog | None = None,
) -> MergeBuffers:
    """Merge two shards' words as a set, make each row's law, draw its token by its name; one launch, into buffers.

    first_words, second_words: int64 (rows, 33), contiguous; names: one of each a row. Nothing is allocated or waited
    for. Raises ValueError for another shape or dtype. Source: DESIGN section 3.
    """
    rows = len(buffers.statuses)
    for what, tensor, shape in (
        ("first_words", first_words, (rows, CANDIDATE_WORDS)),
        ("second_words", second_words, (rows, CANDIDATE_WORDS)),
        ("seeds", names.seeds, (rows,)),
        ("requests", names.requests, (rows,)),
        ("positions", names.positions, (rows,)),
    ):
        if tensor.shape != shape or tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(f"{what} is {tensor.dtype} {tuple(tensor.shape)}, must be contiguous int64 {shape}")
    arguments = (
        first_words,
        second_words,
        names.seeds,
        names.requests,
        names.positions,
        law_number_as_int64(law_id),
        buffers.weight_table,
        buffers.token_ids,
        buffers.counts,
        buffers.numbers,
        buffers.tokens,
        buffers.digests,
        buffers.statuses,
    )
    launch(MERGE_SPEC, (rows,), arguments, log)
    return buffers
