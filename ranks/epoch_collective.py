"""A collective that can be bound anew in every epoch, whatever carries it.

Must never survive an epoch: `rebind` takes a fresh peer under a prefix that was never used. Source: DESIGN section 4.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch._C._distributed_c10d import Store

from ranks.collective import Collective
from ranks.group_collective import GroupCollective
from ranks.rendezvous import Superseded
from ranks.socket_collective import SocketCollective

__all__ = ["EpochCollective", "make_collective"]


class EpochCollective(Collective, Protocol):
    """A two-rank collective with a life of one epoch at a time."""

    def rebind(self, store: Store, prefix: str, host: str, timeout_ms: int, superseded: Superseded) -> None:
        """Meet the peer of a new epoch, or give up when `superseded` says so. Raises CollectiveError."""
        ...

    def release(self) -> None:
        """Leave the epoch; a waiting peer learns of it at once."""
        ...


def make_collective(rank: int, backend: Literal["socket", "gloo", "nccl"]) -> EpochCollective:
    """Return an unbound collective of one rank."""
    return SocketCollective(rank) if backend == "socket" else GroupCollective(rank, backend)
