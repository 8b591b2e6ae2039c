"""Both CPU collectives give both ranks the same bits, and a lost or different peer is an error, never a hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Self, TypeVar

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from ranks.collective import CollectiveError
from ranks.epoch_collective import EpochCollective, make_collective

Backend = Literal["socket", "gloo", "nccl"]
BACKENDS: tuple[Backend, ...] = ("socket", "gloo")
SHAPES = ((1,), (24, 192), (6, 5), (192, 192), (1000, 300))
Answer = TypeVar("Answer")


class Pair:
    """Two bound collectives, each driven by its own thread."""

    def __init__(self, backend: Backend, timeout_ms: int = 4000) -> None:
        self.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self.sides = (make_collective(0, backend), make_collective(1, backend))
        self.pool = ThreadPoolExecutor(2)
        self.bind("epoch-1", timeout_ms)

    def bind(self, prefix: str, timeout_ms: int = 4000) -> None:
        clients = [TCPStore("127.0.0.1", self.store.port, None, False, wait_for_workers=False) for _ in range(2)]
        self.both(lambda side: side.rebind(clients[side.rank], prefix, "127.0.0.1", timeout_ms, lambda: False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            side.release()
        self.pool.shutdown()

    def both(self, action: Callable[[EpochCollective], Answer]) -> list[Answer]:
        return list(self.pool.map(action, self.sides))


def part(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_and_gathers_have_the_same_bits_on_both_ranks_in_every_size(backend: Backend) -> None:
    with Pair(backend) as pair:
        for shape in SHAPES:
            first, second = pair.both(lambda side, shape=shape: side.all_reduce_sum(part(side.rank, shape)))  # type: ignore[misc]
            assert torch.equal(first, second)
            assert torch.equal(first, part(0, shape) + part(1, shape))
            first, second = pair.both(lambda side, shape=shape: side.all_gather(part(side.rank, shape)))  # type: ignore[misc]
            assert torch.equal(first, second)
            assert torch.equal(first, torch.stack([part(0, shape), part(1, shape)]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_peer_that_leaves_is_an_error_at_once_and_a_new_epoch_works(backend: Backend) -> None:
    with Pair(backend, timeout_ms=20_000) as pair:
        failed = threading.Event()

        def wait_for_peer() -> float:
            started = time.monotonic()
            with pytest.raises(CollectiveError):
                pair.sides[0].all_reduce_sum(torch.ones(4))
            failed.set()
            return time.monotonic() - started

        waited = pair.pool.submit(wait_for_peer)
        pair.sides[1].release()
        assert waited.result() < 15, "the end of the peer was only noticed by the timeout"
        pair.sides[0].release()
        pair.bind("epoch-2")
        first, _ = pair.both(lambda side: side.all_reduce_sum(torch.ones(3)))
        assert first.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_silent_peer_is_an_error_after_the_timeout(backend: Backend) -> None:
    with Pair(backend, timeout_ms=500) as pair, pytest.raises(CollectiveError):
        pair.sides[0].all_reduce_sum(torch.ones(4))


def test_ranks_in_different_collectives_are_told_apart_and_never_mixed() -> None:
    with Pair("socket") as pair:

        def different(side: EpochCollective) -> str:
            with pytest.raises(CollectiveError, match=r"different collectives|gone") as caught:
                side.all_reduce_sum(torch.ones(4 + side.rank))
            return str(caught.value)

        assert any("different collectives" in answer for answer in pair.both(different))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_collective_without_an_epoch_refuses_every_call(backend: Backend) -> None:
    with pytest.raises(CollectiveError, match="the epoch has not begun"):
        make_collective(0, backend).all_reduce_sum(torch.ones(1))
