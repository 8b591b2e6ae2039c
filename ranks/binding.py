"""What ties a frame to its meaning: request, prefix, position, draw and law in 64 bits.

A checksum proves a frame intact; only the binding proves it the right one. Must never
include anything that may differ between the two ranks of a sound round.
Source: DESIGN section 4, first point; Philox counter block as in `selector.philox`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["EMPTY_PREFIX", "binding_digest", "extend_prefix"]

EMPTY_PREFIX = 0
_LINK = struct.Struct("<Qq")
_BINDING = struct.Struct("<QQQQQ")


def extend_prefix(prefix_digest: int, token_ids: Iterable[int]) -> int:
    """Return the 64-bit chained digest of a token sequence, grown by `token_ids` one at a time.

    Chaining lets a rank extend the prefix by each drafted token without reading the whole sequence again.
    """
    for token_id in token_ids:
        link = blake2b(_LINK.pack(prefix_digest, token_id), digest_size=8)
        prefix_digest = int.from_bytes(link.digest(), "little")
    return prefix_digest


def binding_digest(request: int, prefix_digest: int, position: int, purpose: int, law: int) -> int:
    """Return the 64-bit binding of one draw.

    `request`, `position` and `purpose` are the draw's Philox counter block; all are unsigned 64-bit.
    """
    packed = _BINDING.pack(request, prefix_digest, position, purpose, law)
    return int.from_bytes(blake2b(packed, digest_size=8, person=b"binding").digest(), "little")
