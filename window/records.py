"""What a window seals: one record a run, one receipt a block, the smoke, the restore, the time line.

Times are nanoseconds since elapsed 0, the first effect of the drain, so that they fit canonical integers on
any machine. Must never hold prompt or output text or token ids: digests, counts and times only.
Source: plan, "Endpoints, measurements and frozen decision".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from window.arms import ArmName, BlockName
from window.canonical import Count, Digest, Nanoseconds, SealedModel
from window.dispositions import Disposition

__all__ = [
    "BlockReceipt",
    "Finding",
    "PrimeRecord",
    "RankIdentity",
    "RankTerms",
    "RestoreItem",
    "RestoreReceipt",
    "RoundColumns",
    "RoundFault",
    "RunRecord",
    "SmokePartResult",
    "SmokeReceipt",
    "StageSpan",
    "WarmUpRecord",
    "WindowRecords",
    "WindowRound",
]


class RankTerms(SealedModel):
    """Host nanoseconds of one round on one rank, term by term."""

    draft_ns: Nanoseconds
    selector_ns: Nanoseconds
    exchange_ns: Nanoseconds
    validation_ns: Nanoseconds
    target_ns: Nanoseconds
    agreement_ns: Nanoseconds
    total_ns: Nanoseconds


class WindowRound(SealedModel):
    """One complete round of a measured run, as sealed in the side file of its block."""

    run_id: str
    round_number: Count
    epoch: Count
    attempt: Count
    position: Count
    drafted: Count
    usable_depth: Count
    accepted: Count
    emitted: Count
    reason: str
    q_frames: Count
    started_ns: Nanoseconds
    released_ns: Nanoseconds
    rank0: RankTerms
    rank1: RankTerms


class RoundFault(SealedModel):
    """How often rounds of a run lost drafts for one reason."""

    reason: str
    rounds: Count


class RunRecord(SealedModel):
    """One registered run, whatever became of it.

    `decode_tokens` and `decode_time_ns` are N and T of the rate: tokens after the first-token round, and the time
    from its release to the end that the delivered-tokens rule sets. `open_round_ns` is the age at the cut of what was
    still open; `open_round_kept` says that it stayed in the time.
    """

    run_id: str
    block: BlockName
    source_id: str
    order_index: Count
    request_digest: Digest
    sample_index: Count
    seed: Count
    disposition: Disposition
    disposition_reason: str
    admitted_ns: Nanoseconds | None
    finished_ns: Nanoseconds | None
    ttft_ns: Nanoseconds | None
    first_visible_ns: Nanoseconds | None
    delivered_tokens: Count
    reasoning_tokens: Count
    decode_tokens: Count
    decode_time_ns: Nanoseconds
    complete_rounds: Count
    drafted: Count
    accepted: Count
    longest_round_ns: Nanoseconds
    open_round_ns: Nanoseconds | None
    open_round_kept: bool
    tokens_after_stop: Count
    rounds_off_depth: Count
    rounds_with_wrong_q: Count
    faults: tuple[RoundFault, ...]
    epochs_survived: Count
    output_tokens_sha256: Digest | None
    rounds_sha256: Digest


class RankIdentity(SealedModel):
    """Who a rank said it was, read back from the running process."""

    rank: Count
    pid: Count
    process_start_ticks: Count
    incarnation: str
    weights_sha256: str
    ngram_memory_sha256: str
    source_sha256: str
    law_id: str
    abi_marker: str
    sampled_drafts: bool
    depth: Count
    profile: str
    device: str
    python_version: str
    torch_version: str
    target_temperature: str
    target_top_p: str
    row_invariant: bool


class WarmUpRecord(SealedModel):
    """What the warm-up rounds of a block showed; `cold_ttft_ns` is the first request after the start."""

    requests: Count
    rounds: Count
    rounds_with_drafts: Count
    rounds_with_q: Count
    rounds_off_depth: Count
    cold_ttft_ns: Nanoseconds | None
    elapsed_ns: Nanoseconds


class PrimeRecord(SealedModel):
    """One prefix held for its run; both ranks report equal state."""

    source_id: str
    expected_tokens: Count
    occupied_tokens: Count
    elapsed_ns: Nanoseconds
    state_equal: bool


class BlockReceipt(SealedModel):
    """One engine session: identity before and after, warm-up, primes, and how it was stopped."""

    block: BlockName
    arm: ArmName
    outcome: Literal["COMPLETE", "TRUNCATED", "FAILED"]
    failure: str
    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    identity_before: tuple[RankIdentity, ...]
    identity_after: tuple[RankIdentity, ...]
    mismatches: tuple[str, ...]
    warm_up: WarmUpRecord | None
    primes: tuple[PrimeRecord, ...]
    stopped_pids: tuple[int, ...]
    survivors: tuple[int, ...]


class SmokePartResult(SealedModel):
    """One part of the paired smoke; `first_difference` is a token index, never a token."""

    part: Literal["greedy", "failure", "structured"]
    case: str
    outcome: Literal["MATCH", "MISMATCH", "INCOMPLETE"]
    compared_tokens: Count
    first_difference: Count | None
    reason: str


class SmokeReceipt(SealedModel):
    """The whole smoke."""

    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    results: tuple[SmokePartResult, ...]


class RestoreItem(SealedModel):
    """One observed item of the start state, before the window and after the restore."""

    name: str
    before: str
    after: str
    equal: bool


class RestoreReceipt(SealedModel):
    """The start state observed again; exactly one exists for an opened window."""

    outcome: Literal["RESTORED", "ESCALATED"]
    fencing_epoch: Count
    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    items: tuple[RestoreItem, ...]
    reason: str


class StageSpan(SealedModel):
    """One stage on the time line, with its own budget."""

    stage: str
    block: BlockName | None
    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    budget_ns: Nanoseconds

    @property
    def overrun(self) -> bool:
        """Return whether the stage took longer than its budget."""
        return self.ended_ns - self.started_ns > self.budget_ns


class Finding(SealedModel):
    """A sealed record that contradicts another one or the registration."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class RoundColumns:
    """The rounds of one run as columns, int64 arrays of one length, in round order."""

    duration_ns: NDArray[np.int64]
    emitted: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowRecords:
    """All sealed records of one window; `rounds` maps a run id to its columns."""

    opened: bool
    runs: tuple[RunRecord, ...]
    rounds: Mapping[str, RoundColumns]
    blocks: tuple[BlockReceipt, ...]
    smoke: SmokeReceipt | None
    restore: RestoreReceipt | None
    spans: tuple[StageSpan, ...]
    findings: tuple[Finding, ...]
    stop_reason: str
