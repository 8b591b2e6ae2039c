"""The ten reasons that reject arm B, each with the sealed records that raise it.

Evaluated first and on whatever data exist: a lost request in the first block rejects a truncated window.
Must never need a complete window. Source: plan, rule REJECT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ranks.verdict import DepthReason
from window.dispositions import DispositionEffect, RejectReason
from window.identity_check import prime_mismatches
from window.records import RunRecord, WindowRecords
from window.registration import Registration
from window.rule_result import RuleOutcome, RuleResult, operand

__all__ = ["CORRUPTION_REASONS", "reject_rules"]

# Bytes that changed or belong elsewhere; every other lost draft speaks against the draft law itself.
CORRUPTION_REASONS = frozenset(
    {
        DepthReason.FRAME_DAMAGED,
        DepthReason.WRONG_BINDING,
        DepthReason.WRONG_KIND,
        DepthReason.CONTENT_REFUSED,
        DepthReason.DIGEST_CHANGED,
    }
)
TARGET_ROW = "target row"
PROOF_OF_WRONG_Q = "q_x_mismatch"

Witnesses = Iterator[str]


def reject_rules(registration: Registration, records: WindowRecords) -> tuple[RuleResult, ...]:
    """Return one rule a reason, in the registered closed list's order."""
    return tuple(_rule(reason, registration, records) for reason in RejectReason)


def _rule(reason: RejectReason, registration: Registration, records: WindowRecords) -> RuleResult:
    """Return one evaluated reason."""
    feeds = registration.rules.records_of(reason)
    witnesses = list(_FINDERS[reason](registration, records)) if feeds else []
    outcome, text = RuleOutcome.PASS, ""
    if not feeds:
        outcome, text = RuleOutcome.NOT_REGISTERED, "no registered record of this window can show it"
    elif witnesses:
        more = f" and {len(witnesses) - 1} more" if len(witnesses) > 1 else ""
        outcome, text = RuleOutcome.FIRED, witnesses[0] + more
    elif not _exercised(feeds, records):
        outcome, text = RuleOutcome.UNKNOWN, "the records that would show it do not exist"
    return RuleResult(
        rule=f"reject/{reason}",
        group="reject",
        operands=(operand("failures", len(witnesses)),),
        threshold="0",
        outcome=outcome,
        reason=text,
        records=feeds,
    )


def _exercised(feeds: tuple[str, ...], records: WindowRecords) -> bool:
    """Return whether every kind of record that feeds a reason exists at all."""
    present = {
        "runs": any(run.admitted_ns is not None for run in records.runs),
        "blocks": bool(records.blocks),
        "smoke": records.smoke is not None and bool(records.smoke.results),
        "restore": records.restore is not None,
    }
    return all(present[feed] for feed in feeds)


def _round_faults(records: WindowRecords, wanted: Callable[[str], bool]) -> Witnesses:
    """Yield the runs whose measured rounds lost drafts for a reason of one kind."""
    for run in records.runs:
        for fault in run.faults:
            if wanted(fault.reason):
                yield f"{run.run_id}: {fault.reason} in {fault.rounds} of {run.complete_rounds} measured rounds"


def _q_law(_: Registration, records: WindowRecords) -> Witnesses:
    """A measured round that lost drafts, or proof that x was not drawn from q."""
    yield from _round_faults(records, lambda reason: reason not in CORRUPTION_REASONS)
    yield from _failed(records, PROOF_OF_WRONG_Q)


def _corruption(_: Registration, records: WindowRecords) -> Witnesses:
    """A measured round whose bytes changed or belonged elsewhere."""
    yield from _round_faults(records, lambda reason: reason in CORRUPTION_REASONS)


def _failed(records: WindowRecords, word: str) -> Witnesses:
    """Yield the runs whose reason holds one word of the engine's own list."""
    for run in records.runs:
        if word in run.disposition_reason:
            yield f"{run.run_id}: {run.disposition_reason}"


def _target_law(_: Registration, records: WindowRecords) -> Witnesses:
    """A target row that was no law."""
    yield from _failed(records, TARGET_ROW)


def _smoke(part: str, records: WindowRecords) -> Witnesses:
    """Yield the cases of one smoke part that differ."""
    for result in records.smoke.results if records.smoke else ():
        if result.part == part and result.outcome == "MISMATCH":
            yield f"smoke {result.case}: first difference at token {result.first_difference}"


def _greedy_identity(_: Registration, records: WindowRecords) -> Witnesses:
    """Arms that differ at temperature 0, or failure rounds that change greedy tokens."""
    yield from _smoke("greedy", records)
    yield from _smoke("failure", records)


def _grammar(_: Registration, records: WindowRecords) -> Witnesses:
    """Structured outputs that differ."""
    yield from _smoke("structured", records)


def _stop(_: Registration, records: WindowRecords) -> Witnesses:
    """Tokens delivered behind a stop."""
    for run in records.runs:
        if run.tokens_after_stop:
            yield f"{run.run_id}: {run.tokens_after_stop} tokens behind the stop"


def _with_effect(registration: Registration, records: WindowRecords, effect: DispositionEffect) -> Iterator[RunRecord]:
    """Yield the runs whose disposition has one registered effect."""
    for run in records.runs:
        if registration.rules.effect_of(run.disposition) is effect:
            yield run


def _lifecycle(registration: Registration, records: WindowRecords) -> Witnesses:
    """Runs and sessions that ended in a way no plan foresees."""
    for run in _with_effect(registration, records, DispositionEffect.REJECT_LIFECYCLE):
        yield f"{run.run_id} {run.disposition}: {run.disposition_reason}"
    for receipt in records.blocks:
        if receipt.outcome == "FAILED":
            yield f"block {receipt.block} failed: {receipt.failure}"
        if receipt.survivors:
            yield f"block {receipt.block}: {len(receipt.survivors)} processes outlived their stop"


def _recovery(_: Registration, records: WindowRecords) -> Witnesses:
    """An engine failure inside a measured run, or a start state that did not come back."""
    for run in records.runs:
        if run.epochs_survived:
            yield f"{run.run_id}: {run.epochs_survived} epochs ended during the run"
    if records.restore is not None and records.restore.outcome != "RESTORED":
        yield f"restore: {records.restore.reason}"


def _lost_request(registration: Registration, records: WindowRecords) -> Witnesses:
    """Requests that were sent and never accounted for."""
    for run in _with_effect(registration, records, DispositionEffect.REJECT_LOST_REQUEST):
        yield f"{run.run_id} {run.disposition}: {run.disposition_reason}"


def _mismatch(_: Registration, records: WindowRecords) -> Witnesses:
    """Identity, switches, weights, target policy, depth or occupied tokens that are not the registered ones."""
    for receipt in records.blocks:
        for mismatch in receipt.mismatches:
            yield f"block {receipt.block}: {mismatch}"
        for prime in receipt.primes:
            for mismatch in prime_mismatches(prime):
                yield f"block {receipt.block}: {mismatch}"
    for run in records.runs:
        if run.rounds_off_depth:
            yield f"{run.run_id}: {run.rounds_off_depth} rounds did not draft the fixed depth"
        if run.rounds_with_wrong_q:
            yield f"{run.run_id}: {run.rounds_with_wrong_q} rounds with q frames of the other arm"


_FINDERS: dict[RejectReason, Callable[[Registration, WindowRecords], Witnesses]] = {
    RejectReason.Q_LAW: _q_law,
    RejectReason.TARGET_LAW: _target_law,
    RejectReason.GREEDY_IDENTITY: _greedy_identity,
    RejectReason.GRAMMAR: _grammar,
    RejectReason.STOP: _stop,
    RejectReason.LIFECYCLE: _lifecycle,
    RejectReason.CORRUPTION: _corruption,
    RejectReason.RECOVERY: _recovery,
    RejectReason.LOST_REQUEST: _lost_request,
    RejectReason.POLICY_OR_WEIGHT_MISMATCH: _mismatch,
}
