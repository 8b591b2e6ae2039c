"""Did both sessions of one arm agree?

Two sessions of the same arm that differ by more than the registered ratio make the window inconclusive:
what changed in between would also sit in the contrast of the arms. Source: registration, DriftRule.
"""

from __future__ import annotations

from fractions import Fraction

from window.arms import ArmName
from window.exact_numbers import decimal_text, geometric_gain_text
from window.rates import block_ratio_product
from window.records import WindowRecords
from window.registration import Registration
from window.rule_result import RuleOutcome, RuleResult, operand

__all__ = ["drift_rules"]


def drift_rules(registration: Registration, records: WindowRecords) -> tuple[RuleResult, ...]:
    """Return one rule an arm."""
    return (_rule(registration, records, "A"), _rule(registration, records, "B"))


def _rule(registration: Registration, records: WindowRecords, arm: ArmName) -> RuleResult:
    """Return whether the later session of an arm is within the registered ratio of the earlier one, either way."""
    earlier, later = registration.blocks_of(arm)
    whole = block_ratio_product(registration, records, later, earlier)
    count = len(registration.sources)
    largest = Fraction(registration.rules.drift.maximum_ratio)
    outcome, reason, text = RuleOutcome.UNKNOWN, f"{earlier} or {later} has a source without a rate", "unknown"
    if whole is not None:
        apart = max(whole, 1 / whole) > largest**count
        outcome = RuleOutcome.FIRED if apart else RuleOutcome.PASS
        reason = f"{earlier} and {later} are too far apart" if apart else ""
        text = geometric_gain_text(whole, count)
    return RuleResult(
        rule=f"drift/{arm}",
        group="drift",
        operands=(operand(f"{later} against {earlier}", text),),
        threshold=f"within a factor of {decimal_text(largest, 2)}",
        outcome=outcome,
        reason=reason,
        records=("runs",),
    )
