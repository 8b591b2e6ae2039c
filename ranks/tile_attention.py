"""Window attention in fixed tiles: 8 query rows of one slot against key blocks of 64 aligned from position 0.

A row's result is built from one partial sum a key block, added in block order, so it does not depend on which
rows share its tile, on the batch, or on who wrote the keys. Blocks outside a row's window add exact zeros.
Keys past a tile's last row or before its window are not read. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ranks.kv_slots import BLOCK_KEYS, KvSlots
from ranks.model_config import ModelConfig
from ranks.row_tiles import padded_row_count

__all__ = ["QUERY_ROWS", "TILE_BLOCKS", "AttentionPlan", "RowSpan", "TileAttention"]

QUERY_ROWS = 8
TILE_BLOCKS = 6
TILE_KEYS = TILE_BLOCKS * BLOCK_KEYS
# exp of anything lower is taken as exp(-80): it keeps denormals and -inf, which are slow, out of the kernel.
LEAST_EXPONENT = -80.0


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Consecutive rows of one slot, positions start .. start + count - 1; nothing before `first_position` is read."""

    slot: int
    start: int
    count: int
    first_position: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Index tensors of one forward, shared by all layers.

    write_rows int64 [rows * heads]: ring rows of the new keys. read_rows int64 [tiles * heads * 384].
    query_chunks int64 [tiles * heads * 6 * 8]: head-wide chunks of the projection, by chunks a row (layers
    differ in what follows the values). output_chunks int64 [padded rows * heads]. bias fp32 (-inf outside the
    window) and inside int32 (all bits set inside, none outside) [tiles * heads * 6, 8, 64].
    """

    tile_count: int
    row_count: int
    write_rows: Tensor
    read_rows: Tensor
    query_chunks: dict[int, Tensor]
    output_chunks: Tensor
    bias: Tensor
    inside: Tensor


def _in_block_order(parts: Tensor) -> Tensor:
    """Return the sum over the block axis, fp32 [tiles, heads, 6, ...], first block first.

    Starting from +0.0 makes a block of zeros neutral, whatever its sign and wherever it stands.
    """
    first, *others = parts.unbind(2)
    total = first + 0.0
    for part in others:
        total.add_(part)
    return total


class TileAttention:
    """Plans and runs attention of one rank's heads over `KvSlots`."""

    def __init__(self, config: ModelConfig, rank: int, slots: KvSlots, device: str) -> None:
        if config.window_size + QUERY_ROWS - 1 > TILE_KEYS - BLOCK_KEYS + 1:
            raise ValueError(f"window_size is {config.window_size}; at most {TILE_KEYS - BLOCK_KEYS - 6} fits a tile")
        self._slots = slots
        self._device = device
        self._heads = config.shard_heads
        self._window = config.window_size
        self._key_width = config.head_width
        first = rank * self._heads
        slopes = [2.0**-exponent for exponent in config.slope_exponents[first : first + self._heads]]
        self._bias, self._inside = self._tables(slopes)

    def _tables(self, slopes: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return bias fp32 and inside int32 [64, heads * 6 * 8 * 64], by the first row's position modulo 64."""
        phase = np.arange(BLOCK_KEYS)
        first_row = phase - BLOCK_KEYS * ((phase + QUERY_ROWS - 1) // BLOCK_KEYS - (TILE_BLOCKS - 1))
        rows = first_row[:, None] + np.arange(QUERY_ROWS)
        keys = np.arange(TILE_KEYS).reshape(TILE_BLOCKS, 1, BLOCK_KEYS)
        distance = rows[:, None, :, None] - keys
        outside = (distance < 0) | (distance >= self._window)
        bias = -np.asarray(slopes, dtype=np.float32)[None, :, None, None, None] * distance[:, None].astype(np.float32)
        bias = np.where(outside[:, None], np.float32("-inf"), bias)
        inside = np.where(np.isinf(bias), np.int32(0), np.int32(-1))
        return (
            torch.from_numpy(bias.reshape(BLOCK_KEYS, -1).copy()).to(self._device),
            torch.from_numpy(inside.reshape(BLOCK_KEYS, -1).copy()).to(self._device),
        )

    def plan(self, spans: Sequence[RowSpan], chunks_a_row: Iterable[int]) -> AttentionPlan:
        """Return the index tensors of rows laid out span after span, for each count of head-wide chunks a row."""
        tiles = [
            (span, offset, min(QUERY_ROWS, span.count - offset))
            for span in spans
            for offset in range(0, span.count, QUERY_ROWS)
        ]
        row_count = sum(span.count for span in spans)
        starts = np.array([span.start + offset for span, offset, _ in tiles], dtype=np.int64)
        counts = np.array([count for _, _, count in tiles], dtype=np.int64)
        firsts = np.array([span.first_position for span, _, _ in tiles], dtype=np.int64)
        slots = np.array([span.slot for span, _, _ in tiles], dtype=np.int64)
        bases = BLOCK_KEYS * ((starts + QUERY_ROWS - 1) // BLOCK_KEYS - (TILE_BLOCKS - 1))
        keys = bases[:, None] + np.arange(TILE_KEYS, dtype=np.int64)
        readable = (keys >= np.maximum(firsts, starts - self._window + 1)[:, None]) & (
            keys < (starts + counts)[:, None]
        )
        first_rows = np.cumsum(counts) - counts
        phases = self._on_device(starts % BLOCK_KEYS)
        shape = (len(tiles) * self._heads * TILE_BLOCKS, QUERY_ROWS, BLOCK_KEYS)
        bias = self._bias.index_select(0, phases).view(shape)
        inside = self._inside.index_select(0, phases).view(shape)
        if bool((firsts > bases).any()):
            early = self._on_device(keys < firsts[:, None]).view(len(tiles), 1, TILE_BLOCKS, 1, BLOCK_KEYS)
            spread = (len(tiles), self._heads, TILE_BLOCKS, QUERY_ROWS, BLOCK_KEYS)
            bias.view(spread).masked_fill_(early, float("-inf"))
            inside.view(spread).masked_fill_(early, 0)
        return AttentionPlan(
            tile_count=len(tiles),
            row_count=row_count,
            write_rows=self._on_device(self._write_rows(spans)),
            read_rows=self._on_device(self._read_rows(slots, keys, readable)),
            query_chunks={
                chunks: self._on_device(self._query_chunks(first_rows, counts, chunks)) for chunks in chunks_a_row
            },
            output_chunks=self._on_device(self._output_chunks(first_rows, counts, row_count)),
            bias=bias,
            inside=inside,
        )

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _write_rows(self, spans: Sequence[RowSpan]) -> NDArray[np.int64]:
        """Return int64 [rows * heads], row after row."""
        parts = [
            self._slots.row_indices(span.slot, np.arange(span.start, span.start + span.count, dtype=np.int64)).T
            for span in spans
        ]
        return np.ascontiguousarray(np.concatenate(parts)).reshape(-1)

    def _read_rows(
        self, slots: NDArray[np.int64], keys: NDArray[np.int64], readable: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return int64 [tiles * heads * 384]; a key that is not readable points to the row of zeros."""
        rows = np.empty((len(slots), self._heads, TILE_KEYS), dtype=np.int64)
        for tile, slot in enumerate(slots):
            rows[tile] = self._slots.row_indices(int(slot), keys[tile])
        return np.where(readable[:, None, :], rows, self._slots.zero_row).reshape(-1)

    def _query_chunks(
        self, first_rows: NDArray[np.int64], counts: NDArray[np.int64], chunks_a_row: int
    ) -> NDArray[np.int64]:
        """Return int64 [tiles * heads * 6 * 8]; a tile that is not full repeats its last row."""
        places = np.arange(QUERY_ROWS, dtype=np.int64)
        rows = first_rows[:, None] + np.minimum(places, counts[:, None] - 1)
        chunks = rows[:, None, :] * chunks_a_row + np.arange(self._heads, dtype=np.int64)[:, None]
        repeated: NDArray[np.int64] = np.repeat(chunks[:, :, None, :], TILE_BLOCKS, axis=2)
        return repeated.reshape(-1)

    def _output_chunks(
        self, first_rows: NDArray[np.int64], counts: NDArray[np.int64], row_count: int
    ) -> NDArray[np.int64]:
        """Return int64 [padded rows * heads]; rows of the padding take the first tile's first row."""
        tile_of_row = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        place_of_row = np.arange(row_count, dtype=np.int64) - first_rows[tile_of_row]
        outputs = np.zeros((padded_row_count(row_count), self._heads), dtype=np.int64)
        first_chunks = tile_of_row[:, None] * self._heads + np.arange(self._heads, dtype=np.int64)
        outputs[:row_count] = first_chunks * QUERY_ROWS + place_of_row[:, None]
        return outputs.reshape(-1)

    def run(self, layer: int, projected: Tensor, plan: AttentionPlan) -> Tensor:
        """Store the rows' keys and values, attend, and return fp32 [padded rows, heads * head_width].

        `projected` fp32 [tiles, 24, columns]: queries of all heads (already scaled), then key and value of
        each head in turn, then whatever else.
        """
        heads, width = self._heads, self._key_width
        columns = projected.shape[-1]
        flat = projected.view(-1, columns)
        keys_values = flat[: plan.row_count, heads * width : 3 * heads * width].reshape(-1, 2 * width)
        self._slots.write(layer, plan.write_rows, keys_values)
        queries = flat.view(-1, width).index_select(0, plan.query_chunks[columns // width]).view(-1, QUERY_ROWS, width)
        read = self._slots.read(layer, plan.read_rows).view(-1, BLOCK_KEYS, 2 * width)
        scores = torch.bmm(queries, read[:, :, :width].transpose(1, 2))
        blocks = scores.view(plan.tile_count, heads, TILE_BLOCKS, QUERY_ROWS, BLOCK_KEYS)
        # Masks work on the bits: a score outside the window becomes 0 whatever it was, NaN included.
        bits = scores.view(torch.int32)
        bits.bitwise_and_(plan.inside)
        scores.add_(plan.bias)
        blocks.sub_(blocks.amax(dim=(2, 4), keepdim=True)).clamp_(min=LEAST_EXPONENT).exp_()
        bits.bitwise_and_(plan.inside)
        parts = torch.bmm(scores, read[:, :, width:])
        parts = parts.view(plan.tile_count, heads, TILE_BLOCKS, QUERY_ROWS, width)
        total, weight = _in_block_order(parts), _in_block_order(blocks.sum(dim=-1))
        total.div_(weight.unsqueeze(-1))
        return total.view(-1, width).index_select(0, plan.output_chunks).view(-1, heads * width)
