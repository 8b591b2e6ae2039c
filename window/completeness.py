"""Is everything there that was registered, and does it agree with itself?

Completeness is judged against the registered set, never against what happened to arrive. Must never turn
a missing record into a pass. Source: plan, "NO PROMOTION / INCONCLUSIVE if incomplete".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from window.dispositions import DispositionEffect
from window.records import Finding, WindowRecords
from window.registration import Registration
from window.rule_result import RuleOutcome, RuleResult, operand

__all__ = ["completeness_rules", "evidence_findings", "evidence_rule"]


def completeness_rules(registration: Registration, records: WindowRecords) -> tuple[RuleResult, ...]:
    """Return the rules on runs, blocks, smoke, restore and rates of delivered tokens."""
    return (
        _runs_rule(registration, records),
        _blocks_rule(registration, records),
        _smoke_rule(registration, records),
        _restore_rule(records),
    )


def _runs_rule(registration: Registration, records: WindowRecords) -> RuleResult:
    """Every registered run has exactly one record with a complete disposition."""
    registered = registration.run_ids()
    counted = Counter(run.run_id for run in records.runs)
    missing = [name for name in registered if counted[name] == 0]
    partial = [
        f"{run.run_id} {run.disposition}"
        for run in records.runs
        if registration.rules.effect_of(run.disposition) is not DispositionEffect.COMPLETE
    ]
    complete = len(registered) - len(missing) - len(partial)
    reason = ""
    if missing:
        reason = f"no record for {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    elif partial:
        reason = partial[0] + (f" and {len(partial) - 1} more" if len(partial) > 1 else "")
    return RuleResult(
        rule="complete/runs",
        group="completeness",
        operands=(
            operand("runs with a disposition", f"{len(set(counted) & set(registered))}/{len(registered)}"),
            operand("complete runs", f"{max(complete, 0)}/{len(registered)}"),
        ),
        threshold=f"{len(registered)} of {len(registered)}",
        outcome=RuleOutcome.PASS if not reason else RuleOutcome.UNKNOWN,
        reason=reason,
        records=("runs",),
    )


def _blocks_rule(registration: Registration, records: WindowRecords) -> RuleResult:
    """Every block has a receipt, complete, with exact primes."""
    receipts = {receipt.block: receipt for receipt in records.blocks}
    reason = ""
    for block in registration.blocks:
        receipt = receipts.get(block)
        if receipt is None:
            reason = f"block {block} has no receipt"
        elif receipt.outcome != "COMPLETE":
            reason = f"block {block} is {receipt.outcome}: {receipt.failure or 'no reason given'}"
        elif {prime.source_id for prime in receipt.primes} != set(registration.order):
            reason = f"block {block} did not prime every source"
        elif receipt.warm_up is None:
            reason = f"block {block} has no warm-up"
        if reason:
            break
    complete = sum(receipt.outcome == "COMPLETE" for receipt in receipts.values())
    return RuleResult(
        rule="complete/blocks",
        group="completeness",
        operands=(operand("complete blocks", f"{complete}/{len(registration.blocks)}"),),
        threshold=f"{len(registration.blocks)} of {len(registration.blocks)}",
        outcome=RuleOutcome.PASS if not reason else RuleOutcome.UNKNOWN,
        reason=reason,
        records=("blocks",),
    )


def _smoke_rule(registration: Registration, records: WindowRecords) -> RuleResult:
    """Every registered part of the smoke ended with a comparison."""
    done = (
        {result.part for result in records.smoke.results if result.outcome != "INCOMPLETE"} if records.smoke else set()
    )
    cut = (
        {result.part for result in records.smoke.results if result.outcome == "INCOMPLETE"} if records.smoke else set()
    )
    missing = [part for part in registration.smoke.parts if part not in done or part in cut]
    return RuleResult(
        rule="complete/smoke",
        group="completeness",
        operands=(operand("parts compared", f"{len(registration.smoke.parts) - len(missing)}"),),
        threshold=f"{len(registration.smoke.parts)} of {len(registration.smoke.parts)}",
        outcome=RuleOutcome.UNKNOWN if missing else RuleOutcome.PASS,
        reason=f"smoke part {missing[0]} was not compared to its end" if missing else "",
        records=("smoke",),
    )


def _restore_rule(records: WindowRecords) -> RuleResult:
    """The start state was observed again."""
    restored = records.restore is not None and records.restore.outcome == "RESTORED"
    reason = "" if restored else "there is no receipt of a restore that was observed"
    return RuleResult(
        rule="complete/restore",
        group="completeness",
        operands=(operand("restore", records.restore.outcome if records.restore else "no receipt"),),
        threshold="RESTORED",
        outcome=RuleOutcome.PASS if restored else RuleOutcome.UNKNOWN,
        reason=reason,
        records=("restore",),
    )


def evidence_findings(registration: Registration, records: WindowRecords) -> tuple[Finding, ...]:
    """Return every contradiction between the sealed records and the registration."""
    return records.findings + tuple(_run_findings(registration, records))


def _run_findings(registration: Registration, records: WindowRecords) -> Iterator[Finding]:
    """Yield what a run record gets wrong: identity, order, repeats, or sums that its rounds do not give."""
    seen: set[str] = set()
    registered = set(registration.run_ids())
    for run in records.runs:
        if run.run_id not in registered:
            yield Finding(where=run.run_id, what="this run is not registered")
            continue
        if run.run_id in seen:
            yield Finding(where=run.run_id, what="this run has two records")
        seen.add(run.run_id)
        source = registration.source(run.source_id)
        wanted = (f"{run.block}/{run.source_id}", source.request_digest, source.sample_index, source.seed)
        if (run.run_id, run.request_digest, run.sample_index, run.seed) != wanted:
            yield Finding(where=run.run_id, what="request, sample or seed are not the registered ones")
        if registration.order[run.order_index % len(registration.order)] != run.source_id:
            yield Finding(where=run.run_id, what="the run stands at another place than the registered order")
        columns = records.rounds.get(run.run_id)
        length = 0 if columns is None else len(columns.duration_ns)
        if length != run.complete_rounds:
            yield Finding(where=run.run_id, what=f"{length} sealed rounds but {run.complete_rounds} in the record")
        elif columns is not None and int(columns.emitted.sum()) != run.delivered_tokens + run.tokens_after_stop:
            yield Finding(where=run.run_id, what="tokens of the rounds differ from the tokens received")


def evidence_rule(findings: tuple[Finding, ...]) -> RuleResult:
    """Return the rule that sealed records contradict neither each other nor the registration."""
    first = f"{findings[0].where}: {findings[0].what}" if findings else ""
    return RuleResult(
        rule="evidence",
        group="completeness",
        operands=(operand("contradictions", len(findings)),),
        threshold="0",
        outcome=RuleOutcome.FIRED if findings else RuleOutcome.PASS,
        reason=first,
        records=("runs", "blocks", "smoke", "restore"),
    )
