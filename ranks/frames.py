"""The frame: a fixed little-endian header with its own check, and a body with CRC32C.

Encoding and decoding are pure. The decoder never raises on bytes: whatever arrives
becomes a frame or a reason, and after damage it finds the next sound header by itself.
Must never judge whether an intact frame is the right one: that is `ranks.binding`'s work.
Source: DESIGN section 4, first point.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import google_crc32c

__all__ = [
    "ABI_MARKER",
    "ABI_VERSION",
    "HEADER_BYTES",
    "MAX_BODY_BYTES",
    "BrokenFrame",
    "Frame",
    "FrameDecoder",
    "FrameFault",
    "Header",
    "Kind",
    "encode_frame",
]

MAGIC = 0x42455053  # the bytes "SPEB" on the wire
ABI_VERSION = 2
ABI_MARKER = f"specbed-frame-v{ABI_VERSION}"
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 8

# magic, abi, kind, source, law, incarnation, epoch, attempt, slot, round, generation, depth, flags,
# request, sequence, binding, body length, body check | header check
_FIELDS = struct.Struct("<IHBBQQIHHQIHHQQQII")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")


class Kind(IntEnum):
    """What a frame carries; an unknown number is refused."""

    HELLO = 1
    CANDIDATES = 2
    TOP_TOKEN = 3
    VOTE = 4
    CONTROL = 5


class FrameFault(StrEnum):
    """Why bytes did not become a frame."""

    HEADER_CHECK = "header_check"
    BODY_CHECK = "body_check"
    OVERSIZED = "oversized"
    UNKNOWN_KIND = "unknown_kind"
    OTHER_ABI = "other_abi"
    RESERVED_BITS = "reserved_bits"


@dataclass(frozen=True, slots=True)
class Header:
    """Who speaks about what: identity, place in the run, and the 64-bit binding.

    `law`, `incarnation`, `round_number`, `request`, `sequence`, `binding` are unsigned 64-bit; `epoch` and
    `generation` 32-bit; `attempt`, `slot`, `depth` 16-bit. `depth` is 1-based, 0 where it has no meaning.
    `usable` says whether the sender could use its own drafted prefix.
    """

    kind: Kind
    source: int
    law: int
    incarnation: int
    epoch: int
    attempt: int
    slot: int
    round_number: int
    generation: int
    depth: int
    usable: bool
    request: int
    sequence: int
    binding: int
    abi: int = ABI_VERSION

    @classmethod
    def outside_rounds(
        cls, kind: Kind, source: int, incarnation: int, *, epoch: int = 0, law: int = 0, sequence: int = 0
    ) -> Header:
        """Return a header that speaks of no round, slot or request: a hello or a control message."""
        return cls(kind, source, law, incarnation, epoch, 0, 0, 0, 0, 0, True, 0, sequence, 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """An intact frame: both checks hold."""

    header: Header
    body: bytes


@dataclass(frozen=True, slots=True)
class BrokenFrame:
    """Damaged bytes: the reason, and the header where it could be trusted (only for body faults)."""

    fault: FrameFault
    header: Header | None
    skipped_bytes: int


def encode_frame(header: Header, body: bytes) -> bytes:
    """Return the wire form of one frame.

    Body up to MAX_BODY_BYTES. Raises ValueError for a longer body, struct.error for a field out of range.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"frame body of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}")
    fields = _FIELDS.pack(
        MAGIC,
        header.abi,
        header.kind,
        header.source,
        header.law,
        header.incarnation,
        header.epoch,
        header.attempt,
        header.slot,
        header.round_number,
        header.generation,
        header.depth,
        int(header.usable),
        header.request,
        header.sequence,
        header.binding,
        len(body),
        google_crc32c.value(body),
    )
    return fields + _CHECK.pack(google_crc32c.value(fields)) + body


class FrameDecoder:
    """Cuts a byte stream into frames and reasons; keeps an incomplete tail for the next call.

    After a damaged header the length cannot be trusted, so the decoder skips to the next place where a
    whole header checks out. It holds at most one frame plus one header of bytes.
    """

    def __init__(self) -> None:
        """Start with an empty buffer."""
        self._buffer = bytearray()
        self._skipped = 0

    def feed(self, data: bytes) -> list[Frame | BrokenFrame]:
        """Take bytes and return, in order, every frame or reason that they complete."""
        self._buffer += data
        answers: list[Frame | BrokenFrame] = []
        while len(self._buffer) >= HEADER_BYTES:
            answer = self._next()
            if answer is None:
                break
            if answer is not _SKIPPED:
                answers.append(answer)
        return answers

    def pending_bytes(self) -> int:
        """Return how many bytes wait for their rest; not zero at end of stream means a truncated frame."""
        return len(self._buffer) + self._skipped

    def _next(self) -> Frame | BrokenFrame | None:
        buffer = self._buffer
        fields = bytes(buffer[: _FIELDS.size])
        (check,) = _CHECK.unpack_from(buffer, _FIELDS.size)
        if google_crc32c.value(fields) != check or not fields.startswith(_MAGIC_BYTES):
            self._skip_damage()
            return _SKIPPED
        if self._skipped:
            skipped, self._skipped = self._skipped, 0
            return BrokenFrame(FrameFault.HEADER_CHECK, None, skipped)
        values = _FIELDS.unpack(fields)
        body_length, body_check = values[16], values[17]
        if body_length > MAX_BODY_BYTES:
            del buffer[:HEADER_BYTES]
            return BrokenFrame(FrameFault.OVERSIZED, None, HEADER_BYTES)
        if len(buffer) < HEADER_BYTES + body_length:
            return None
        body = bytes(buffer[HEADER_BYTES : HEADER_BYTES + body_length])
        del buffer[: HEADER_BYTES + body_length]
        return _judge(values, body, body_check)

    def _skip_damage(self) -> None:
        # The next frame can only start at a magic; a match that is chance fails its header check again.
        found = self._buffer.find(_MAGIC_BYTES, 1)
        cut = found if found > 0 else len(self._buffer) - len(_MAGIC_BYTES) + 1
        del self._buffer[:cut]
        self._skipped += cut


_SKIPPED = BrokenFrame(FrameFault.HEADER_CHECK, None, 0)


def _judge(values: tuple[int, ...], body: bytes, body_check: int) -> Frame | BrokenFrame:
    """Turn checked header fields and a body into a frame or the reason why not."""
    abi, kind, flags = values[1], values[2], values[12]
    size = HEADER_BYTES + len(body)
    if abi != ABI_VERSION:
        return BrokenFrame(FrameFault.OTHER_ABI, None, size)
    if kind not in Kind._value2member_map_:
        return BrokenFrame(FrameFault.UNKNOWN_KIND, None, size)
    if flags > 1 or values[3] > 2 or values[11] > MAX_DEPTH:
        return BrokenFrame(FrameFault.RESERVED_BITS, None, size)
    header = Header(
        kind=Kind(kind),
        source=values[3],
        law=values[4],
        incarnation=values[5],
        epoch=values[6],
        attempt=values[7],
        slot=values[8],
        round_number=values[9],
        generation=values[10],
        depth=values[11],
        usable=bool(flags),
        request=values[13],
        sequence=values[14],
        binding=values[15],
        abi=abi,
    )
    if google_crc32c.value(body) != body_check:
        return BrokenFrame(FrameFault.BODY_CHECK, header, size)
    return Frame(header, body)
