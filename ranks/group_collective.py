"""Two-rank collectives over gloo or NCCL: one group an epoch, rebuilt without torch's global process group.

A group that failed or timed out once is dead; `rebind` takes a new one on a fresh store prefix. Over gloo,
tensors on a device travel through host memory, so two ranks on one GPU never wait on the device for each other.
Must never touch torch's global group, and never reuse a prefix.
Source: DESIGN section 4, "A failure ends the epoch", "On one-gpu".
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import torch
from torch._C import _distributed_c10d as c10d

from ranks.collective import CollectiveError
from ranks.rendezvous import Superseded

__all__ = ["GroupCollective"]


class GroupCollective:
    """The `Collective` of one rank; every call fails until `rebind`."""

    def __init__(self, rank: int, backend: Literal["gloo", "nccl"]) -> None:
        """Start without a group."""
        self.rank = rank
        self.world_size = 2
        self._backend = backend
        self._group: Any = None

    def rebind(self, store: c10d.Store, prefix: str, host: str, timeout_ms: int, superseded: Superseded) -> None:
        """Join the group of a new epoch; blocks until the peer joins, whatever `superseded` says.

        Raises CollectiveError.
        """
        del superseded  # gloo and NCCL cannot be called back from their own rendezvous
        self.release()
        prefixed = c10d.PrefixStore(prefix, store)
        try:
            if self._backend == "gloo":
                self._group = self._gloo(prefixed, host, timeout_ms)
            else:
                self._group = self._nccl(prefixed, timeout_ms)
        except RuntimeError as error:
            raise CollectiveError(f"no {self._backend} group under {prefix}: {_first_line(error)}") from error

    def release(self) -> None:
        """Drop the group; its sockets close with it, so that a waiting peer learns of it at once."""
        self._group = None

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of both parts; two operands add to the same bits in either order."""
        staged = self._staged(tensor)
        try:
            self._bound().allreduce([staged]).wait()
        except RuntimeError as error:
            raise CollectiveError(f"all-reduce failed: {_first_line(error)}") from error
        return staged if staged.device == tensor.device else staged.to(tensor.device)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return both parts stacked in rank order."""
        staged = self._staged(tensor)
        gathered = torch.empty((self.world_size, *staged.shape), dtype=staged.dtype, device=staged.device)
        try:
            self._bound().allgather([[gathered[0], gathered[1]]], [staged]).wait()
        except RuntimeError as error:
            raise CollectiveError(f"all-gather failed: {_first_line(error)}") from error
        return gathered if gathered.device == tensor.device else gathered.to(tensor.device)

    def _staged(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._backend == "gloo":
            return tensor if tensor.device.type == "cpu" else tensor.cpu()
        return tensor if tensor.device.type == "cuda" else tensor.cuda()

    def _gloo(self, store: c10d.Store, host: str, timeout_ms: int) -> Any:
        gloo: Any = c10d.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(milliseconds=timeout_ms)
        options._devices = [gloo.create_device(hostname=host)]
        return gloo(store, self.rank, self.world_size, options)

    def _nccl(self, store: c10d.Store, timeout_ms: int) -> Any:
        # Absent from a torch without CUDA, where the profiles that name NCCL are refused before.
        nccl: Any = c10d.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(milliseconds=timeout_ms)
        return nccl(store, self.rank, self.world_size, options)

    def _bound(self) -> Any:
        if self._group is None:
            raise CollectiveError("no group: the epoch has not begun")
        return self._group


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
