"""The collectives of two ranks that are threads of one process: for references and tests.

Must never hang: a peer that fails or stays away breaks the barrier and raises CollectiveError.
Source: ranks.collective; DESIGN section 4 (rank order of additions).
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from ranks.collective import CollectiveError

__all__ = ["ThreadCollective", "thread_pair"]


class _Meeting:
    """Where two threads leave their tensors; two buffers, so that one barrier a call is enough."""

    def __init__(self, timeout_s: float) -> None:
        self.barrier = threading.Barrier(2)
        self.timeout_s = timeout_s
        self.tensors: list[list[Tensor | None]] = [[None, None], [None, None]]


class ThreadCollective:
    """One thread's end; see `thread_pair`."""

    world_size = 2

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self._meeting = meeting
        self._turn = 0

    def _exchange(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        buffer = self._meeting.tensors[self._turn]
        self._turn ^= 1
        buffer[self.rank] = tensor
        try:
            self._meeting.barrier.wait(self._meeting.timeout_s)
        except threading.BrokenBarrierError as error:
            raise CollectiveError(f"rank {1 - self.rank} failed or did not arrive; this pair is over") from error
        first, second = buffer
        if first is None or second is None or first.shape != second.shape:
            self.abort()
            raise CollectiveError("the two ranks brought different shapes; both must make the same calls")
        return first, second

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor plus rank 1's, the same bits on both. Raises CollectiveError."""
        first, second = self._exchange(tensor)
        return first + second

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return both tensors stacked in rank order. Raises CollectiveError."""
        return torch.stack(self._exchange(tensor))

    def abort(self) -> None:
        """Break the pair, so that a peer that waits fails at once."""
        self._meeting.barrier.abort()


def thread_pair(timeout_s: float = 60.0) -> tuple[ThreadCollective, ThreadCollective]:
    """Return the two ends of one pair; a call waits at most `timeout_s` seconds for the peer."""
    meeting = _Meeting(timeout_s)
    return ThreadCollective(0, meeting), ThreadCollective(1, meeting)
