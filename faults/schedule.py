"""Link faults as data: which frame, and what happens to it, at logical coordinates and never at times.

The same list means the same on linked cores in memory and on real sockets. Must never hold randomness: whoever makes
a list draws it once, and the run reads only the list. Source: DESIGN section 5.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ranks.frames import HEADER_BYTES, Header, Kind

__all__ = ["FrameFault", "ScheduleError", "apply_faults", "dump_schedule", "parse_schedule"]


class ScheduleError(ValueError):
    """A schedule that is not one; the sentence names the fault and the field."""


class FrameFault(BaseModel):
    """One fault on frames that rank `source` sends.

    `kind` is a candidate frame (of either arm) or a vote; `round_number`, `depth`, `slot` None match any. `flip`
    inverts bit `bit` of byte `byte`, counted from the frame's start, or from the body's start for place "body".
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    id: str
    source: Literal[0, 1]
    kind: Literal["candidates", "vote"]
    round_number: Annotated[int, Field(ge=1)] | None
    depth: Annotated[int, Field(ge=1, le=8)] | None
    slot: Annotated[int, Field(ge=0)] | None
    op: Literal["drop", "flip"]
    place: Literal["header", "body"]
    byte: Annotated[int, Field(ge=0)]
    bit: Annotated[int, Field(ge=0, le=7)]

    def hits(self, rank: int, header: Header) -> bool:
        """Return whether this fault strikes a frame that `rank` sends."""
        kinds = (Kind.VOTE,) if self.kind == "vote" else (Kind.CANDIDATES, Kind.TOP_TOKEN)
        wanted = [(self.round_number, header.round_number), (self.slot, header.slot)]
        if self.kind == "candidates":
            wanted.append((self.depth, header.depth))
        return rank == self.source and header.kind in kinds and all(own in (None, other) for own, other in wanted)


_SCHEDULE = TypeAdapter(tuple[FrameFault, ...])


def parse_schedule(text: str) -> tuple[FrameFault, ...]:
    """Return the faults of a JSON list. Raises ScheduleError with one sentence."""
    try:
        return _SCHEDULE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the list"
        raise ScheduleError(f"fault schedule is wrong at {place}: {first['msg']}") from error


def dump_schedule(faults: tuple[FrameFault, ...]) -> str:
    """Return the JSON list of faults."""
    return _SCHEDULE.dump_json(faults).decode()


def apply_faults(faults: tuple[FrameFault, ...], rank: int, header: Header, data: bytes) -> bytes | None:
    """Return the wire bytes that leave `rank` for one frame: unchanged, with flipped bits, or None when dropped.

    A flip behind the frame's last byte strikes the last byte, so that it always has an effect.
    """
    for fault in faults:
        if not fault.hits(rank, header):
            continue
        if fault.op == "drop":
            return None
        start = HEADER_BYTES if fault.place == "body" else 0
        at = min(start + fault.byte, len(data) - 1)
        data = data[:at] + bytes([data[at] ^ (1 << fault.bit)]) + data[at + 1 :]
    return data
