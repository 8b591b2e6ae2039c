"""One rank's half of the target: heads, MLP columns, memory heads and vocabulary rows, with nine all-reduces.

Attention output and n-gram memory share one product and one all-reduce. Must never look at the batch: rows are
padded tiles, and a row's bits depend on its slot's tokens alone.
Source: DESIGN section 4 (the engine, row invariance).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ranks.collective import Collective
from ranks.model_config import ModelConfig
from ranks.ngram_memory import NgramHash
from ranks.row_tiles import TILE_ROWS, root_mean_square_scaled, tiled_linear
from ranks.tile_attention import AttentionPlan, TileAttention
from ranks.weights import LoadedWeights

__all__ = ["GatedMlp", "TargetShard", "transposed"]


def transposed(weight: Tensor, device: str) -> Tensor:
    """Return fp32 contiguous [in, out] of a stored [out, in] matrix."""
    return weight.to(device=device, dtype=torch.float32).t().contiguous()


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Column- then row-parallel SwiGLU of one rank: the result is this rank's part of a sum."""

    gate_up: Tensor
    down: Tensor

    @classmethod
    def load(cls, tensors: dict[str, Tensor], prefix: str, norm: Tensor, rank: int, device: str) -> GatedMlp:
        """Take this rank's columns of `prefix`.gate, .up and rows of .down; `norm` is folded into the first two."""
        inner = tensors[f"{prefix}.gate"].shape[0] // 2
        mine = slice(rank * inner, (rank + 1) * inner)
        first = torch.cat([tensors[f"{prefix}.gate"][mine], tensors[f"{prefix}.up"][mine]]).to(torch.float32)
        down = tensors[f"{prefix}.down"][:, mine]
        return cls(transposed(first * norm.to(torch.float32), device), transposed(down, device))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return both matrices, fp32 [K, N] each."""
        return self.gate_up, self.down

    def part(self, rows: Tensor) -> Tensor:
        """Return this rank's part fp32 [tiles, 24, width] for normed rows of the same shape."""
        both = tiled_linear(rows, self.gate_up)
        inner = both.shape[-1] // 2
        return tiled_linear(functional.silu(both[..., :inner]).mul_(both[..., inner:]), self.down)


@dataclass(frozen=True, slots=True)
class _Layer:
    projection: Tensor
    output: Tensor
    mlp: GatedMlp


class TargetShard:
    """Weights of one rank in fp32 and the forward pass over padded row tiles."""

    def __init__(
        self, config: ModelConfig, weights: LoadedWeights, rank: int, collective: Collective, device: str
    ) -> None:
        self._config = config
        self._rank = rank
        self._collective = collective
        tensors = weights.tensors
        half = config.shard_vocabulary
        self.first_token_id = rank * half
        own = tensors["embedding"][self.first_token_id : self.first_token_id + half].to(device, torch.float32)
        # One more row of zeros stands for every token of the other half.
        self.embedding = torch.cat([own * config.embedding_scale, torch.zeros(1, config.model_width, device=device)])
        self.head = own.t().contiguous()
        self._final_norm = tensors["final_norm"].to(device, torch.float32)
        self._layers = [self._load_layer(tensors, layer, device) for layer in range(config.layer_count)]
        heads = config.shard_memory_heads
        self._hash = NgramHash(config.memory, range(rank * heads, (rank + 1) * heads), device)
        rows = heads * config.memory.rows_per_head
        self._memory_table = tensors["memory.table"][rank * rows : (rank + 1) * rows].to(device, torch.float32)
        self.chunks_a_row = frozenset(layer.projection.shape[1] // config.head_width for layer in self._layers)

    def _load_layer(self, tensors: dict[str, Tensor], layer: int, device: str) -> _Layer:
        config, rank = self._config, self._rank
        prefix = f"layers.{layer}"
        inner, heads, width = config.shard_heads * config.head_width, config.shard_heads, config.head_width
        mine = slice(rank * inner, (rank + 1) * inner)
        query, key, value = (tensors[f"{prefix}.{name}"][mine].float() for name in ("query", "key", "value"))
        pairs = torch.cat([key.view(heads, width, -1), value.view(heads, width, -1)], dim=1).flatten(0, 1)
        parts, outputs = [query * width**-0.5, pairs], [tensors[f"{prefix}.output"][:, mine].float()]
        if layer == config.memory.layer:
            half = config.memory_width // 2
            parts.append(tensors["memory.gate"][rank * half : (rank + 1) * half].float())
            outputs.append(tensors["memory.output"][:, rank * half : (rank + 1) * half].float())
        projection = torch.cat(parts) * tensors[f"{prefix}.attention_norm"].float()
        mlp = GatedMlp.load(tensors, prefix, tensors[f"{prefix}.mlp_norm"], rank, device)
        return _Layer(transposed(projection, device), transposed(torch.cat(outputs, dim=1), device), mlp)

    def matrices(self) -> list[Tensor]:
        """Return every matrix that rows are multiplied with, fp32 [K, N] each."""
        inner = [matrix for layer in self._layers for matrix in (layer.projection, layer.output, *layer.mlp.matrices())]
        return [*inner, self.head]

    def own_rows(self, token_ids: Tensor) -> Tensor:
        """Return rows int64 of this rank's embedding for int64 token ids; foreign tokens give the row of zeros."""
        local = token_ids - self.first_token_id
        half = self._config.shard_vocabulary
        return torch.where((local >= 0) & (local < half), local, half)

    def forward(self, contexts: Tensor, attention: TileAttention, plan: AttentionPlan) -> Tensor:
        """Return the final normed hidden fp32 [tiles, 24, width], the same bits on both ranks; writes KV.

        `contexts` int64 [padded rows, 3]: two, one and no tokens back. `plan`: from `attention.plan`.
        """
        config, width = self._config, self._config.model_width
        embedded = self.embedding.index_select(0, self.own_rows(contexts[:, 2])).view(-1, TILE_ROWS, width)
        stream = self._collective.all_reduce_sum(embedded)
        for number, layer in enumerate(self._layers):
            values = root_mean_square_scaled(stream, config.norm_epsilon)
            projected = tiled_linear(values, layer.projection)
            mixed = attention.run(number, projected, plan)
            if number == config.memory.layer:
                mixed = torch.cat([mixed, self._gated_memory(contexts, projected)], dim=-1)
            update = tiled_linear(mixed.view(stream.shape[0], TILE_ROWS, -1), layer.output)
            stream = stream + self._collective.all_reduce_sum(update)
            values = root_mean_square_scaled(stream, config.norm_epsilon)
            stream = stream + self._collective.all_reduce_sum(layer.mlp.part(values))
        return root_mean_square_scaled(stream, config.norm_epsilon) * self._final_norm

    def _gated_memory(self, contexts: Tensor, projected: Tensor) -> Tensor:
        """Return this rank's memory heads fp32 [padded rows, memory width / 2], gated by the hidden."""
        addresses = self._hash.addresses(contexts)
        found = self._memory_table.index_select(0, addresses.view(-1)).view(len(contexts), -1)
        gate = projected.view(len(contexts), -1)[:, -found.shape[1] :]
        return torch.sigmoid(gate).mul_(found)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return this rank's vocabulary half fp32 [tiles, 24, V/2] of hidden fp32 [tiles, 24, width]."""
        return tiled_linear(hidden, self.head)
