"""The embedded model written plainly on whole tensors: what training runs and what shards must agree with.

Reads like the mathematics; gives no promise about bits and is never used to serve.
Source: DESIGN section 4 (the engine).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ranks.model_config import ModelConfig
from ranks.ngram_memory import NgramHash

__all__ = ["plain_draft_hidden", "plain_hidden", "plain_logits", "position_bias", "token_contexts"]

Tensors = Mapping[str, Tensor]


def token_contexts(token_ids: Tensor, end_token_id: int) -> Tensor:
    """Return int64 [..., T, 3]: each token after its two predecessors (end token before the first)."""
    padded = functional.pad(token_ids, (2, 0), value=end_token_id)
    return torch.stack([padded[..., :-2], padded[..., 1:-1], token_ids], dim=-1)


def position_bias(config: ModelConfig, length: int) -> Tensor:
    """Return fp32 [heads, length, length]: -slope * distance inside the causal window, -inf outside."""
    positions = torch.arange(length)
    distance = positions[:, None] - positions[None, :]
    outside = (distance < 0) | (distance >= config.window_size)
    slopes = torch.tensor([2.0**-exponent for exponent in config.slope_exponents])
    bias = -slopes[:, None, None] * distance.to(torch.float32)
    return bias.masked_fill(outside, float("-inf"))


def _norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(values.to(torch.float32), weight.shape, weight, epsilon)


def _gated_mlp(tensors: Tensors, prefix: str, values: Tensor) -> Tensor:
    gate = functional.linear(values, tensors[f"{prefix}.gate"])
    up = functional.linear(values, tensors[f"{prefix}.up"])
    return functional.linear(functional.silu(gate) * up, tensors[f"{prefix}.down"])


def _attention(tensors: Tensors, config: ModelConfig, prefix: str, values: Tensor, bias: Tensor) -> Tensor:
    batch, length, _ = values.shape

    def heads(name: str) -> Tensor:
        projected = functional.linear(values, tensors[f"{prefix}.{name}"])
        return projected.view(batch, length, config.head_count, config.head_width).transpose(1, 2)

    query = heads("query")
    mixed = functional.scaled_dot_product_attention(
        query, heads("key"), heads("value"), attn_mask=bias[None].to(query.dtype)
    )
    return functional.linear(mixed.transpose(1, 2).flatten(2), tensors[f"{prefix}.output"])


def _memory(tensors: Tensors, config: ModelConfig, values: Tensor, token_ids: Tensor) -> Tensor:
    contexts = token_contexts(token_ids, config.end_token_id)
    addresses = NgramHash(config.memory, range(config.memory.head_count), "cpu").addresses(contexts.flatten(0, 1))
    found = functional.embedding(addresses, tensors["memory.table"]).view(*token_ids.shape, -1)
    gate = torch.sigmoid(functional.linear(values, tensors["memory.gate"]))
    return functional.linear(found * gate, tensors["memory.output"])


def plain_hidden(tensors: Tensors, config: ModelConfig, token_ids: Tensor, bias: Tensor) -> Tensor:
    """Return the final normed hidden fp32 [B, T, width] of int64 [B, T]; `bias` is `position_bias(config, T)`."""
    stream = functional.embedding(token_ids, tensors["embedding"]) * config.embedding_scale
    for layer in range(config.layer_count):
        prefix = f"layers.{layer}"
        values = _norm(stream, tensors[f"{prefix}.attention_norm"], config.norm_epsilon)
        update = _attention(tensors, config, prefix, values, bias)
        if layer == config.memory.layer:
            update = update + _memory(tensors, config, values, token_ids)
        stream = stream + update
        values = _norm(stream, tensors[f"{prefix}.mlp_norm"], config.norm_epsilon)
        stream = stream + _gated_mlp(tensors, prefix, values)
    return _norm(stream, tensors["final_norm"], config.norm_epsilon)


def plain_logits(tensors: Tensors, hidden: Tensor) -> Tensor:
    """Return logits [..., V] of final hidden [..., width], by the tied embedding."""
    return functional.linear(hidden, tensors["embedding"])


def plain_draft_hidden(
    tensors: Tensors, config: ModelConfig, hidden: Tensor, anchor_token_ids: Tensor, depth: int
) -> Tensor:
    """Return the draft backbone's hidden fp32 [N, depth, width].

    `hidden` fp32 [N, width] is the target's final hidden one position before the anchors int64 [N].
    """
    anchors = functional.embedding(anchor_token_ids, tensors["embedding"]) * config.embedding_scale
    anchors = _norm(anchors, tensors["drafter.anchor_norm"], config.norm_epsilon)
    fused = functional.linear(hidden, tensors["drafter.hidden_projection"])
    fused = fused + functional.linear(anchors, tensors["drafter.anchor_projection"])
    stream = fused[:, None, :] + tensors["drafter.depth_embedding"][None, :depth, :]
    for block in range(config.drafter.block_count):
        prefix = f"drafter.blocks.{block}"
        values = _norm(stream, tensors[f"{prefix}.norm"], config.norm_epsilon)
        stream = stream + _gated_mlp(tensors, prefix, values)
    return _norm(stream, tensors["drafter.final_norm"], config.norm_epsilon)
