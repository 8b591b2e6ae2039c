"""The decision rule as data: every choice the plan leaves open is a field with a registered value.

Fields that today admit one value are literals, so that a document asking for another is refused
instead of being decided by a rule that nobody wrote. Must never hold a default for what decides;
`decided_rules` is the one place that fills them in. Source: plan, "frozen decision".
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from window.canonical import Count, DecimalText, Digest, SealedModel
from window.dispositions import Disposition, DispositionEffect, RejectReason

__all__ = [
    "BootstrapRule",
    "CellThroughputRule",
    "DeliveredTokensRule",
    "DispositionRow",
    "DriftRule",
    "GainRule",
    "RejectFeed",
    "RoundTimeRule",
    "Rules",
    "TtftRule",
    "decided_disposition_effects",
    "decided_rules",
]

RULE_ORDER = ("reject", "completeness", "gain", "bound", "guards", "drift")


def _ratio_above_one(text: str, field: str) -> None:
    if Fraction(text) <= 1:
        raise ValueError(f"{field} is {text} but a largest allowed ratio must be above 1, for example 1.05")


class BootstrapRule(SealedModel):
    """Both bootstraps: families with their contexts carried along, and single sources."""

    units: tuple[Literal["families"], Literal["sources"]]
    resamples: Annotated[int, Field(ge=20, le=100_000)]
    seed: Count
    generator: Literal["numpy PCG64 integers int64 row order"]
    lower_percentile: DecimalText
    quantile_rule: Literal["inverted_cdf"]
    decision_bound: Literal["smaller"]
    families_index_sha256: Digest
    sources_index_sha256: Digest
    exact_enumeration: Literal[True]
    sampled_exact_disagreement: Literal["INCONCLUSIVE"]

    @model_validator(mode="after")
    def _percentile_inside(self) -> Self:
        if not 0 < Fraction(self.lower_percentile) < 1:
            raise ValueError(f"lower_percentile is {self.lower_percentile} but must lie between 0 and 1, usually 0.05")
        return self


class GainRule(SealedModel):
    """Point gain: exp(mean of the family means of ln(rate_B/rate_A)) - 1, equal weight a source."""

    estimator: Literal["exp of mean of family means of log rate ratio, minus 1"]
    minimum_gain: DecimalText
    ratio_of_sums_straddle: Literal["INCONCLUSIVE"]

    @model_validator(mode="after")
    def _gain_positive(self) -> Self:
        if Fraction(self.minimum_gain) <= 0:
            raise ValueError(f"minimum_gain is {self.minimum_gain} but must be above 0, usually 0.05")
        return self


class DeliveredTokensRule(SealedModel):
    """What counts as delivered and what stays in the time."""

    counted: Literal["received by the client, reasoning included"]
    after_stop: Literal["never"]
    open_round_tokens: Literal["left out"]
    open_round_time: Literal["left out if its age is at most the longest complete round of the run, else kept"]
    stalls: Literal["stay in the time"]


class TtftRule(SealedModel):
    """Time to the first generated token of a primed request, and of the first request after a start."""

    measured_on: Literal["primed request, first generated token"]
    statistic: Literal["ratio of means over both blocks of an arm"]
    maximum_ratio: DecimalText
    cold_maximum_ratio: DecimalText
    cold_outcome: Literal["INCONCLUSIVE", "report_only"]
    absolute_floor: Literal["none"]

    @model_validator(mode="after")
    def _ratios(self) -> Self:
        _ratio_above_one(self.maximum_ratio, "maximum_ratio")
        _ratio_above_one(self.cold_maximum_ratio, "cold_maximum_ratio")
        return self


class RoundTimeRule(SealedModel):
    """Order statistic of round times over the complete rounds of both blocks of an arm, in every cell."""

    percentile: DecimalText
    maximum_ratio: DecimalText
    minimum_rounds: Annotated[int, Field(ge=1)]
    too_few_rounds: Literal["INCONCLUSIVE"]

    @model_validator(mode="after")
    def _shape(self) -> Self:
        _ratio_above_one(self.maximum_ratio, "maximum_ratio")
        if not 0 < Fraction(self.percentile) < 1:
            raise ValueError(f"percentile is {self.percentile} but must lie between 0 and 1, usually 0.95")
        return self


class DriftRule(SealedModel):
    """Both sessions of one arm must agree."""

    compared: Literal["A1 with A2 and B1 with B2, geometric mean of rates over the sources"]
    maximum_ratio: DecimalText

    @model_validator(mode="after")
    def _ratio(self) -> Self:
        _ratio_above_one(self.maximum_ratio, "maximum_ratio")
        return self


class CellThroughputRule(SealedModel):
    """Per-cell throughput is always printed; it guards only when a smallest ratio is registered."""

    minimum_ratio: DecimalText | None

    @model_validator(mode="after")
    def _ratio(self) -> Self:
        if self.minimum_ratio is not None and Fraction(self.minimum_ratio) <= 0:
            raise ValueError(f"minimum_ratio is {self.minimum_ratio} but must be above 0, for example 0.97")
        return self


class DispositionRow(SealedModel):
    """One row of the map from disposition to its effect on the verdict."""

    disposition: Disposition
    effect: DispositionEffect


class RejectFeed(SealedModel):
    """One reason for REJECT and the sealed records that can raise it; no records: not registered here."""

    reason: RejectReason
    records: tuple[Literal["runs", "blocks", "smoke", "restore"], ...]


class Rules(SealedModel):
    """The whole rule. Order: REJECT first and on partial data, then completeness, gain, bound, guards, drift."""

    order: tuple[Literal["reject", "completeness", "gain", "bound", "guards", "drift"], ...]
    bootstrap: BootstrapRule
    gain: GainRule
    delivered_tokens: DeliveredTokensRule
    ttft: TtftRule
    round_time: RoundTimeRule
    drift: DriftRule
    cell_throughput: CellThroughputRule
    dispositions: tuple[DispositionRow, ...]
    reject_feeds: tuple[RejectFeed, ...]
    decisions_per_registration: Literal[1]

    @model_validator(mode="after")
    def _closed(self) -> Self:
        if self.order != RULE_ORDER:
            raise ValueError(f"order must be {', '.join(RULE_ORDER)}")
        named = [row.disposition for row in self.dispositions]
        if sorted(named) != sorted(Disposition):
            raise ValueError("dispositions must map each of the ten dispositions exactly once")
        reasons = [feed.reason for feed in self.reject_feeds]
        if sorted(reasons) != sorted(RejectReason):
            raise ValueError("reject_feeds must name each of the ten reasons exactly once")
        effects = {row.disposition: row.effect for row in self.dispositions}
        whole = {name for name, effect in effects.items() if effect is DispositionEffect.COMPLETE}
        if not whole <= {Disposition.EOS, Disposition.BUDGET, Disposition.CENSORED_DEADLINE}:
            raise ValueError("only EOS, BUDGET and CENSORED_DEADLINE may count as complete runs")
        return self

    def effect_of(self, disposition: Disposition) -> DispositionEffect:
        """Return the registered effect of one disposition."""
        return next(row.effect for row in self.dispositions if row.disposition is disposition)

    def records_of(self, reason: RejectReason) -> tuple[str, ...]:
        """Return the kinds of sealed records that feed one reason."""
        return next(feed.records for feed in self.reject_feeds if feed.reason is reason)


def decided_disposition_effects() -> tuple[DispositionRow, ...]:
    """Return the decided map: three complete endings, three incomplete ones, four that reject."""
    effects = {
        Disposition.EOS: DispositionEffect.COMPLETE,
        Disposition.BUDGET: DispositionEffect.COMPLETE,
        Disposition.CENSORED_DEADLINE: DispositionEffect.COMPLETE,
        Disposition.CANCELED_PLAN: DispositionEffect.INCOMPLETE,
        Disposition.CANCELED_CLIENT: DispositionEffect.INCOMPLETE,
        Disposition.NOT_ADMITTED: DispositionEffect.INCOMPLETE,
        Disposition.WATCHDOG: DispositionEffect.REJECT_LIFECYCLE,
        Disposition.ENGINE_FAILED: DispositionEffect.REJECT_LIFECYCLE,
        Disposition.TRANSPORT_FAILED: DispositionEffect.REJECT_LIFECYCLE,
        Disposition.LOST: DispositionEffect.REJECT_LOST_REQUEST,
    }
    return tuple(DispositionRow(disposition=name, effect=effect) for name, effect in effects.items())


def _decided_reject_feeds(structured_smoke: bool) -> tuple[RejectFeed, ...]:
    """Return which records raise which reason; without a structured smoke nothing can raise `grammar`."""
    return (
        RejectFeed(reason=RejectReason.Q_LAW, records=("runs",)),
        RejectFeed(reason=RejectReason.TARGET_LAW, records=("runs",)),
        RejectFeed(reason=RejectReason.GREEDY_IDENTITY, records=("smoke",)),
        RejectFeed(reason=RejectReason.GRAMMAR, records=("smoke",) if structured_smoke else ()),
        RejectFeed(reason=RejectReason.STOP, records=("runs", "smoke")),
        RejectFeed(reason=RejectReason.LIFECYCLE, records=("runs", "blocks")),
        RejectFeed(reason=RejectReason.CORRUPTION, records=("runs",)),
        RejectFeed(reason=RejectReason.RECOVERY, records=("runs", "restore")),
        RejectFeed(reason=RejectReason.LOST_REQUEST, records=("runs",)),
        RejectFeed(reason=RejectReason.POLICY_OR_WEIGHT_MISMATCH, records=("runs", "blocks")),
    )


def decided_rules(
    families_index_sha256: str, sources_index_sha256: str, *, structured_smoke: bool, minimum_rounds: int = 90
) -> Rules:
    """Return the rule with every open point as decided; `minimum_rounds` is counted an arm and cell."""
    return Rules(
        order=("reject", "completeness", "gain", "bound", "guards", "drift"),
        bootstrap=BootstrapRule(
            units=("families", "sources"),
            resamples=2000,
            seed=4103,
            generator="numpy PCG64 integers int64 row order",
            lower_percentile="0.05",
            quantile_rule="inverted_cdf",
            decision_bound="smaller",
            families_index_sha256=families_index_sha256,
            sources_index_sha256=sources_index_sha256,
            exact_enumeration=True,
            sampled_exact_disagreement="INCONCLUSIVE",
        ),
        gain=GainRule(
            estimator="exp of mean of family means of log rate ratio, minus 1",
            minimum_gain="0.05",
            ratio_of_sums_straddle="INCONCLUSIVE",
        ),
        delivered_tokens=DeliveredTokensRule(
            counted="received by the client, reasoning included",
            after_stop="never",
            open_round_tokens="left out",
            open_round_time="left out if its age is at most the longest complete round of the run, else kept",
            stalls="stay in the time",
        ),
        ttft=TtftRule(
            measured_on="primed request, first generated token",
            statistic="ratio of means over both blocks of an arm",
            maximum_ratio="1.05",
            cold_maximum_ratio="1.05",
            cold_outcome="INCONCLUSIVE",
            absolute_floor="none",
        ),
        round_time=RoundTimeRule(
            percentile="0.95", maximum_ratio="1.05", minimum_rounds=minimum_rounds, too_few_rounds="INCONCLUSIVE"
        ),
        drift=DriftRule(
            compared="A1 with A2 and B1 with B2, geometric mean of rates over the sources", maximum_ratio="1.05"
        ),
        cell_throughput=CellThroughputRule(minimum_ratio=None),
        dispositions=decided_disposition_effects(),
        reject_feeds=_decided_reject_feeds(structured_smoke),
        decisions_per_registration=1,
    )
