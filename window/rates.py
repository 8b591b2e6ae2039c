"""Delivered tokens over time as exact rationals, pooled as the registration says.

A rate is N/T with integers; blocks of an arm are pooled before anything is compared. Must never average
rates of blocks or count rounds as samples. Source: registration, GainRule and DeliveredTokensRule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from window.arms import ArmName, BlockName
from window.records import RunRecord, WindowRecords
from window.registration import Registration

__all__ = [
    "Measured",
    "block_ratio_product",
    "decode_totals",
    "pooled",
    "rate_ratio",
    "runs_by_id",
    "runs_of",
    "source_ratios",
]


@dataclass(frozen=True, slots=True)
class Measured:
    """N tokens in T nanoseconds."""

    tokens: int
    time_ns: int

    @property
    def usable(self) -> bool:
        """Return whether a rate and its logarithm exist."""
        return self.tokens > 0 and self.time_ns > 0

    @property
    def tokens_per_second(self) -> Fraction:
        """Return the rate. Raises ZeroDivisionError when T is 0."""
        return Fraction(self.tokens * 1_000_000_000, self.time_ns)


def runs_by_id(records: WindowRecords) -> dict[str, RunRecord]:
    """Return the run records by run id; a repeated id keeps the first."""
    found: dict[str, RunRecord] = {}
    for run in records.runs:
        found.setdefault(run.run_id, run)
    return found


def runs_of(records: WindowRecords, blocks: Sequence[BlockName], source_id: str) -> tuple[RunRecord, ...]:
    """Return the runs of one source in some blocks, as many as exist."""
    found = runs_by_id(records)
    names = (f"{block}/{source_id}" for block in blocks)
    return tuple(found[name] for name in names if name in found)


def pooled(runs: Iterable[RunRecord]) -> Measured:
    """Return N and T summed over some runs."""
    tokens = time_ns = 0
    for run in runs:
        tokens += run.decode_tokens
        time_ns += run.decode_time_ns
    return Measured(tokens, time_ns)


def rate_ratio(arm_b: Measured, arm_a: Measured) -> Fraction | None:
    """Return rate_B / rate_A exactly, None when one of them has no rate."""
    if not (arm_a.usable and arm_b.usable):
        return None
    return Fraction(arm_b.tokens * arm_a.time_ns, arm_b.time_ns * arm_a.tokens)


def decode_totals(registration: Registration, records: WindowRecords, arm: ArmName) -> Mapping[str, Measured]:
    """Return N and T of every source in one arm, both blocks pooled; keys in grid order."""
    blocks = registration.blocks_of(arm)
    return {source_id: pooled(runs_of(records, blocks, source_id)) for source_id in registration.source_grid()}


def source_ratios(registration: Registration, records: WindowRecords) -> Mapping[str, Fraction | None]:
    """Return rate_B / rate_A of every source in grid order; None where it does not exist."""
    arm_a = decode_totals(registration, records, "A")
    arm_b = decode_totals(registration, records, "B")
    return {source_id: rate_ratio(arm_b[source_id], arm_a[source_id]) for source_id in registration.source_grid()}


def block_ratio_product(
    registration: Registration, records: WindowRecords, later: BlockName, earlier: BlockName
) -> Fraction | None:
    """Return the product over the sources of rate(later block) / rate(earlier block), None when one is missing."""
    result = Fraction(1)
    for source_id in registration.source_grid():
        ratio = rate_ratio(
            pooled(runs_of(records, (later,), source_id)), pooled(runs_of(records, (earlier,), source_id))
        )
        if ratio is None:
            return None
        result *= ratio
    return result
