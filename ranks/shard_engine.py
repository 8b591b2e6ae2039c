"""One rank's model: slots, prefill, parallel drafts, verify, commit; the same bits whatever shares the batch.

Both ranks call the same methods with the same arguments in the same order. Must never draw a token, read a clock
or know the protocol. Rows are positions: a round at x_1..x_n has KV of x_1..x_{n-1}, the hidden of x_{n-1}, and
anchor x_n. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ranks.collective import Collective
from ranks.drafter_model import DrafterShard
from ranks.kv_slots import MAX_FORWARD_ROWS, KvSlots, SlotSnapshot
from ranks.model_config import ModelConfig
from ranks.ngram_memory import CONTEXT_TOKENS
from ranks.row_invariance import kernels_are_row_invariant
from ranks.row_tiles import TILE_ROWS, padded_row_count
from ranks.target_model import TargetShard
from ranks.tile_attention import RowSpan, TileAttention
from ranks.weights import LoadedWeights

__all__ = ["EngineError", "ShardEngine"]


class EngineError(RuntimeError):
    """The engine was asked for something it cannot do; the message says what and what would be right."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """Rows of the last verify that `commit` may keep: their tokens and final hidden fp32 [rows, width]."""

    token_ids: tuple[int, ...]
    hidden: Tensor


class ShardEngine:
    """The shard of rank 0 or 1. Sets torch to one thread: a second thread would move vector remainders."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LoadedWeights,
        rank: int,
        collective: Collective,
        slot_count: int,
        device: str = "cpu",
    ) -> None:
        if rank not in (0, 1) or slot_count < 1:
            raise EngineError(f"rank {rank} with {slot_count} slots; rank 0 or 1 and at least one slot are needed")
        if weights.config != config:
            raise EngineError("the weights were made for another configuration; pass weights.config")
        if device != "cpu":
            raise EngineError(f"device '{device}' is not supported by the embedded engine; 'cpu' is needed")
        torch.set_num_threads(1)
        self._config = config
        self._slots = KvSlots(config, slot_count, device)
        self._target = TargetShard(config, weights, rank, collective, device)
        self._drafter = DrafterShard(config, weights, rank, collective, self._target, device)
        self._attention = TileAttention(config, rank, self._slots, device)
        self._pending: dict[int, _Pending] = {}
        self.vocabulary_size = config.vocabulary_size
        self.shard_size = config.shard_vocabulary
        self.first_token_id = self._target.first_token_id
        self.weights_digest = weights.weights_digest
        self.ngram_memory_digest = weights.ngram_memory_digest

    @property
    def slots(self) -> KvSlots:
        """The KV cache, for those who measure or poison it."""
        return self._slots

    @property
    def target(self) -> TargetShard:
        """The target's shard, for those who measure or poison it."""
        return self._target

    def clear(self, slot: int, first_position: int = 0) -> None:
        """Empty a slot; its next token stands at `first_position` (0 unless only the window's end matters)."""
        self._check_slot(slot)
        if not 0 <= first_position < self._config.max_position:
            raise EngineError(f"first_position {first_position} is outside 0..{self._config.max_position - 1}")
        self._slots.clear(slot, first_position)
        self._pending.pop(slot, None)

    def slot_length(self, slot: int) -> int:
        """Return the position of the slot's next token: how many tokens stand before it."""
        self._check_slot(slot)
        return self._slots.states[slot].length

    @torch.inference_mode()
    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens to a slot, in any chunking with the same bits; collective. Raises EngineError."""
        self._check_slot(slot)
        ids = self._checked_ids(np.asarray(token_ids, dtype=np.int64).reshape(1, -1))[0]
        self._check_room(slot, len(ids))
        self._pending.pop(slot, None)
        for start in range(0, len(ids), MAX_FORWARD_ROWS):
            chunk = ids[start : start + MAX_FORWARD_ROWS]
            hidden = self._forward([slot], chunk[None, :])
            self._keep(slot, [int(token) for token in chunk], hidden[len(chunk) - 1])

    def snapshot(self, slot: int) -> SlotSnapshot:
        """Return a copy of a slot's whole state; rows of an uncommitted verify are not part of it."""
        self._check_slot(slot)
        return self._slots.snapshot(slot)

    def restore(self, slot: int, snapshot: SlotSnapshot) -> None:
        """Make a slot what it was at `snapshot`."""
        self._check_slot(slot)
        self._slots.restore(slot, snapshot)
        self._pending.pop(slot, None)

    @torch.inference_mode()
    def draft_base(self, slots: Sequence[int], anchor_token_ids: Sequence[int], depth: int) -> NDArray[np.float32]:
        """Return the parallel backbone's draft logits of this rank's half, fp32 [B, depth, V/2], on the grid.

        Collective. Row j drafts the token at distance j+1 from the anchor. Raises EngineError.
        """
        if not 1 <= depth <= self._config.drafter.max_depth:
            raise EngineError(f"depth {depth} is outside 1..{self._config.drafter.max_depth}")
        self._check_batch(slots, len(anchor_token_ids))
        anchors = self._checked_ids(np.asarray(anchor_token_ids, dtype=np.int64))
        hidden = torch.stack([self._slots.states[slot].hidden for slot in slots])
        return self._to_host(self._drafter.base_logits(hidden, self._to_device(anchors), depth))

    @torch.inference_mode()
    def draft_logits(self, base_row: NDArray[np.float32], previous_token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return base fp32 [B, V/2] plus the Markov bias of the previous tokens [B]; local, exact on the grid."""
        previous = self._checked_ids(np.asarray(previous_token_ids, dtype=np.int64))
        base = self._to_device(np.ascontiguousarray(base_row))
        return self._to_host(self._drafter.biased(base, self._to_device(previous)))

    @torch.inference_mode()
    def verify_forward(self, slots: Sequence[int], token_rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return target logits of this rank's half, fp32 [B, rows, V/2], for int64 [B, rows]; collective.

        Row 0 is the anchor, at the slot's length. Keys and values are written; `commit` says how many stay.
        Raises EngineError.
        """
        rows = self._checked_ids(np.asarray(token_rows, dtype=np.int64))
        if rows.ndim != 2 or not 1 <= rows.shape[1] <= self._config.drafter.max_depth + 1:
            most = self._config.drafter.max_depth + 1
            raise EngineError(f"token_rows has shape {rows.shape}; [B, 1..{most}] is needed")
        self._check_batch(slots, len(rows))
        for slot in slots:
            self._check_room(slot, rows.shape[1])
        hidden = self._forward(slots, rows)
        count = rows.shape[1]
        for place, slot in enumerate(slots):
            mine = hidden[place * count : (place + 1) * count]
            self._pending[slot] = _Pending(tuple(int(token) for token in rows[place]), mine)
        tiles = hidden.view(-1, TILE_ROWS, hidden.shape[-1])
        logits = self._target.logits(tiles).view(-1, self.shard_size)[: len(rows) * count]
        return self._to_host(logits.view(len(rows), count, -1))

    def commit(self, slot: int, kept_rows: int) -> None:
        """Keep the first `kept_rows` rows of the slot's last verify (at least the anchor). Raises EngineError."""
        pending = self._pending.pop(slot, None)
        if pending is None:
            raise EngineError(f"slot {slot} has no verified rows to keep; run verify_forward first")
        if not 1 <= kept_rows <= len(pending.token_ids):
            raise EngineError(f"slot {slot}: {kept_rows} rows to keep, but 1..{len(pending.token_ids)} were verified")
        self._keep(slot, pending.token_ids[:kept_rows], pending.hidden[kept_rows - 1])

    @torch.inference_mode()
    def is_row_invariant(self) -> bool:
        """Return whether this machine's kernels give a row the same bits wherever it stands (some 50 ms; local)."""
        config = self._config
        matrices = [*self._target.matrices(), *self._drafter.matrices()]
        return kernels_are_row_invariant(matrices, config.head_width, config.model_width, config.mlp_width // 2)

    def state_digest(self, slot: int) -> int:
        """Return 64 bits over length, last two token ids and the hidden's bits: equal on both ranks when sound."""
        self._check_slot(slot)
        state = self._slots.states[slot]
        numbers = np.array([state.length, *state.last_tokens], dtype="<i8")
        digest = hashlib.blake2b(numbers.tobytes() + state.hidden.cpu().numpy().tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._slots.rings.device)

    @staticmethod
    def _to_host(tensor: Tensor) -> NDArray[np.float32]:
        """Return a view on the CPU, a copy from elsewhere."""
        array: NDArray[np.float32] = tensor.cpu().numpy()
        return array

    def _forward(self, slots: Sequence[int], token_rows: NDArray[np.int64]) -> Tensor:
        """Run int64 [B, rows] at the slots' lengths; return hidden fp32 [padded rows, width], rows slot by slot."""
        states = [self._slots.states[slot] for slot in slots]
        batch, count = token_rows.shape
        before = np.array([state.last_tokens for state in states], dtype=np.int64)
        extended = np.concatenate([before, token_rows], axis=1)
        contexts = np.zeros((padded_row_count(batch * count), CONTEXT_TOKENS), dtype=np.int64)
        for back in range(CONTEXT_TOKENS):
            contexts[: batch * count, back] = extended[:, back : back + count].reshape(-1)
        spans = [
            RowSpan(slot, state.length, count, state.first_position) for slot, state in zip(slots, states, strict=True)
        ]
        plan = self._attention.plan(spans, self._target.chunks_a_row)
        hidden = self._target.forward(self._to_device(contexts), self._attention, plan)
        return hidden.view(-1, hidden.shape[-1])

    def _keep(self, slot: int, token_ids: Sequence[int], hidden: Tensor) -> None:
        state = self._slots.states[slot]
        state.length += len(token_ids)
        recent = (*state.last_tokens, *token_ids)[-2:]
        state.last_tokens = (recent[0], recent[1])
        state.hidden = hidden.clone()

    def _checked_ids(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if token_ids.size == 0 or int(token_ids.min()) < 0 or int(token_ids.max()) >= self.vocabulary_size:
            raise EngineError(f"token ids must be at least one number in 0..{self.vocabulary_size - 1}")
        return token_ids

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._slots.slot_count:
            raise EngineError(f"slot {slot} is outside 0..{self._slots.slot_count - 1}")

    def _check_batch(self, slots: Sequence[int], count: int) -> None:
        for slot in slots:
            self._check_slot(slot)
        if not slots or len(set(slots)) != len(slots) or len(slots) != count:
            raise EngineError(f"slots {list(slots)} with {count} entries; distinct slots, one entry each, are needed")

    def _check_room(self, slot: int, rows: int) -> None:
        length = self._slots.states[slot].length
        if length + rows > self._config.max_position:
            raise EngineError(
                f"slot {slot} holds {length} tokens; {rows} more exceed the {self._config.max_position} positions"
            )
