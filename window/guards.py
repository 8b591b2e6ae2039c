"""Guards in every cell: time to the first token and the slow end of round times; and the cold start.

A guard passes only when it is shown to hold: too few rounds or a missing time is UNKNOWN. Round times of
a stall that was still open enter as at least their age. Must never drop a slow round.
Source: plan, ">5% TTFT/p95-round regression in any context/family"; registration, TtftRule, RoundTimeRule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from window.arms import ArmName, BlockName
from window.exact_numbers import decimal_text, milliseconds_text, quantile_rank
from window.rates import runs_of
from window.records import WindowRecords
from window.registration import Registration
from window.rule_result import Operand, RuleOutcome, RuleResult, operand

__all__ = ["CellRounds", "cell_rounds", "guard_rules"]


@dataclass(frozen=True, slots=True)
class CellRounds:
    """Round times of one arm in one cell: complete ones in ns, and the ages of stalls open at a cut."""

    complete_ns: tuple[int, ...]
    censored_ns: tuple[int, ...]

    @property
    def count(self) -> int:
        """Return how many complete rounds there are; open ones never help to reach the minimum."""
        return len(self.complete_ns)

    def least(self, level: Fraction) -> int:
        """Return the order statistic with every open round at its age, so the true one is at least this."""
        values = sorted(self.complete_ns + self.censored_ns)
        return values[quantile_rank(len(values), level) - 1]

    def most(self, level: Fraction) -> int | None:
        """Return the order statistic with every open round slower than all others, None when it falls on one."""
        rank = quantile_rank(len(self.complete_ns) + len(self.censored_ns), level)
        return sorted(self.complete_ns)[rank - 1] if rank <= len(self.complete_ns) else None


def guard_rules(registration: Registration, records: WindowRecords) -> tuple[RuleResult, ...]:
    """Return the TTFT and round-time guards of every cell, then the cold start."""
    cells = registration.source_grid()
    return (
        *(_ttft_rule(registration, records, source_id) for source_id in cells),
        *(_round_rule(registration, records, source_id) for source_id in cells),
        _cold_rule(registration, records),
    )


def cell_rounds(records: WindowRecords, blocks: Sequence[BlockName], source_id: str) -> CellRounds:
    """Return all round times of one source in some blocks."""
    complete: list[int] = []
    censored: list[int] = []
    for run in runs_of(records, blocks, source_id):
        columns = records.rounds.get(run.run_id)
        if columns is not None:
            complete.extend(int(value) for value in columns.duration_ns)
        if run.open_round_kept and run.open_round_ns is not None:
            censored.append(run.open_round_ns)
    return CellRounds(tuple(complete), tuple(censored))


def _ttfts(records: WindowRecords, blocks: Sequence[BlockName], source_id: str) -> list[int] | None:
    """Return one TTFT a block, None when one is missing."""
    values = [run.ttft_ns for run in runs_of(records, blocks, source_id)]
    known = [value for value in values if value is not None]
    return known if len(known) == len(blocks) else None


def _ttft_rule(registration: Registration, records: WindowRecords, source_id: str) -> RuleResult:
    """Return the guard on the ratio of mean TTFTs in one cell."""
    largest = Fraction(registration.rules.ttft.maximum_ratio)
    times = {arm: _ttfts(records, registration.blocks_of(arm), source_id) for arm in _ARMS}
    arm_a, arm_b = times["A"], times["B"]
    ratio = None
    if arm_a and arm_b and sum(arm_a) > 0:
        ratio = Fraction(sum(arm_b) * len(arm_a), sum(arm_a) * len(arm_b))
    shown = [operand(f"{block} ms", _run_ttft_text(records, block, source_id)) for block in registration.blocks]
    return _ratio_rule(f"guard/ttft/{source_id}", ratio, largest, shown, "a run has no first token", ("runs",))


def _run_ttft_text(records: WindowRecords, block: BlockName, source_id: str) -> str:
    """Return the TTFT of one run in milliseconds."""
    runs = runs_of(records, (block,), source_id)
    return milliseconds_text(runs[0].ttft_ns) if runs and runs[0].ttft_ns is not None else "none"


def _ratio_rule(
    rule: str,
    ratio: Fraction | None,
    largest: Fraction,
    shown: Sequence[Operand],
    missing: str,
    fed_from: tuple[str, ...],
) -> RuleResult:
    """Return a guard that passes exactly when a known ratio is at most the registered one."""
    outcome = RuleOutcome.UNKNOWN
    if ratio is not None:
        outcome = RuleOutcome.FIRED if ratio > largest else RuleOutcome.PASS
    reasons = {
        RuleOutcome.UNKNOWN: missing,
        RuleOutcome.FIRED: "arm B is slower than the registered ratio allows",
        RuleOutcome.PASS: "",
    }
    text = "unknown" if ratio is None else decimal_text(ratio)
    return RuleResult(
        rule=rule,
        group="guards",
        operands=(operand("B/A", text), *shown),
        threshold=f"at most {decimal_text(largest, 2)}",
        outcome=outcome,
        reason=reasons[outcome],
        records=fed_from,
    )


def _round_rule(registration: Registration, records: WindowRecords, source_id: str) -> RuleResult:
    """Return the guard on the order statistic of round times in one cell.

    B is judged by its largest possible value and A by its smallest, so an open stall can only make passing harder.
    """
    rule = registration.rules.round_time
    level, largest = Fraction(rule.percentile), Fraction(rule.maximum_ratio)
    arm_a, arm_b = (cell_rounds(records, registration.blocks_of(arm), source_id) for arm in _ARMS)
    name = f"guard/round_time/{source_id}"
    shown = [operand("rounds A", arm_a.count), operand("rounds B", arm_b.count)]
    for block in registration.blocks:
        shown.append(operand(f"{block} ms", _block_round_text(records, block, source_id, level)))
    if min(arm_a.count, arm_b.count) < rule.minimum_rounds:
        missing = (
            f"insufficient: {min(arm_a.count, arm_b.count)} rounds in an arm, {rule.minimum_rounds} are registered"
        )
        return _ratio_rule(name, None, largest, shown, missing, ("runs",))
    base, surely, at_most = arm_a.least(level), arm_b.least(level), arm_b.most(level)
    if base <= 0:
        return _ratio_rule(name, None, largest, shown, "arm A has round times of 0", ("runs",))
    if at_most is None and Fraction(surely, base) <= largest:
        missing = "insufficient: the order statistic of B rests on a round that was still open at the cut"
        return _ratio_rule(name, None, largest, shown, missing, ("runs",))
    value = surely if at_most is None else at_most
    shown = [operand("A ms", milliseconds_text(base)), operand("B ms", milliseconds_text(value)), *shown]
    return _ratio_rule(name, Fraction(value, base), largest, shown, "", ("runs",))


def _block_round_text(records: WindowRecords, block: BlockName, source_id: str, level: Fraction) -> str:
    """Return the order statistic of one run in milliseconds."""
    rounds = cell_rounds(records, (block,), source_id)
    return milliseconds_text(rounds.least(level)) if rounds.complete_ns or rounds.censored_ns else "none"


def _cold_rule(registration: Registration, records: WindowRecords) -> RuleResult:
    """Return the rule on the first request after a start, prefill included."""
    rule = registration.rules.ttft
    receipts = {receipt.block: receipt for receipt in records.blocks}
    cold: dict[BlockName, int | None] = {}
    for block in registration.blocks:
        receipt = receipts.get(block)
        cold[block] = receipt.warm_up.cold_ttft_ns if receipt is not None and receipt.warm_up is not None else None
    sums = {arm: [cold[block] for block in registration.blocks_of(arm)] for arm in _ARMS}
    known = {arm: [value for value in values if value is not None] for arm, values in sums.items()}
    ratio = None
    if all(len(known[arm]) == len(sums[arm]) for arm in _ARMS) and sum(known["A"]) > 0:
        ratio = Fraction(sum(known["B"]), sum(known["A"]))
    shown = [
        operand(f"{block} ms", "none" if value is None else milliseconds_text(value)) for block, value in cold.items()
    ]
    largest = Fraction(rule.cold_maximum_ratio)
    result = _ratio_rule("guard/cold_ttft", ratio, largest, shown, "a block has no cold start time", ("blocks",))
    if rule.cold_outcome == "INCONCLUSIVE":
        return result
    printed = "printed only: the registration dropped this guard before the freeze"
    return result.model_copy(update={"outcome": RuleOutcome.NOT_REGISTERED, "reason": printed})


_ARMS: tuple[ArmName, ArmName] = ("A", "B")
