"""The verdict: a pure function of the registration, the sealed records and the stored index matrices.

REJECT is judged first and on partial data; then completeness, gain, bound, guards and drift. CANDIDATE only
when every registered rule is shown to hold. Anyone can recompute it from the bundle. Must never read a
clock, or let a diagnostic override delivered throughput. Source: plan, "frozen decision"; DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from window.canonical import Digest, SealedModel
from window.completeness import completeness_rules, evidence_findings, evidence_rule
from window.drift import drift_rules
from window.exit_codes import ExitCode
from window.gain import IndexMatrices, bound_rules, bounds_of, gain_rules
from window.guards import guard_rules
from window.limits_text import DESIGN_TEXT, kind_stamp, limits_text
from window.records import Finding, WindowRecords
from window.registration import Registration, RegistrationKind
from window.rejects import reject_rules
from window.rule_result import RuleOutcome, RuleResult

__all__ = ["Decision", "Verdict", "decide", "exit_code_of"]


class Verdict(StrEnum):
    """The four outcomes."""

    CANDIDATE = "CANDIDATE"
    INCONCLUSIVE = "INCONCLUSIVE"
    REJECT = "REJECT"
    NO_GO = "NO_GO"


class Decision(SealedModel):
    """A verdict with everything that led to it."""

    format: Literal["specbed-decision-1"]
    window_id: Digest
    kind: RegistrationKind
    verdict: Verdict
    promotable: bool
    stamp: str
    headline: str
    design: str
    limits: str
    evidence_failed: bool
    restored: bool
    findings: tuple[Finding, ...]
    rules: tuple[RuleResult, ...]

    def rule(self, name: str) -> RuleResult:
        """Return one evaluated rule. Raises KeyError for a name that is no rule."""
        for result in self.rules:
            if result.rule == name:
                return result
        raise KeyError(name)


def decide(registration: Registration, records: WindowRecords, matrices: IndexMatrices) -> Decision:
    """Return the one decision of a window. Raises ValueError when `matrices` are not the registered ones."""
    bounds = bounds_of(registration, records, matrices)
    findings = evidence_findings(registration, records)
    groups = {
        "reject": reject_rules(registration, records),
        "completeness": (*completeness_rules(registration, records), evidence_rule(findings)),
        "gain": gain_rules(registration, records),
        "bound": bound_rules(bounds),
        "guards": guard_rules(registration, records),
        "drift": drift_rules(registration, records),
    }
    rules = tuple(result for group in registration.rules.order for result in groups[group])
    verdict = _verdict(records, rules)
    return Decision(
        format="specbed-decision-1",
        window_id=registration.window_id(),
        kind=registration.kind,
        verdict=verdict,
        promotable=verdict is Verdict.CANDIDATE and registration.kind is RegistrationKind.PLAN,
        stamp=kind_stamp(registration.kind),
        headline=_headline(verdict, records, rules),
        design=DESIGN_TEXT,
        limits=limits_text(registration, records, bounds),
        evidence_failed=bool(findings),
        restored=records.restore is not None and records.restore.outcome == "RESTORED",
        findings=findings,
        rules=rules,
    )


def _verdict(records: WindowRecords, rules: Sequence[RuleResult]) -> Verdict:
    """Return the verdict in the registered order."""
    if not records.opened:
        return Verdict.NO_GO
    if any(rule.group == "reject" and rule.outcome is RuleOutcome.FIRED for rule in rules):
        return Verdict.REJECT
    if any(rule.outcome in (RuleOutcome.FIRED, RuleOutcome.UNKNOWN) for rule in rules):
        return Verdict.INCONCLUSIVE
    return Verdict.CANDIDATE


def _headline(verdict: Verdict, records: WindowRecords, rules: Sequence[RuleResult]) -> str:
    """Return one sentence for the first line of every view."""
    if verdict is Verdict.NO_GO:
        return f"The window was not opened: {records.stop_reason or 'no reason recorded'}."
    if verdict is Verdict.CANDIDATE:
        return "Every registered rule holds. Approval and promotion are separate decisions of the coordinator."
    fired = [rule for rule in rules if rule.outcome is RuleOutcome.FIRED]
    if verdict is Verdict.REJECT:
        fired = [rule for rule in fired if rule.group == "reject"]
        return f"Arm B is rejected by {_named(fired)}: {fired[0].reason}."
    unknown = [rule for rule in rules if rule.outcome is RuleOutcome.UNKNOWN]
    first = (fired + unknown)[0]
    parts = []
    if fired:
        parts.append(f"{len(fired)} {'rule' if len(fired) == 1 else 'rules'} did not hold ({_named(fired)})")
    if unknown:
        parts.append(f"{len(unknown)} could not be judged ({_named(unknown)})")
    early = f"The experiment was ended early ({records.stop_reason}). " if records.stop_reason else ""
    return f"{early}No promotion: {' and '.join(parts)}. First: {first.reason}."


def _named(rules: Sequence[RuleResult]) -> str:
    """Return up to three rule names."""
    names = [rule.rule for rule in rules]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def exit_code_of(decision: Decision, opened: bool) -> ExitCode:
    """Return the exit code: an unrestored pair speaks first, then REJECT, then broken evidence, then the verdict."""
    if opened and not decision.restored:
        return ExitCode.RESTORE_ESCALATED
    if decision.evidence_failed and decision.verdict is not Verdict.REJECT:
        return ExitCode.EVIDENCE_FAILED
    return {
        Verdict.CANDIDATE: ExitCode.CANDIDATE,
        Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        Verdict.REJECT: ExitCode.REJECT,
        Verdict.NO_GO: ExitCode.NO_GO,
    }[decision.verdict]
