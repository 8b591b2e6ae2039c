"""What the driver tells both ranks to do in one round, and what they answer.

Typed control messages and their canonical bytes. Both ranks get the same bytes of a plan. Must never
hold handles or clocks; decoding refuses unknown fields and wrong types by one sentence.
Source: DESIGN section 4.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ranks.records import Attestation, DraftMode, RankTimes

__all__ = [
    "AckEntry",
    "AdmitSlot",
    "BeginEpoch",
    "CommandDone",
    "ControlMessage",
    "EpochReady",
    "Hello",
    "MessageError",
    "PlanEntry",
    "PrimePrefix",
    "RankFailure",
    "RoundAck",
    "RoundPlan",
    "RoundVerdict",
    "Stop",
    "VerdictEntry",
    "decode_message",
    "encode_message",
]

_STRICT = ConfigDict(strict=True, extra="forbid")


class MessageError(ValueError):
    """Control bytes that are no message of ours."""


@dataclass(frozen=True, slots=True, config=_STRICT)
class Hello:
    """A rank's first word on its control link."""

    attestation: Attestation
    type: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, config=_STRICT)
class BeginEpoch:
    """Open a new epoch: a fresh store prefix, a fresh group, a fresh peer link; all slots and primes are void."""

    epoch: int
    incarnations: tuple[int, int]
    store_port: int
    store_prefix: str
    type: Literal["begin_epoch"] = "begin_epoch"


@dataclass(frozen=True, slots=True, config=_STRICT)
class EpochReady:
    """A rank has its group and its peer link and both agree on identity."""

    epoch: int
    rank: int
    type: Literal["epoch_ready"] = "epoch_ready"


@dataclass(frozen=True, slots=True, config=_STRICT)
class PrimePrefix:
    """Run a prefix through the target and hold it under its 64-bit digest; collective on both ranks."""

    epoch: int
    prefix: int
    token_ids: tuple[int, ...]
    type: Literal["prime"] = "prime"


@dataclass(frozen=True, slots=True, config=_STRICT)
class AdmitSlot:
    """Put a request into a slot: from the held prefix of digest `held_prefix`, or None: by running all its tokens.

    `token_ids` is the whole committed sequence; it starts with the held prefix.
    """

    epoch: int
    slot: int
    generation: int
    request: int
    token_ids: tuple[int, ...]
    held_prefix: int | None
    type: Literal["admit"] = "admit"


@dataclass(frozen=True, slots=True, config=_STRICT)
class CommandDone:
    """A prime (`subject` is the prefix) or an admission (the request) is done, with the slot's replicated state.

    `held_tokens` is what this rank's engine holds now: tokens with keys and values, plus the anchor behind them.
    """

    epoch: int
    rank: int
    subject: int
    held_tokens: int
    state_digest: int
    type: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, config=_STRICT)
class PlanEntry:
    """One request's row block of a round: `position` is the index of the first token that it will emit."""

    slot: int
    generation: int
    request: int
    seed: int
    position: int
    anchor_token_id: int
    prefix_digest: int
    temperature: Literal[0, 1]


@dataclass(frozen=True, slots=True, config=_STRICT)
class RoundPlan:
    """One round for up to four slots; `depth` is 0 exactly when the mode is PLAIN."""

    epoch: int
    round_number: int
    attempt: int
    draft_mode: DraftMode
    depth: int
    entries: tuple[PlanEntry, ...]
    type: Literal["plan"] = "plan"


@dataclass(frozen=True, slots=True, config=_STRICT)
class VerdictEntry:
    """SPEC(k) for one request; `reason` says why k is less than the depth, else ""."""

    slot: int
    request: int
    usable_depth: int
    reason: str


@dataclass(frozen=True, slots=True, config=_STRICT)
class RoundVerdict:
    """Rank 0's decision; the same message is its proposal and, once logged, the driver's relay."""

    epoch: int
    round_number: int
    attempt: int
    entries: tuple[VerdictEntry, ...]
    type: Literal["verdict"] = "verdict"


@dataclass(frozen=True, slots=True, config=_STRICT)
class AckEntry:
    """What one rank did for one request; both ranks' entries must be equal for a commit.

    `invalid_row` is the target row that verification reached and found invalid, or None.
    """

    slot: int
    request: int
    accepted: int
    token_ids: tuple[int, ...]
    state_digest: int
    invalid_row: int | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class RoundAck:
    """A rank finished a round.

    `q_frames` counts, in plan order, the peer's draft-law frames that this rank used; it may differ between ranks.
    """

    epoch: int
    round_number: int
    attempt: int
    rank: int
    entries: tuple[AckEntry, ...]
    q_frames: tuple[int, ...]
    times: RankTimes
    type: Literal["ack"] = "ack"


@dataclass(frozen=True, slots=True, config=_STRICT)
class RankFailure:
    """A rank ends its part of the epoch and says why."""

    epoch: int
    rank: int
    reason: str
    detail: str
    type: Literal["failure"] = "failure"


@dataclass(frozen=True, slots=True, config=_STRICT)
class Stop:
    """Leave: close everything and end the process."""

    type: Literal["stop"] = "stop"


ControlMessage = Annotated[
    Hello
    | BeginEpoch
    | EpochReady
    | PrimePrefix
    | AdmitSlot
    | CommandDone
    | RoundPlan
    | RoundVerdict
    | RoundAck
    | RankFailure
    | Stop,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[ControlMessage] = TypeAdapter(ControlMessage)


def encode_message(message: ControlMessage) -> bytes:
    """Return the JSON bytes of a control message."""
    return _ADAPTER.dump_json(message)


def decode_message(body: bytes) -> ControlMessage:
    """Return the message that the bytes hold. Raises MessageError with one sentence."""
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "message"
        raise MessageError(f"control message refused at {place}: {first['msg']}") from error
