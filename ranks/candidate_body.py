"""Bodies of peer frames: a shard's candidates, a greedy top token, a vote.

Exact little-endian layouts. Decoding answers a reason, never an exception, and checks everything that
the receiver can know by itself: counts, order, range, finite values. Must never repair a body.
Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from selector.draft_law import TOP_K, ShardCandidates

__all__ = ["BodyFault", "DepthVote", "decode_candidates", "decode_votes", "encode_candidates", "encode_votes"]

_CANDIDATES_HEAD = struct.Struct("<BBH")
_VOTE = struct.Struct("<BBQ")


class BodyFault(StrEnum):
    """Why an intact body is no lawful content."""

    LENGTH = "body_length"
    RESERVED_BITS = "body_reserved_bits"
    TOO_MANY = "too_many_candidates"
    OUTSIDE_SHARD = "id_outside_shard"
    NOT_FINITE = "logit_not_finite"
    ORDER = "candidates_out_of_order"


@dataclass(frozen=True, slots=True)
class DepthVote:
    """One rank's word on one depth: usable or not, the digest of its counts and draw, and a reason number."""

    usable: bool
    digest: int
    reason: int


def encode_candidates(candidates: ShardCandidates) -> bytes:
    """Return the body for one row: poisoned flag, count, ids (int32), logits (float32)."""
    count = len(candidates.token_ids)
    head = _CANDIDATES_HEAD.pack(int(candidates.poisoned), count, 0)
    return head + candidates.token_ids.astype("<i4").tobytes() + candidates.logits.astype("<f4").tobytes()


def decode_candidates(
    body: bytes, first_token_id: int, shard_size: int, limit: int = TOP_K
) -> ShardCandidates | BodyFault:
    """Return the candidates of the peer's shard, ids in [first_token_id, first_token_id + shard_size).

    They must be finite, distinct and in law order (logit descending, then id ascending), at most `limit`.
    """
    if len(body) < _CANDIDATES_HEAD.size:
        return BodyFault.LENGTH
    poisoned, count, reserved = _CANDIDATES_HEAD.unpack_from(body)
    if poisoned > 1 or reserved:
        return BodyFault.RESERVED_BITS
    if count > limit:
        return BodyFault.TOO_MANY
    if len(body) != _CANDIDATES_HEAD.size + 8 * count:
        return BodyFault.LENGTH
    token_ids = np.frombuffer(body, "<i4", count, _CANDIDATES_HEAD.size).astype(np.int32)
    logits = np.frombuffer(body, "<f4", count, _CANDIDATES_HEAD.size + 4 * count).astype(np.float32)
    fault = _content_fault(token_ids, logits, first_token_id, shard_size)
    return fault if fault else ShardCandidates(token_ids=token_ids, logits=logits, poisoned=bool(poisoned))


def _content_fault(token_ids: np.ndarray, logits: np.ndarray, first_token_id: int, shard_size: int) -> BodyFault | None:
    if not len(token_ids):
        return None
    if int(token_ids.min()) < first_token_id or int(token_ids.max()) >= first_token_id + shard_size:
        return BodyFault.OUTSIDE_SHARD
    if not np.isfinite(logits).all():
        return BodyFault.NOT_FINITE
    lower, higher = logits[1:], logits[:-1]
    ordered = (higher > lower) | ((higher == lower) & (token_ids[:-1] < token_ids[1:]))
    return None if ordered.all() else BodyFault.ORDER


def encode_votes(votes: tuple[DepthVote, ...]) -> bytes:
    """Return the body of a vote: one (usable, reason, digest) a depth."""
    return b"".join(_VOTE.pack(int(vote.usable), vote.reason, vote.digest) for vote in votes)


def decode_votes(body: bytes, depth: int) -> tuple[DepthVote, ...] | BodyFault:
    """Return exactly `depth` votes or why the body holds no such thing."""
    if len(body) != _VOTE.size * depth:
        return BodyFault.LENGTH
    fields = list(_VOTE.iter_unpack(body))
    if any(usable > 1 for usable, _, _ in fields):
        return BodyFault.RESERVED_BITS
    return tuple(DepthVote(bool(usable), digest, reason) for usable, reason, digest in fields)
