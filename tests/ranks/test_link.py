"""Framed sockets: reading never waits, an end is an error, and what is no control message ends a control link."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ranks.frames import Frame, Header, Kind
from ranks.link import ControlLink, FramedSocket, LinkClosed, connect, listening_socket
from ranks.round_plan import EpochReady


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with listening_socket("127.0.0.1", 0, 1) as listener:
        return connect("127.0.0.1", listener.getsockname()[1], 2000), listener.accept()[0]


@pytest.fixture
def ends() -> Iterator[tuple[FramedSocket, FramedSocket]]:
    near, far = (FramedSocket(end) for end in tcp_pair())
    yield near, far
    near.close()
    far.close()


def test_reading_an_empty_link_gives_nothing_and_does_not_wait(ends: tuple[FramedSocket, FramedSocket]) -> None:
    # A loop over several links polls them together; a recovery inside it may already have read the second one.
    assert ends[0].receive() == []


def test_frames_arrive_and_the_end_of_the_link_is_an_error(ends: tuple[FramedSocket, FramedSocket]) -> None:
    header = Header.outside_rounds(Kind.VOTE, 1, 7)
    ends[0].send([(header, b"one"), (header, b"two")])
    assert ends[1].readable(2000)
    assert ends[1].receive() == [Frame(header, b"one"), Frame(header, b"two")]
    ends[0].close()
    assert ends[1].readable(2000)
    with pytest.raises(LinkClosed, match="closed the connection"):
        ends[1].receive()


def test_a_control_link_gives_messages_and_ends_on_anything_else(ends: tuple[FramedSocket, FramedSocket]) -> None:
    driver, rank = ControlLink(ends[0], 2, 0), ControlLink(ends[1], 0, 5)
    rank.send(EpochReady(3, 0))
    assert driver.framed.readable(2000)
    assert driver.receive() == [EpochReady(3, 0)]
    ends[1].send([(Header.outside_rounds(Kind.VOTE, 0, 5), b"")])
    assert driver.framed.readable(2000)
    with pytest.raises(LinkClosed, match="no control message"):
        driver.receive()


def test_a_filter_may_change_or_drop_what_leaves() -> None:
    near, far = tcp_pair()
    header = Header.outside_rounds(Kind.VOTE, 1, 7)
    dropping = FramedSocket(near, lambda _, data: None)
    receiving = FramedSocket(far)
    dropping.send([(header, b"gone")])
    assert dropping.bytes_sent == 0
    assert not receiving.readable(50)
    dropping.close()
    receiving.close()
