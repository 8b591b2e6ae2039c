"""Names, shapes and stored types of every tensor in a weights file.

Must never read a file. One table, used by training, loading and random weights alike.
Source: DESIGN section 4 (the engine).
"""

from __future__ import annotations

import torch

from ranks.model_config import ModelConfig

__all__ = ["TensorSpec", "expected_tensors"]

TensorSpec = tuple[tuple[int, ...], torch.dtype]


def _layer_tensors(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    width, inner = config.model_width, config.head_count * config.head_width
    return {
        f"{prefix}.attention_norm": (width,),
        f"{prefix}.query": (inner, width),
        f"{prefix}.key": (inner, width),
        f"{prefix}.value": (inner, width),
        f"{prefix}.output": (width, inner),
        f"{prefix}.mlp_norm": (width,),
        **_mlp_tensors(prefix, width, config.mlp_width),
    }


def _mlp_tensors(prefix: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate": (inner, width),
        f"{prefix}.up": (inner, width),
        f"{prefix}.down": (width, inner),
    }


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return name -> (shape, dtype as stored) for a whole checkpoint of this configuration."""
    width = config.model_width
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary_size, width), "final_norm": (width,)}
    for layer in range(config.layer_count):
        shapes |= _layer_tensors(config, f"layers.{layer}")
    shapes |= {
        "memory.table": (config.memory.head_count * config.memory.rows_per_head, config.memory.head_width),
        "memory.gate": (config.memory_width, width),
        "memory.output": (width, config.memory_width),
        "drafter.anchor_norm": (width,),
        "drafter.hidden_projection": (width, width),
        "drafter.anchor_projection": (width, width),
        "drafter.depth_embedding": (config.drafter.max_depth, width),
        "drafter.final_norm": (width,),
    }
    for block in range(config.drafter.block_count):
        prefix = f"drafter.blocks.{block}"
        shapes[f"{prefix}.norm"] = (width,)
        shapes |= _mlp_tensors(prefix, width, config.drafter.mlp_width)
    specs: dict[str, TensorSpec] = {name: (shape, torch.float16) for name, shape in shapes.items()}
    specs["markov.previous"] = ((config.vocabulary_size, config.drafter.markov_rank), torch.int8)
    specs["markov.next"] = ((config.drafter.markov_rank, config.vocabulary_size), torch.int8)
    return specs
