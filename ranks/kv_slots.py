"""The KV cache of one rank: a ring of 512 positions a slot, in blocks of 64 aligned from position 0.

Nothing inside an attention window is overwritten: a forward writes at most 192 positions, a row looks back at
most 255. A key that a row may not see is not read at all: its index points to a row of zeros.
Must never decide what is written: it stores, copies and indexes. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ranks.model_config import ModelConfig

__all__ = ["BLOCK_KEYS", "MAX_FORWARD_ROWS", "RING_POSITIONS", "KvSlots", "SlotSnapshot", "SlotState"]

BLOCK_KEYS = 64
RING_POSITIONS = 512
MAX_FORWARD_ROWS = 192


@dataclass(slots=True)
class SlotState:
    """What a slot knows beside its ring: length in tokens, first readable position, last two tokens, hidden.

    `hidden`: fp32 [width] on the CPU, the target's final hidden of position length-1 (zeros when empty).
    """

    first_position: int
    length: int
    last_tokens: tuple[int, int]
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A slot's whole state, copied: ring fp32 [layers, heads * 512, 2 * head_width] and `SlotState`."""

    ring: Tensor = field(repr=False)
    first_position: int
    length: int
    last_tokens: tuple[int, int]
    hidden: Tensor = field(repr=False)


class KvSlots:
    """Rings of every layer and slot, keys and values side by side, plus one row of zeros."""

    def __init__(self, config: ModelConfig, slot_count: int, device: str) -> None:
        if config.window_size + MAX_FORWARD_ROWS > RING_POSITIONS:
            raise ValueError(f"window_size is {config.window_size}; at most {RING_POSITIONS - MAX_FORWARD_ROWS} fits")
        self._heads = config.shard_heads
        self._slot_rows = self._heads * RING_POSITIONS
        self._end_token_id = config.end_token_id
        self._width = config.model_width
        self.zero_row = slot_count * self._slot_rows
        self.key_width = config.head_width
        self.slot_count = slot_count
        self.rings = torch.zeros(
            (config.layer_count, self.zero_row + 1, 2 * config.head_width), dtype=torch.float32, device=device
        )
        self.states = [self._empty(0) for _ in range(slot_count)]

    def _empty(self, first_position: int) -> SlotState:
        ends = (self._end_token_id, self._end_token_id)
        return SlotState(first_position, first_position, ends, torch.zeros(self._width, device=self.rings.device))

    def clear(self, slot: int, first_position: int) -> None:
        """Forget a slot; its next token stands at `first_position` and sees nothing before it."""
        self.states[slot] = self._empty(first_position)

    def row_indices(self, slot: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [heads, n]: ring rows of `positions` int64 [n] of one slot."""
        first_rows = slot * self._slot_rows + np.arange(self._heads, dtype=np.int64) * RING_POSITIONS
        rows: NDArray[np.int64] = first_rows[:, None] + positions[None, :] % RING_POSITIONS
        return rows

    def write(self, layer: int, rows: Tensor, keys_values: Tensor) -> None:
        """Store fp32 [n, 2 * head_width] at ring rows int64 [n].

        A pair that is not finite is stored as a NaN key and a zero value, so that every row that may see it
        becomes NaN and no other row is touched by it (0 * NaN is NaN in a shared tile).
        """
        if not math.isfinite(float(keys_values.sum())):
            finite = torch.isfinite(keys_values).all(dim=-1, keepdim=True)
            sealed = torch.zeros_like(keys_values[:1])
            sealed[:, : self.key_width] = float("nan")
            keys_values = torch.where(finite, keys_values, sealed)
        self.rings[layer].index_copy_(0, rows, keys_values)

    def read(self, layer: int, rows: Tensor) -> Tensor:
        """Return fp32 [n, 2 * head_width] of ring rows int64 [n]; `zero_row` reads zeros."""
        return self.rings[layer].index_select(0, rows)

    def snapshot(self, slot: int) -> SlotSnapshot:
        """Return a copy of a slot that later writes do not touch."""
        state = self.states[slot]
        ring = self.rings[:, slot * self._slot_rows : (slot + 1) * self._slot_rows].clone()
        return SlotSnapshot(ring, state.first_position, state.length, state.last_tokens, state.hidden.clone())

    def restore(self, slot: int, snapshot: SlotSnapshot) -> None:
        """Make a slot what it was when `snapshot` was taken (of this or another slot)."""
        self.rings[:, slot * self._slot_rows : (slot + 1) * self._slot_rows].copy_(snapshot.ring)
        self.states[slot] = SlotState(
            snapshot.first_position, snapshot.length, snapshot.last_tokens, snapshot.hidden.clone()
        )
