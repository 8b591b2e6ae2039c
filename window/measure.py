"""From what the bed answered to what the window seals: tokens, times, rounds and a disposition.

Pure: the same answer always gives the same record. Must never drop a slow round, count a token behind
a stop, or carry token ids over. Source: registration, DeliveredTokensRule; plan, "never drop slow samples".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranks.records import RankTimes, RequestResult, RequestStatus, RoundRecord
from window.arms import BlockName
from window.canonical import canonical_bytes, canonical_json, sha256_hex
from window.dispositions import Disposition
from window.records import RankTerms, RoundColumns, RoundFault, RunRecord, WindowRound

__all__ = ["RunIdentity", "columns_of", "measure_run", "rounds_digest", "run_without_result"]


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """A registered run and the bounds it ran under.

    `granted_ns` is the time it was given, at most the registered budget; less means that a wall cut it.
    `opened_ns` is the CLOCK_MONOTONIC time of elapsed 0.
    """

    run_id: str
    block: BlockName
    source_id: str
    order_index: int
    request_digest: str
    sample_index: int
    seed: int
    depth: int
    sampled_drafts: bool
    stop_token_ids: tuple[int, ...]
    registered_ns: int
    granted_ns: int
    opened_ns: int


@dataclass(frozen=True, slots=True)
class _DecodeSpan:
    """N and T of one run with what was open at its end."""

    tokens: int
    time_ns: int
    open_ns: int | None
    kept: bool


def measure_run(identity: RunIdentity, result: RequestResult) -> tuple[RunRecord, tuple[WindowRound, ...]]:
    """Return the sealed record of one run and its sealed rounds."""
    rounds = tuple(_window_round(identity, record) for record in result.rounds)
    cut = _tokens_after_stop(result.token_ids, identity.stop_token_ids)
    span = _decode_span(identity, result, cut)
    ttft_ns = None if result.first_token_ns is None else result.first_token_ns - result.admitted_ns
    disposition, reason = _disposition(identity, result)
    faults = Counter(record.reason for record in result.rounds if record.reason)
    record = RunRecord(
        run_id=identity.run_id,
        block=identity.block,
        source_id=identity.source_id,
        order_index=identity.order_index,
        request_digest=identity.request_digest,
        sample_index=identity.sample_index,
        seed=identity.seed,
        disposition=disposition,
        disposition_reason=reason,
        admitted_ns=result.admitted_ns - identity.opened_ns,
        finished_ns=result.finished_ns - identity.opened_ns,
        ttft_ns=ttft_ns,
        first_visible_ns=ttft_ns,
        delivered_tokens=len(result.token_ids) - cut,
        reasoning_tokens=0,
        decode_tokens=span.tokens,
        decode_time_ns=span.time_ns,
        complete_rounds=len(rounds),
        drafted=sum(record.drafted for record in result.rounds),
        accepted=sum(record.accepted for record in result.rounds),
        longest_round_ns=_longest_round_ns(result),
        open_round_ns=span.open_ns,
        open_round_kept=span.kept,
        tokens_after_stop=cut,
        rounds_off_depth=sum(record.drafted != identity.depth for record in result.rounds),
        rounds_with_wrong_q=sum(_wrong_q(record, identity.sampled_drafts) for record in result.rounds),
        faults=tuple(RoundFault(reason=name, rounds=count) for name, count in sorted(faults.items())),
        epochs_survived=result.epochs_survived,
        output_tokens_sha256=sha256_hex(canonical_json(list(result.token_ids))),
        rounds_sha256=rounds_digest(rounds),
    )
    return record, rounds


def run_without_result(identity: RunIdentity, disposition: Disposition, reason: str) -> RunRecord:
    """Return the record of a run that has no answer: not admitted, cut before its start, or lost."""
    return RunRecord(
        run_id=identity.run_id,
        block=identity.block,
        source_id=identity.source_id,
        order_index=identity.order_index,
        request_digest=identity.request_digest,
        sample_index=identity.sample_index,
        seed=identity.seed,
        disposition=disposition,
        disposition_reason=reason,
        admitted_ns=None,
        finished_ns=None,
        ttft_ns=None,
        first_visible_ns=None,
        delivered_tokens=0,
        reasoning_tokens=0,
        decode_tokens=0,
        decode_time_ns=0,
        complete_rounds=0,
        drafted=0,
        accepted=0,
        longest_round_ns=0,
        open_round_ns=None,
        open_round_kept=False,
        tokens_after_stop=0,
        rounds_off_depth=0,
        rounds_with_wrong_q=0,
        faults=(),
        epochs_survived=0,
        output_tokens_sha256=None,
        rounds_sha256=rounds_digest(()),
    )


def rounds_digest(rounds: Sequence[WindowRound]) -> str:
    """Return the sha-256 hex over the canonical lines of some rounds."""
    return sha256_hex(b"".join(canonical_bytes(line) + b"\n" for line in rounds))


def columns_of(rounds: Sequence[WindowRound]) -> RoundColumns:
    """Return the rounds of one run as int64 columns."""
    return RoundColumns(
        duration_ns=np.array([line.released_ns - line.started_ns for line in rounds], dtype=np.int64),
        emitted=np.array([line.emitted for line in rounds], dtype=np.int64),
        drafted=np.array([line.drafted for line in rounds], dtype=np.int64),
        accepted=np.array([line.accepted for line in rounds], dtype=np.int64),
    )


def _window_round(identity: RunIdentity, record: RoundRecord) -> WindowRound:
    """Return one round in the window's names and clock."""
    return WindowRound(
        run_id=identity.run_id,
        round_number=record.round_number,
        epoch=record.epoch,
        attempt=record.attempt,
        position=record.position,
        drafted=record.drafted,
        usable_depth=record.usable_depth,
        accepted=record.accepted,
        emitted=record.emitted,
        reason=record.reason,
        q_frames=record.q_frames,
        started_ns=record.started_ns - identity.opened_ns,
        released_ns=record.released_ns - identity.opened_ns,
        rank0=_rank_terms(record.rank0),
        rank1=_rank_terms(record.rank1),
    )


def _rank_terms(times: RankTimes) -> RankTerms:
    """Return the terms of one rank."""
    return RankTerms(
        draft_ns=times.draft_ns,
        selector_ns=times.selector_ns,
        exchange_ns=times.exchange_ns,
        validation_ns=times.validation_ns,
        target_ns=times.target_ns,
        agreement_ns=times.agreement_ns,
        total_ns=times.total_ns,
    )


def _wrong_q(record: RoundRecord, sampled_drafts: bool) -> bool:
    """Return whether a round carried q in arm A, or drafted without q in arm B."""
    if not sampled_drafts:
        return record.q_frames != 0
    return record.drafted > 0 and record.q_frames == 0


def _tokens_after_stop(token_ids: Sequence[int], stop_token_ids: tuple[int, ...]) -> int:
    """Return how many tokens stand behind the first stop token."""
    for index, token_id in enumerate(token_ids):
        if token_id in stop_token_ids:
            return len(token_ids) - index - 1
    return 0


def _longest_round_ns(result: RequestResult) -> int:
    """Return the longest complete round of a run, 0 without one."""
    return max((record.released_ns - record.started_ns for record in result.rounds), default=0)


def _decode_span(identity: RunIdentity, result: RequestResult, cut: int) -> _DecodeSpan:
    """Return N and T: what follows the first-token round, with the open round as the rule says."""
    if result.rounds:
        first_ns, last_ns = result.rounds[0].released_ns, result.rounds[-1].released_ns
        tokens = max(0, len(result.token_ids) - cut - result.rounds[0].emitted)
    else:
        first_ns = last_ns = result.admitted_ns
        tokens = 0
    open_ns = _open_ns(identity, result, last_ns)
    if open_ns is None:
        return _DecodeSpan(tokens, last_ns - first_ns, None, False)
    # A failed run keeps its clock running until the failure was declared; a cut one loses only an ordinary open round.
    kept = result.status is RequestStatus.FAILED or open_ns > _longest_round_ns(result)
    return _DecodeSpan(tokens, last_ns - first_ns + (open_ns if kept else 0), open_ns, kept)


def _open_ns(identity: RunIdentity, result: RequestResult, last_ns: int) -> int | None:
    """Return the time between the last release and the end of the run, None when the run ended by itself.

    A deadline ends the clock at the deadline, even if the answer came later; time between two rounds counts too, so a
    bed that names no open round cannot hide a stall.
    """
    if result.status in (RequestStatus.EOS, RequestStatus.BUDGET):
        return None
    end_ns = result.finished_ns
    if result.status is RequestStatus.DEADLINE:
        end_ns = min(end_ns, result.admitted_ns + identity.granted_ns)
    return max(0, end_ns - last_ns, result.open_round_age_ns or 0)


def _disposition(identity: RunIdentity, result: RequestResult) -> tuple[Disposition, str]:
    """Return the disposition of an answered run with its reason."""
    was_cut = identity.granted_ns < identity.registered_ns
    match result.status:
        case RequestStatus.EOS:
            return Disposition.EOS, ""
        case RequestStatus.BUDGET:
            return Disposition.BUDGET, ""
        case RequestStatus.DEADLINE if was_cut:
            return Disposition.CANCELED_PLAN, "cut by a wall before its registered time budget"
        case RequestStatus.DEADLINE:
            return Disposition.CENSORED_DEADLINE, ""
        case RequestStatus.CANCELED:
            return Disposition.CANCELED_CLIENT, result.failure
        case RequestStatus.FAILED:
            return _failure_disposition(result.failure), result.failure or "no reason given"


def _failure_disposition(failure: str) -> Disposition:
    """Return the disposition of a failed run from the reason its engine gave."""
    lowered = failure.lower()
    if "watchdog" in lowered:
        return Disposition.WATCHDOG
    if any(word in lowered for word in ("transport", "link", "connection", "socket")):
        return Disposition.TRANSPORT_FAILED
    return Disposition.ENGINE_FAILED
