"""Addresses of the hashed n-gram memory: from input tokens only, never from activations.

Both ranks compute the addresses of their own heads; no address depends on the batch, slot or position.
Source: DESIGN section 4 (the engine); multiplicative-xor hashing of token n-grams.
"""

from __future__ import annotations

import torch

from ranks.model_config import MemoryConfig

__all__ = ["CONTEXT_TOKENS", "ngram_addresses"]

CONTEXT_TOKENS = 3


def ngram_addresses(memory: MemoryConfig, context: torch.Tensor, heads: range) -> torch.Tensor:
    """Return the table row of every n-gram that ends in the current token.

    `context`: int64 [..., 3], the tokens two back, one back and current. `heads`: which heads.
    Returns int64 [..., len(heads)], row numbers in a table of all of `heads` laid one after another.
    """
    shifted = context + 1
    columns = []
    for place, head in enumerate(heads):
        mixed = shifted[..., 2] * memory.multipliers[head][0]
        for back in range(1, memory.order_of(head)):
            mixed = mixed ^ (shifted[..., 2 - back] * memory.multipliers[head][back])
        columns.append(((mixed >> memory.hash_shift) & (memory.rows_per_head - 1)) + place * memory.rows_per_head)
    return torch.stack(columns, dim=-1)
