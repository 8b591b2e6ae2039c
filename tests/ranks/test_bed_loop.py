"""The driver's loop against ranks that never answer: it ends with one sentence, never in a wait for ever."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ranks.bed import Bed, BedError
from ranks.driver_core import DriverCore, DriverPhase, DriverPolicy
from ranks.driver_events import CommitDeadline, DriverEffect, DriverEvent
from ranks.errors import UserError
from ranks.frames import FrameDecoder
from ranks.link import ControlLink, FramedSocket
from ranks.records import DraftMode, StopReceipt
from ranks.round_plan import BeginEpoch, EpochReady
from ranks.timeout_ladder import TimeoutLadder
from tests.ranks.toy_model import request

IMPATIENT = TimeoutLadder(
    vote_timeout_ms=1, commit_timeout_ms=2, group_timeout_ms=3, ray_get_timeout_ms=4, watchdog_timeout_ms=5
)


class SilentPair:
    """Two links whose far ends only listen, or say that an epoch is ready and nothing more."""

    draft_mode, depth, ladder, max_position = DraftMode.SAMPLED, 5, IMPATIENT, 40

    def __init__(self, ready: bool) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(2)]
        self.ready = ready
        self.links = {rank: ControlLink(Plain(near), 2, 0) for rank, (near, _) in enumerate(pairs)}
        self.far = [ControlLink(Plain(far), rank, 0) for rank, (_, far) in enumerate(pairs)]
        self.replaced: list[tuple[int, ...]] = []

    def sockets(self) -> list[FramedSocket]:
        return [link.framed for link in self.links.values()]

    def ranks_of(self, ready: Iterable[FramedSocket]) -> list[int]:
        chosen = list(ready)
        return [rank for rank, link in self.links.items() if link.framed in chosen]

    def epoch_messages(self, epoch: int) -> tuple[BeginEpoch, BeginEpoch]:
        if self.ready:
            for rank, link in enumerate(self.far):
                link.send(EpochReady(epoch, rank))
        message = BeginEpoch(epoch, (1, 2), 1, f"epoch-{epoch}")
        return message, message

    def replace(self, ranks: Iterable[int]) -> None:
        self.replaced.append(tuple(ranks))

    def stop(self) -> StopReceipt:
        for link in (*self.links.values(), *self.far):
            link.close()
        return StopReceipt((), ())


class Plain(FramedSocket):
    """A framed socket of a family that has no TCP options."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self.socket, self.bytes_sent = connected, 0
        self._decoder, self._outgoing = FrameDecoder(), None


class NoSession:
    def watch_children(self) -> None:
        return None

    def stop(self) -> list[int]:
        return []


@pytest.fixture
def made() -> Iterator[list[SilentPair]]:
    pairs: list[SilentPair] = []
    yield pairs
    for pair in pairs:
        pair.stop()


def start(pair: Any) -> Bed:
    return Bed(pair, NoSession(), False, DriverPolicy(slot_count=4))  # type: ignore[arg-type]


def test_ranks_that_never_get_ready_end_in_a_sentence_after_a_few_epochs(made: list[SilentPair]) -> None:
    pair = SilentPair(ready=False)
    made.append(pair)
    with pytest.raises(BedError, match="epochs ended without a committed round, the last by commit_deadline"):
        start(pair)
    assert pair.replaced == [(0, 1)] * 5


def test_ranks_that_get_ready_and_then_say_nothing_end_in_a_sentence(made: list[SilentPair]) -> None:
    pair = SilentPair(ready=True)
    made.append(pair)
    bed = start(pair)
    assert bed.core.phase is DriverPhase.IDLE
    with pytest.raises(BedError, match="epochs ended without a committed round"):
        bed.run([request("a")])


@pytest.mark.parametrize(("prompt", "count"), [((1,) * 30, 10), ((), 4)])
def test_a_request_that_would_reach_the_last_position_is_refused_before_a_rank_sees_it(
    made: list[SilentPair], prompt: tuple[int, ...], count: int
) -> None:
    pair = SilentPair(ready=True)
    made.append(pair)
    bed = start(pair)
    spec = replace(request("a"), prompt_token_ids=prompt, max_new_tokens=count)
    with pytest.raises(UserError, match="needs at least one prompt token and at most 40 in all"):
        bed.run([spec])
    assert not bed.core.busy


class DeafCore(DriverCore):
    """A driver core with the bug that it ignores every deadline."""

    def handle(self, event: DriverEvent) -> list[DriverEffect]:
        return [] if isinstance(event, CommitDeadline) else super().handle(event)


def test_the_watchdog_ends_what_no_deadline_ended(made: list[SilentPair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranks.bed.DriverCore", DeafCore)
    pair = SilentPair(ready=True)
    made.append(pair)
    bed = start(pair)
    with pytest.raises(BedError, match="watchdog: no deadline ended a command within 5 ms"):
        bed.run([request("a")])
