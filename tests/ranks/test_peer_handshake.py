"""Two ranks meet over real sockets and a real store; a difference is refused with both values named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import TCPStore

from ranks.link import FramedSocket
from ranks.peer_handshake import HandshakeRefused, PeerIdentity, open_peer_link


def identity(rank: int, **changes: object) -> PeerIdentity:
    fields: dict[str, object] = {
        "rank": rank,
        "incarnation": 10 + rank,
        "epoch": 3,
        "abi_marker": "specbed-frame-v2",
        "law_id": "top32/tau0.7/dyadic24-floor-first-v1",
        "draft_mode": "sampled",
        "depth": 5,
        "exchange": "candidates",
        "weights_digest": "ab" * 32,
        "slot_count": 4,
    }
    return PeerIdentity.model_validate(fields | changes)


def meet(first: PeerIdentity, second: PeerIdentity) -> list[FramedSocket | HandshakeRefused]:
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def side(own: PeerIdentity) -> FramedSocket | HandshakeRefused:
        client = TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
        try:
            return open_peer_link(own, client, "epoch-3", "127.0.0.1", 30_000, None, lambda: False)
        except HandshakeRefused as refused:
            return refused

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(side, (first, second)))


def test_equal_ranks_get_a_link() -> None:
    links = meet(identity(0), identity(1))
    assert all(isinstance(link, FramedSocket) for link in links)
    for link in links:
        assert isinstance(link, FramedSocket)
        link.close()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("abi_marker", "specbed-frame-v1"),
        ("law_id", "greedy/one-hot-v1"),
        ("law_id", "pruned32-grid12/top32/tau0.7/dyadic24-floor-first-v1"),
        ("draft_mode", "greedy"),
        ("depth", 4),
        ("exchange", "staging"),
        ("weights_digest", "cd" * 32),
        ("slot_count", 2),
        ("epoch", 4),
    ],
)
def test_ranks_that_differ_refuse_each_other_and_name_both_values(name: str, other: object) -> None:
    first, second = identity(0), identity(1, **{name: other})
    answers = meet(first, second)
    for answer in answers:
        assert isinstance(answer, HandshakeRefused)
        assert name in str(answer)
        assert repr(getattr(first, name)) in str(answer)
        assert repr(other) in str(answer)


def test_a_rank_that_meets_itself_is_refused() -> None:
    assert "met rank 0" in (identity(0).difference(identity(0)) or "")
