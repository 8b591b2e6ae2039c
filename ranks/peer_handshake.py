"""The peer link of one epoch: rank 1 connects to rank 0, and both show who they are.

ABI marker, law, draft mode, depth, exchange, weights, slots and epoch must be equal; a difference is refused with
both values named. Must never let a link carry a round before that. Source: DESIGN section 4, first point.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError
from torch._C._distributed_c10d import Store

from ranks.draw_depth import law_id_of
from ranks.frames import ABI_MARKER, Frame, Header, Kind
from ranks.link import FramedSocket, FrameFilter, LinkClosed
from ranks.rank_settings import RankSettings
from ranks.rendezvous import Superseded, meet
from selector.law_ids import law_number

__all__ = ["HandshakeRefused", "PeerIdentity", "open_peer_link"]


class HandshakeRefused(RuntimeError):
    """The ranks differ in something that must be equal; the sentence names both values."""


class PeerIdentity(BaseModel):
    """What a rank shows its peer; everything but rank and incarnation must be equal."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rank: int
    incarnation: int
    epoch: int
    abi_marker: str
    law_id: str
    draft_mode: str
    depth: int
    exchange: str
    weights_digest: str
    slot_count: int

    @classmethod
    def of(cls, settings: RankSettings, epoch: int, incarnation: int) -> Self:
        """Return the identity of a rank in an epoch."""
        return cls(
            rank=settings.rank,
            incarnation=incarnation,
            epoch=epoch,
            abi_marker=ABI_MARKER,
            law_id=law_id_of(settings.draft_mode),
            draft_mode=str(settings.draft_mode),
            depth=settings.depth,
            exchange=settings.exchange,
            weights_digest=settings.weights_digest,
            slot_count=settings.slot_count,
        )

    def difference(self, peer: PeerIdentity) -> str | None:
        """Return one sentence that names the first field in which the peer differs, or None."""
        if peer.rank != 1 - self.rank:
            return f"rank {self.rank} met rank {peer.rank} on its peer link, must be rank {1 - self.rank}"
        for name in type(self).model_fields:
            own, other = getattr(self, name), getattr(peer, name)
            if name not in ("rank", "incarnation") and own != other:
                return f"ranks differ in {name}: rank {self.rank} has {own!r}, rank {peer.rank} has {other!r}"
        return None


def open_peer_link(
    identity: PeerIdentity,
    store: Store,
    prefix: str,
    own_host: str,
    timeout_ms: int,
    link_filter: FrameFilter | None,
    superseded: Superseded,
) -> FramedSocket:
    """Return the peer link after a handshake that both ranks passed.

    Raises HandshakeRefused, LinkClosed (also when `superseded` says that the epoch is over).
    """
    connected = meet(identity.rank, store, f"{prefix}/peer", own_host, timeout_ms, superseded)
    framed = FramedSocket(connected, link_filter)
    try:
        _exchange_identity(framed, identity, timeout_ms)
    except (HandshakeRefused, LinkClosed):
        framed.close()
        raise
    return framed


def _exchange_identity(framed: FramedSocket, identity: PeerIdentity, timeout_ms: int) -> None:
    header = Header.outside_rounds(
        Kind.HELLO, identity.rank, identity.incarnation, epoch=identity.epoch, law=law_number(identity.law_id)
    )
    framed.send([(header, identity.model_dump_json().encode())])
    if not framed.readable(timeout_ms):
        raise LinkClosed(f"the peer did not say hello within {timeout_ms} ms")
    items = framed.receive()
    if len(items) != 1 or not isinstance(items[0], Frame) or items[0].header.kind is not Kind.HELLO:
        raise HandshakeRefused(f"rank {identity.rank} expected a hello of {ABI_MARKER} and got {items!r}"[:300])
    try:
        peer = PeerIdentity.model_validate_json(items[0].body)
    except ValidationError as error:
        sentence = f"the peer's hello is not of {ABI_MARKER}: {error.error_count()} fields are wrong"
        raise HandshakeRefused(sentence) from error
    difference = identity.difference(peer)
    if difference:
        raise HandshakeRefused(difference)
