"""Addresses of the hashed n-gram memory: from input tokens only, never from activations.

Both ranks compute the addresses of their own heads; no address depends on the batch, slot or position.
Source: DESIGN section 4 (the engine); multiplicative-xor hashing of token n-grams.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ranks.model_config import MemoryConfig

__all__ = ["CONTEXT_TOKENS", "NgramHash"]

CONTEXT_TOKENS = 3


class NgramHash:
    """The hash of some memory heads, which lie one after another in one table."""

    def __init__(self, memory: MemoryConfig, heads: range, device: str) -> None:
        # A factor of 0 takes a token that lies before the n-gram out of the hash.
        factors = [
            [0] * (CONTEXT_TOKENS - memory.order_of(head)) + list(reversed(memory.multipliers[head])) for head in heads
        ]
        self._factors = torch.tensor(factors, dtype=torch.int64, device=device).t().unsqueeze(1).contiguous()
        self._first_rows = torch.arange(len(heads), dtype=torch.int64, device=device) * memory.rows_per_head
        self._shift = memory.hash_shift
        self._mask = memory.rows_per_head - 1

    def addresses(self, context: Tensor) -> Tensor:
        """Return the table row of every head's n-gram, int64 [N, heads].

        `context`: int64 [N, 3], the tokens two back, one back and current.
        """
        products = (context + 1).t().unsqueeze(-1) * self._factors
        mixed = products[0] ^ products[1] ^ products[2]
        return ((mixed >> self._shift) & self._mask) + self._first_rows
