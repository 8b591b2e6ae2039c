"""One rank's half of the drafter: a parallel backbone over all depths at once and an exact Markov head.

The backbone never mixes depths or requests. The Markov bias is an integer dot of int8 rows, exact in fp32, and
draft logits sit on a fixed grid, so that the sum has the same bits on every backend. Must never see a draft that
comes later than the one it conditions on. Source: DESIGN section 3, "Sampled Markov drafts".
"""

from __future__ import annotations

import torch
from torch import Tensor

from ranks.collective import Collective
from ranks.model_config import ModelConfig
from ranks.row_tiles import TILE_ROWS, padded_row_count, root_mean_square_scaled, tiled_linear
from ranks.target_model import GatedMlp, TargetShard, transposed
from ranks.weights import LoadedWeights

__all__ = ["DrafterShard"]


class DrafterShard:
    """Weights of one rank in fp32; embedding and head are the target's."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LoadedWeights,
        rank: int,
        collective: Collective,
        target: TargetShard,
        device: str,
    ) -> None:
        self._config = config
        self._target = target
        self._collective = collective
        tensors, half = weights.tensors, config.model_width // 2
        self._columns = slice(rank * half, (rank + 1) * half)
        anchor = tensors["drafter.anchor_projection"].float() * tensors["drafter.anchor_norm"].float()
        fusion = torch.cat([tensors["drafter.hidden_projection"][:, self._columns].float(), anchor], dim=1)
        self._fusion = transposed(fusion, device)
        self._depth_embedding = tensors["drafter.depth_embedding"].to(device, torch.float32)
        self._blocks = [
            GatedMlp.load(tensors, prefix, tensors[f"{prefix}.norm"], rank, device)
            for prefix in (f"drafter.blocks.{block}" for block in range(config.drafter.block_count))
        ]
        self._final_norm = tensors["drafter.final_norm"].to(device, torch.float32)
        first = target.first_token_id
        # Both tables are whole on both ranks; the bias of this rank's half needs only its columns.
        self.markov_previous = tensors["markov.previous"].to(device, torch.float32)
        self.markov_next = tensors["markov.next"].to(device, torch.float32)
        self._own_next = self.markov_next[:, first : first + config.shard_vocabulary].contiguous()
        self._bias_unit = 2.0**-config.drafter.markov_scale_bits
        self._grid = 2.0**config.drafter.grid_bits

    def matrices(self) -> list[Tensor]:
        """Return every matrix of its own that rows are multiplied with, fp32 [K, N] each."""
        return [self._fusion, *(matrix for block in self._blocks for matrix in block.matrices())]

    def base_logits(self, hidden: Tensor, anchor_token_ids: Tensor, depth: int) -> Tensor:
        """Return draft logits without bias, fp32 [B, depth, V/2], rounded to the grid.

        `hidden` fp32 [B, width]: final hidden one position before each anchor; anchors int64 [B].
        """
        batch = len(anchor_token_ids)
        stream = self._fused(hidden, anchor_token_ids)
        rows = torch.arange(padded_row_count(batch * depth), device=stream.device)
        sources = torch.div(rows, depth, rounding_mode="floor").clamp_(max=batch - 1)
        stream = stream.view(-1, stream.shape[-1]).index_select(0, sources)
        stream = (stream + self._depth_embedding.index_select(0, rows % depth)).view(-1, TILE_ROWS, stream.shape[-1])
        for block in self._blocks:
            values = root_mean_square_scaled(stream, self._config.norm_epsilon)
            stream = stream + self._collective.all_reduce_sum(block.part(values))
        final = root_mean_square_scaled(stream, self._config.norm_epsilon) * self._final_norm
        logits = self._target.logits(final)
        logits.mul_(self._grid).round_().mul_(1.0 / self._grid)
        return logits.view(-1, logits.shape[-1])[: batch * depth].view(batch, depth, -1)

    def _fused(self, hidden: Tensor, anchor_token_ids: Tensor) -> Tensor:
        """Return hidden and anchor joined, fp32 [tiles, 24, width]: each rank adds its columns and its anchors."""
        batch, half = len(anchor_token_ids), hidden.shape[1] // 2
        joined = hidden.new_zeros((padded_row_count(batch), half + hidden.shape[1]))
        joined[:batch, :half] = hidden[:, self._columns]
        joined[:batch, half:] = self._target.embedding.index_select(0, self._target.own_rows(anchor_token_ids))
        tiles = joined.view(-1, TILE_ROWS, joined.shape[1])
        # A foreign anchor is a row of zeros and stays one under the norm, so only its owner adds it.
        anchors = root_mean_square_scaled(tiles[..., half:].contiguous(), self._config.norm_epsilon)
        tiles[..., half:] = anchors
        return self._collective.all_reduce_sum(tiled_linear(tiles, self._fusion))

    def biased(self, base: Tensor, previous_token_ids: Tensor) -> Tensor:
        """Return base fp32 [B, V/2] plus the Markov bias of previous tokens int64 [B], exact on the grid."""
        rows = self.markov_previous.index_select(0, previous_token_ids)
        return (rows @ self._own_next).mul_(self._bias_unit).add_(base)
