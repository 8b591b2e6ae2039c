"""What a bed is told and what it answers: requests, rounds, dispositions, receipts.

Plain values that cross the border between `ranks` and its users. Must never hold
a clock, a handle, prompt text or generated text: token ids stay with the caller.
Source: DESIGN sections 1, 4 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Attestation",
    "DraftMode",
    "PrimeReceipt",
    "RankTimes",
    "RequestResult",
    "RequestSpec",
    "RequestStatus",
    "RoundRecord",
    "StopReceipt",
]


class DraftMode(StrEnum):
    """How a round gets its drafts: arm A is GREEDY, arm B is SAMPLED, PLAIN drafts nothing."""

    PLAIN = "plain"
    GREEDY = "greedy"
    SAMPLED = "sampled"


class RequestStatus(StrEnum):
    """How a request left the bed; a request leaves exactly once."""

    EOS = "eos"
    BUDGET = "budget"
    DEADLINE = "deadline"
    CANCELED = "canceled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as registered: identity, prompt ids, budget and target policy.

    `request_digest` (32 bytes) and `sample_index` key every random draw; `request_id` is a
    client's label and never does. `temperature` is 0 or 1. `max_new_tokens` >= 1.
    `time_budget_ns` bounds the decode run from admission; None means no bound.
    """

    request_id: str
    request_digest: bytes
    sample_index: int
    seed: int
    prompt_token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: int
    stop_token_ids: tuple[int, ...] = ()
    time_budget_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Host-clock nanoseconds of one round on one rank, term by term (no device synchronisation added).

    draft: parallel backbone; selector: Markov bias, top-k, law, draw; exchange: candidate frames sent
    and awaited; validation: frame checks and digests; target: verify forward; agreement: votes,
    verdict, both verify exchanges, acceptance and ack.
    """

    draft_ns: int
    selector_ns: int
    exchange_ns: int
    validation_ns: int
    target_ns: int
    agreement_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One committed round of one request, as the driver released it.

    `usable_depth` is k of SPEC(k), 0 for target-only; `reason` is "" unless k < drafted.
    `position` is the index of the first token emitted. Times are CLOCK_MONOTONIC ns of the driver:
    plan sent, tokens released. `q_frames` counts draft-law frames that the round used (0 in arm A).
    """

    request_id: str
    round_number: int
    epoch: int
    attempt: int
    batch_size: int
    position: int
    drafted: int
    usable_depth: int
    accepted: int
    emitted: int
    reason: str
    q_frames: int
    started_ns: int
    released_ns: int
    rank0: RankTimes
    rank1: RankTimes


@dataclass(frozen=True, slots=True)
class RequestResult:
    """How one request ended: its tokens, times and rounds.

    `admitted_ns`, `first_token_ns`, `finished_ns` are CLOCK_MONOTONIC ns of the driver;
    `first_token_ns` is None when nothing was delivered. `token_ids` is what was released, EOS included.
    `open_round_age_ns` is the age of the round in flight when a deadline cut the request, else None.
    """

    request_id: str
    status: RequestStatus
    failure: str
    token_ids: tuple[int, ...]
    admitted_ns: int
    first_token_ns: int | None
    finished_ns: int
    open_round_age_ns: int | None
    rounds: tuple[RoundRecord, ...]
    epochs_survived: int


@dataclass(frozen=True, slots=True)
class PrimeReceipt:
    """A prefix was run through the target on both ranks and is held for its request."""

    request_id: str
    occupied_tokens: int
    elapsed_ns: int
    prefix_digest: str
    state_digests: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Attestation:
    """Who a rank says it is, read back from the running process (never from the command line).

    Digests are sha-256 hex. `sampled_drafts` is this rank's switch: the engine switch on rank 0,
    the worker switch on rank 1. `process_start_ticks` tells a reused pid apart.
    """

    rank: int
    pid: int
    process_start_ticks: int
    incarnation: str
    weights_digest: str
    ngram_memory_digest: str
    source_digest: str
    law_id: str
    abi_marker: str
    sampled_drafts: bool
    depth: int
    profile: str
    device: str
    python_version: str
    torch_version: str
    target_temperature: str
    target_top_p: str
    row_invariant: bool


@dataclass(frozen=True, slots=True)
class StopReceipt:
    """Ranks were told to stop; `survivors` lists pids still alive after the wait (must be empty)."""

    stopped_pids: tuple[int, ...]
    survivors: tuple[int, ...]
