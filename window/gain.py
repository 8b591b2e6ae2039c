"""The throughput gain and its two lower bounds, decided by products of rationals.

"Gain at least 5 %" is: the product of the six rate ratios is at least (21/20)^6. Must never compare
rounded numbers. Source: plan, "throughput gain<5%", "lower bound<=0"; registration, GainRule, BootstrapRule.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from window.bootstrap import BootstrapBound, enumerated_counts, lower_bound, sampled_counts
from window.exact_numbers import decimal_text, geometric_gain_text, percent_text, product
from window.index_matrix import matrix_digest
from window.rates import decode_totals, pooled, runs_of, source_ratios
from window.records import WindowRecords
from window.registration import Registration
from window.rule_result import RuleOutcome, RuleResult, operand

__all__ = ["Bounds", "IndexMatrices", "bound_rules", "bounds_of", "gain_rules", "ratio_of_sums"]


@dataclass(frozen=True, slots=True)
class IndexMatrices:
    """The stored resampling indices: int64 of shape (resamples, families) and (resamples, sources)."""

    families: NDArray[np.int64]
    sources: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sampled and enumerated lower bounds of both bootstraps."""

    families: BootstrapBound
    sources: BootstrapBound
    families_exact: BootstrapBound
    sources_exact: BootstrapBound

    @property
    def decision(self) -> BootstrapBound:
        """Return the smaller of both sampled bounds; both are products of as many ratios."""
        return min(self.families, self.sources, key=lambda bound: bound.ratio_product)


def _all_ratios(registration: Registration, records: WindowRecords) -> list[Fraction] | None:
    """Return the rate ratios in grid order, None when one is missing."""
    ratios = list(source_ratios(registration, records).values())
    known = [ratio for ratio in ratios if ratio is not None]
    return known if len(known) == len(ratios) else None


def ratio_of_sums(registration: Registration, records: WindowRecords) -> Fraction | None:
    """Return (all tokens of B / all time of B) / (the same of A), None when it does not exist."""
    sums = {}
    for arm in ("A", "B"):
        totals = decode_totals(registration, records, arm).values()
        sums[arm] = (sum(total.tokens for total in totals), sum(total.time_ns for total in totals))
    (tokens_a, time_a), (tokens_b, time_b) = sums["A"], sums["B"]
    if min(tokens_a, time_a, tokens_b, time_b) <= 0:
        return None
    return Fraction(tokens_b * time_a, time_b * tokens_a)


def gain_rules(registration: Registration, records: WindowRecords) -> tuple[RuleResult, ...]:
    """Return the point gain, its agreement with the ratio of sums, and any registered cell throughput guard."""
    ratios = _all_ratios(registration, records)
    least = 1 + Fraction(registration.rules.gain.minimum_gain)
    threshold = f"at least {percent_text(least)}"
    cells = tuple(_cell_rule(registration, records, source_id) for source_id in registration.source_grid())
    if ratios is None:
        missing = "a source has no rate in one arm"
        return (
            _unknown("gain/point", "gain", threshold, missing),
            _unknown("gain/ratio_of_sums", "gain", "same side of the threshold", missing),
            *cells,
        )
    whole = product(ratios)
    passes = whole >= least ** len(ratios)
    sums = ratio_of_sums(registration, records)
    assert sums is not None
    point = RuleResult(
        rule="gain/point",
        group="gain",
        operands=(operand("gain", geometric_gain_text(whole, len(ratios))),),
        threshold=threshold,
        outcome=RuleOutcome.PASS if passes else RuleOutcome.FIRED,
        reason="" if passes else "the measured gain is below the registered one",
        records=("runs",),
    )
    same_side = (sums >= least) == passes
    straddle = RuleResult(
        rule="gain/ratio_of_sums",
        group="gain",
        operands=(
            operand("gain by sums", percent_text(sums)),
            operand("gain", geometric_gain_text(whole, len(ratios))),
        ),
        threshold="same side of the threshold",
        outcome=RuleOutcome.PASS if same_side else RuleOutcome.FIRED,
        reason="" if same_side else "the ratio of sums and the equal-weight gain stand on different sides",
        records=("runs",),
    )
    return (point, straddle, *cells)


def _cell_rule(registration: Registration, records: WindowRecords, source_id: str) -> RuleResult:
    """Return the throughput of one cell with its sign, in all and per session contrast."""
    ratio = source_ratios(registration, records)[source_id]
    per_block = [
        operand(f"{later}/{earlier}", _ratio_text(registration, records, source_id, later, earlier))
        for later, earlier in zip(registration.blocks_of("B"), registration.blocks_of("A"), strict=True)
    ]
    least = registration.rules.cell_throughput.minimum_ratio
    outcome, reason = RuleOutcome.NOT_REGISTERED, ""
    if least is not None and ratio is None:
        outcome, reason = RuleOutcome.UNKNOWN, "this cell has no rate in one arm"
    elif least is not None and ratio is not None:
        outcome = RuleOutcome.PASS if ratio >= Fraction(least) else RuleOutcome.FIRED
        reason = "" if outcome is RuleOutcome.PASS else "the cell lost more throughput than registered"
    return RuleResult(
        rule=f"gain/cell/{source_id}",
        group="gain",
        operands=(operand("throughput", "unknown" if ratio is None else percent_text(ratio)), *per_block),
        threshold="printed only" if least is None else f"ratio at least {least}",
        outcome=outcome,
        reason=reason,
        records=("runs",),
    )


def _ratio_text(registration: Registration, records: WindowRecords, source_id: str, later: str, earlier: str) -> str:
    """Return the signed throughput change of one cell between two sessions."""
    by_name = {block: pooled(runs_of(records, (block,), source_id)) for block in registration.blocks}
    numbers = {str(block): measured for block, measured in by_name.items()}
    first, second = numbers[earlier], numbers[later]
    if not (first.usable and second.usable):
        return "unknown"
    return percent_text(second.tokens_per_second / first.tokens_per_second)


def bounds_of(registration: Registration, records: WindowRecords, matrices: IndexMatrices) -> Bounds | None:
    """Return all four bounds, None when a rate is missing. Raises ValueError on indices that are not frozen."""
    rule = registration.rules.bootstrap
    if (matrix_digest(matrices.families), matrix_digest(matrices.sources)) != (
        rule.families_index_sha256,
        rule.sources_index_sha256,
    ):
        raise ValueError("the index matrices are not the registered ones")
    ratios = _all_ratios(registration, records)
    if ratios is None:
        return None
    contexts = len(registration.contexts())
    families = [product(ratios[start : start + contexts]) for start in range(0, len(ratios), contexts)]
    level = Fraction(rule.lower_percentile)
    return Bounds(
        families=lower_bound(families, contexts, sampled_counts(matrices.families), level),
        sources=lower_bound(ratios, 1, sampled_counts(matrices.sources), level),
        families_exact=lower_bound(families, contexts, enumerated_counts(len(families)), level),
        sources_exact=lower_bound(ratios, 1, enumerated_counts(len(ratios)), level),
    )


def bound_rules(bounds: Bounds | None) -> tuple[RuleResult, ...]:
    """Return the decision bound and the agreement of sampled and enumerated bounds."""
    names = ("bound/lower", "bound/sampled_and_exact")
    if bounds is None:
        return tuple(_unknown(name, "bound", "above 0 %", "a source has no rate in one arm") for name in names)
    return (_decision_rule(bounds), _agreement_rule(bounds))


def _decision_rule(bounds: Bounds) -> RuleResult:
    """Return the rule that the smaller of both bounds is above 0."""
    decision = bounds.decision
    notes = [name for name, bound in (("families", bounds.families), ("sources", bounds.sources)) if bound.degenerate]
    reason = "" if decision.above_zero else "the smaller lower bound is not above 0"
    if notes and not reason:
        reason = f"degenerate: every resample of {' and '.join(notes)} gave one value, which is no certainty"
    return RuleResult(
        rule="bound/lower",
        group="bound",
        operands=(
            operand("by families", _bound_text(bounds.families)),
            operand("by sources", _bound_text(bounds.sources)),
            operand("share on the family bound", decimal_text(bounds.families.share_of_bound, 3)),
        ),
        threshold="the smaller one above 0 %",
        outcome=RuleOutcome.PASS if decision.above_zero else RuleOutcome.FIRED,
        reason=reason,
        records=("runs",),
    )


def _agreement_rule(bounds: Bounds) -> RuleResult:
    """Return the rule that sampled and enumerated bounds stand on the same side of 0."""
    same = (
        bounds.families.above_zero == bounds.families_exact.above_zero
        and bounds.sources.above_zero == bounds.sources_exact.above_zero
    )
    return RuleResult(
        rule="bound/sampled_and_exact",
        group="bound",
        operands=(
            operand("families, all outcomes", _bound_text(bounds.families_exact)),
            operand("sources, all outcomes", _bound_text(bounds.sources_exact)),
        ),
        threshold="same side of 0 as the sampled ones",
        outcome=RuleOutcome.PASS if same else RuleOutcome.FIRED,
        reason="" if same else "monte_carlo_disagreement: sampled and enumerated bounds stand on different sides of 0",
        records=("runs",),
    )


def _bound_text(bound: BootstrapBound) -> str:
    """Return a bound as a gain in percent."""
    return geometric_gain_text(bound.ratio_product, bound.factors)


def _unknown(rule: str, group: str, threshold: str, reason: str) -> RuleResult:
    """Return a rule that cannot be evaluated."""
    return RuleResult(
        rule=rule,
        group=group,
        operands=(),
        threshold=threshold,
        outcome=RuleOutcome.UNKNOWN,
        reason=reason,
        records=("runs",),
    )
