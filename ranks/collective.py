"""The collectives that a model shard needs from its peer, as one small interface.

A shard never knows whether its peer is another process, another GPU or another thread.
Must never reorder additions: rank 0's part is always the left operand.
Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Collective", "CollectiveError"]


class CollectiveError(RuntimeError):
    """The peer is gone, or did not arrive in time; the epoch that owned this collective is over."""


class Collective(Protocol):
    """Two-rank collectives; both ranks make the same calls in the same order with the same shapes."""

    rank: int
    world_size: int

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return part(rank 0) + part(rank 1), elementwise, the same bits on both ranks. Raises CollectiveError."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the two equally shaped tensors stacked on a new first axis in rank order. Raises CollectiveError."""
        ...
