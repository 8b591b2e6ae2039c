"""What the report says, as plain values for the template: no layout, no new judgement.

Numbers are taken from the decision where it has them; the rest is computed from the sealed records for
reading only. Must never hold prompt or output text. Source: DESIGN section 6; plan, "Collect".
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log

from window.arms import ArmName
from window.bundle import FAMILIES_FILE, REGISTRATION_FILE, SOURCES_FILE, rounds_file
from window.bundle_reader import SealedWindow
from window.canonical import canonical_bytes, sha256_hex
from window.decision import Decision
from window.exact_numbers import decimal_text, log_decimal, milliseconds_text
from window.gain import bounds_of
from window.guards import CellRounds, cell_rounds
from window.rates import pooled, rate_ratio, runs_of, source_ratios
from window.records import WindowRound
from window.report_figures import BarRow, DotRow, ForestRow, TimelineRow, TimelineSegment
from window.rule_result import RuleOutcome, RuleResult

__all__ = [
    "CellTable",
    "cell_table",
    "disposition_rows",
    "drift_rows",
    "evidence_rows",
    "forest_rows",
    "key_numbers",
    "open_points",
    "overall_and_bound",
    "percentile_rows",
    "rank_time_rows",
    "round_rows",
    "split_rows",
    "timeline_rows",
    "ttft_rows",
    "walls_of",
]

ARMS: tuple[ArmName, ArmName] = ("A", "B")
LEVELS = (("p50", Fraction(1, 2)), ("p95", Fraction(19, 20)), ("p99", Fraction(99, 100)))


@dataclass(frozen=True, slots=True)
class CellTable:
    """A table: its head, and rows of text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def open_points(decision: Decision) -> tuple[RuleResult, ...]:
    """Return the rules that keep the verdict from being CANDIDATE, those that fired first."""
    order = {RuleOutcome.FIRED: 0, RuleOutcome.UNKNOWN: 1}
    return tuple(
        sorted((rule for rule in decision.rules if rule.outcome in order), key=lambda rule: order[rule.outcome])
    )


def key_numbers(sealed: SealedWindow, decision: Decision) -> tuple[tuple[str, str, str], ...]:
    """Return (name, value, remark) of the numbers for the first screen."""
    gain, bound = decision.rule("gain/point"), decision.rule("bound/lower")
    values = {item.name: item.value for item in bound.operands}
    runs = {item.name: item.value for item in decision.rule("complete/runs").operands}
    return (
        ("Throughput gain", gain.operands[0].value if gain.operands else "unknown", f"needed: {gain.threshold}"),
        ("Lower bound by families", values.get("by families", "unknown"), "needed: above 0 %"),
        ("Lower bound by sources", values.get("by sources", "unknown"), "needed: above 0 %"),
        ("Runs with a disposition", runs["runs with a disposition"], f"complete: {runs['complete runs']}"),
        ("Start state", "restored" if decision.restored else "not restored", _restore_remark(sealed)),
    )


def _restore_remark(sealed: SealedWindow) -> str:
    """Return how long the restore took."""
    restore = sealed.records.restore
    if restore is None:
        return "no receipt"
    return f"{milliseconds_text(restore.ended_ns - restore.started_ns, 0)} ms, {len(restore.items)} items observed"


def _percent(ratio: Fraction | None) -> float | None:
    """Return a ratio as a change in percent for drawing."""
    return None if ratio is None else float((ratio - 1) * 100)


def _mean_percent(product: Fraction | None, count: int) -> float | None:
    """Return the geometric mean change in percent for drawing."""
    return None if product is None else float(((log_decimal(product) / count).exp() - 1) * 100)


def forest_rows(sealed: SealedWindow) -> list[ForestRow]:
    """Return family rows, each before its sources."""
    plan, records = sealed.registration, sealed.records
    ratios = source_ratios(plan, records)
    rows: list[ForestRow] = []
    for family in plan.families():
        mine = [plan.source(name) for name in plan.source_grid() if plan.source(name).family == family]
        known = [ratios[row.source_id] for row in mine]
        whole: Fraction | None = Fraction(1)
        for ratio in known:
            whole = None if ratio is None or whole is None else whole * ratio
        rows.append(ForestRow(f"{family} mean", _mean_percent(whole, len(mine)), (), True))
        for row in mine:
            sessions = tuple(
                _percent(
                    rate_ratio(
                        pooled(runs_of(records, (block_b,), row.source_id)),
                        pooled(runs_of(records, (block_a,), row.source_id)),
                    )
                )
                for block_a, block_b in zip(plan.blocks_of("A"), plan.blocks_of("B"), strict=True)
            )
            rows.append(ForestRow(row.source_id, _percent(ratios[row.source_id]), sessions, False))
    return rows


def overall_and_bound(sealed: SealedWindow) -> tuple[float | None, float | None]:
    """Return point gain and decision bound in percent for drawing."""
    bounds = bounds_of(sealed.registration, sealed.records, sealed.matrices)
    if bounds is None:
        return None, None
    ratios = [ratio for ratio in source_ratios(sealed.registration, sealed.records).values() if ratio is not None]
    whole = Fraction(1)
    for ratio in ratios:
        whole *= ratio
    return _mean_percent(whole, len(ratios)), _mean_percent(bounds.decision.ratio_product, bounds.decision.factors)


def _seconds(nanoseconds: int) -> float:
    """Return seconds for drawing."""
    return nanoseconds / 1e9


_KINDS = {"start and warm-up": "start", "prime": "prime", "runs": "runs", "stop": "stop"}


def timeline_rows(sealed: SealedWindow) -> list[TimelineRow]:
    """Return one lane a block and one a stage outside blocks, in the order they began."""
    stages = sealed.registration.stages
    lanes: dict[str, list[TimelineSegment]] = {}
    budgets: dict[str, float] = {}
    for span in sealed.records.spans:
        name = span.block or span.stage
        overrun = span.overrun and span.stage != "stop"
        segment = TimelineSegment(
            _seconds(span.started_ns), _seconds(span.ended_ns), _KINDS.get(span.stage, "other"), overrun
        )
        lanes.setdefault(name, []).append(segment)
        budgets[name] = _seconds(stages.block_limit_ns if span.block else span.budget_ns)
    return [TimelineRow(name, budgets[name], tuple(segments)) for name, segments in lanes.items()]


def walls_of(sealed: SealedWindow) -> list[tuple[str, float]]:
    """Return the walls with short names, in seconds."""
    walls = sealed.registration.walls
    return [
        ("admission stop after an overrun", _seconds(walls.stop_admission_if_overrun_ns)),
        ("latest restore start", _seconds(walls.latest_restore_start_ns)),
        ("escalate", _seconds(walls.escalate_restore_ns)),
        ("closed", _seconds(walls.closed_ns)),
    ]


def disposition_rows(sealed: SealedWindow) -> CellTable:
    """Return the disposition of every registered run: a row a source in run order, a column a block."""
    plan = sealed.registration
    found = {run.run_id: run for run in sealed.records.runs}
    rows = []
    for source_id in plan.order:
        cells = [source_id]
        for block in plan.blocks:
            run = found.get(f"{block}/{source_id}")
            cells.append("no record" if run is None else run.disposition.value)
        rows.append(tuple(cells))
    return CellTable(("source", *plan.blocks), tuple(rows))


def _rounds_of(sealed: SealedWindow, arm: ArmName, source_id: str) -> CellRounds:
    """Return the round times of one arm in one cell."""
    return cell_rounds(sealed.records, sealed.registration.blocks_of(arm), source_id)


def cell_table(sealed: SealedWindow) -> CellTable:
    """Return throughput and its diagnostics for every cell and arm."""
    plan, rows = sealed.registration, []
    for source_id in plan.source_grid():
        for arm in ARMS:
            runs = runs_of(sealed.records, plan.blocks_of(arm), source_id)
            total = pooled(runs)
            rounds, accepted = sum(run.complete_rounds for run in runs), sum(run.accepted for run in runs)
            delivered = sum(run.delivered_tokens for run in runs)
            rows.append(
                (
                    source_id,
                    arm,
                    str(delivered),
                    decimal_text(total.tokens_per_second, 2) if total.usable else "unknown",
                    str(rounds),
                    decimal_text(Fraction(accepted, rounds), 3) if rounds else "unknown",
                    decimal_text(Fraction(delivered, rounds), 3) if rounds else "unknown",
                    ", ".join(run.disposition.value for run in runs),
                )
            )
    head = ("source", "arm", "tokens", "tokens/s", "rounds", "accepted/round", "tokens/round", "ended by")
    return CellTable(head, tuple(rows))


def drift_rows(sealed: SealedWindow) -> list[DotRow]:
    """Return the rate of every source in both sessions of either arm."""
    plan, rows = sealed.registration, []
    for source_id in plan.source_grid():
        values: dict[ArmName, tuple[tuple[float, str], ...]] = {}
        for arm in ARMS:
            points = []
            for number, block in enumerate(plan.blocks_of(arm), start=1):
                total = pooled(runs_of(sealed.records, (block,), source_id))
                if total.usable:
                    points.append((float(total.tokens_per_second), str(number)))
            values[arm] = tuple(points)
        rows.append(DotRow(source_id, values["A"], values["B"]))
    return rows


def split_rows(sealed: SealedWindow) -> list[BarRow]:
    """Return ln gain = ln(tokens a round) + ln(rounds a second), for every cell where both exist."""
    plan, rows = sealed.registration, []
    for source_id in plan.source_grid():
        parts: dict[ArmName, tuple[float, float]] = {}
        for arm in ARMS:
            runs = runs_of(sealed.records, plan.blocks_of(arm), source_id)
            total = pooled(runs)
            rounds = sum(max(run.complete_rounds - 1, 0) for run in runs)
            if total.usable and rounds:
                parts[arm] = (log(total.tokens / rounds), log(rounds / total.time_ns))
        if len(parts) == 2:
            (tokens_a, speed_a), (tokens_b, speed_b) = parts["A"], parts["B"]
            rows.append(BarRow(source_id, 100 * (tokens_b - tokens_a), 100 * (speed_b - speed_a)))
    return rows


def percentile_rows(sealed: SealedWindow) -> CellTable:
    """Return round-time percentiles of every cell and arm in milliseconds, open stalls at their age."""
    rows = []
    for source_id in sealed.registration.source_grid():
        for arm in ARMS:
            rounds = _rounds_of(sealed, arm, source_id)
            some = bool(rounds.complete_ns or rounds.censored_ns)
            values = [milliseconds_text(rounds.least(level)) if some else "none" for _, level in LEVELS]
            rows.append((source_id, arm, str(rounds.count), str(len(rounds.censored_ns)), *values))
    return CellTable(("source", "arm", "rounds", "open stalls", "p50 ms", "p95 ms", "p99 ms"), tuple(rows))


def round_rows(sealed: SealedWindow) -> list[DotRow]:
    """Return p50, p95 and p99 of round times for drawing, in milliseconds."""
    rows = []
    for source_id in sealed.registration.source_grid():
        values: dict[ArmName, tuple[tuple[float, str], ...]] = {}
        for arm in ARMS:
            rounds = _rounds_of(sealed, arm, source_id)
            some = bool(rounds.complete_ns or rounds.censored_ns)
            values[arm] = tuple((rounds.least(level) / 1e6, name) for name, level in LEVELS) if some else ()
        rows.append(DotRow(source_id, values["A"], values["B"]))
    return rows


def ttft_rows(sealed: SealedWindow) -> list[DotRow]:
    """Return the time to the first token of both sessions of either arm, in milliseconds."""
    plan, rows = sealed.registration, []
    for source_id in plan.source_grid():
        values: dict[ArmName, tuple[tuple[float, str], ...]] = {}
        for arm in ARMS:
            runs = runs_of(sealed.records, plan.blocks_of(arm), source_id)
            values[arm] = tuple(
                (run.ttft_ns / 1e6, str(number)) for number, run in enumerate(runs, 1) if run.ttft_ns is not None
            )
        rows.append(DotRow(source_id, values["A"], values["B"]))
    return rows


_TERMS = ("draft", "selector", "exchange", "validation", "target", "agreement", "total")


def rank_time_rows(sealed: SealedWindow) -> CellTable:
    """Return the mean host time of each term of a round, by arm and rank, in milliseconds."""
    plan, rows = sealed.registration, []
    for arm in ARMS:
        lines = [
            line for block in plan.blocks_of(arm) for source in plan.order for line in _lines(sealed, block, source)
        ]
        for rank in (0, 1):
            ranks = [line.rank1 if rank else line.rank0 for line in lines]
            means = [
                milliseconds_text(Fraction(sum(getattr(times, f"{term}_ns") for times in ranks), len(ranks)), 3)
                if ranks
                else "none"
                for term in _TERMS
            ]
            rows.append((arm, str(rank), *means))
    return CellTable(("arm", "rank", *_TERMS), tuple(rows))


def _lines(sealed: SealedWindow, block: str, source_id: str) -> tuple[WindowRound, ...]:
    """Return the sealed rounds of one run."""
    return sealed.rounds.get(f"{block}/{source_id}", ())


def evidence_rows(sealed: SealedWindow, decision: Decision) -> CellTable:
    """Return what the verdict was made from, each with its digest."""
    rule = sealed.registration.rules.bootstrap
    rows = [
        (REGISTRATION_FILE, "the window's id", decision.window_id),
        ("decision.json", decision.verdict.value, sha256_hex(canonical_bytes(decision))),
        ("journal.jsonl", f"head of record {sealed.journal_records - 1}, before the decision", sealed.journal_head),
        (FAMILIES_FILE, "resampling of families", rule.families_index_sha256),
        (SOURCES_FILE, "resampling of sources", rule.sources_index_sha256),
    ]
    for block in sealed.registration.blocks:
        lines = [line for name, found in sealed.rounds.items() if name.startswith(f"{block}/") for line in found]
        data = b"".join(canonical_bytes(line) + b"\n" for line in lines)
        rows.append((rounds_file(block), f"{len(lines)} rounds", sha256_hex(data)))
    for source in sealed.registration.sources:
        rows.append((source.source_id, f"{source.occupied_tokens} prompt tokens", source.prompt_tokens_sha256))
    return CellTable(("record", "what", "sha-256"), tuple(rows))
