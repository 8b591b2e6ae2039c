"""How the two ranks of an epoch find each other: rank 0 listens and leaves its address in the store, rank 1 connects.

A rank that waits here may already be wanted elsewhere, because the epoch it waits in is over; so the wait ends as soon
as `superseded` says so. Must never wait without a bound. Source: DESIGN section 4, "A failure ends the epoch".
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from ranks.link import LinkClosed, connect, listening_socket

__all__ = ["Superseded", "meet"]

_POLL_S = 0.005
Superseded = Callable[[], bool]


def meet(rank: int, store: Store, key: str, own_host: str, timeout_ms: int, superseded: Superseded) -> socket.socket:
    """Return a connected socket to the peer that meets under the same key. Raises LinkClosed.

    `key` must be new in the store; `superseded` is asked again and again and must answer at once.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    if rank == 1:
        while not store.check([key]):
            _check(superseded, deadline, timeout_ms)
            time.sleep(_POLL_S)
        host, port = store.get(key).decode().rsplit(":", 1)
        return connect(host, int(port), timeout_ms)
    with listening_socket(own_host, 0, 1) as listener:
        store.set(key, f"{own_host}:{listener.getsockname()[1]}")
        while not select.select([listener], [], [], _POLL_S)[0]:
            _check(superseded, deadline, timeout_ms)
        return listener.accept()[0]


def _check(superseded: Superseded, deadline: float, timeout_ms: int) -> None:
    if superseded():
        raise LinkClosed("the driver has gone on to another epoch")
    if time.monotonic() >= deadline:
        raise LinkClosed(f"the peer did not come within {timeout_ms} ms")
