"""What a person at a terminal sees of a window: a progress text, one table of rules, closing lines.

Turns values into text and tables. Must never print, ask or measure: the command line does.
Source: DESIGN section 7, "progress with time left on a terminal and plain lines elsewhere".
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from window.decision import Decision
from window.progress import ProgressEvent
from window.rehearse import RehearsalResult
from window.rule_result import RuleOutcome

__all__ = ["closing_lines", "is_milestone", "progress_text", "result_data", "rule_table"]

OUTCOME_STYLES = {
    RuleOutcome.PASS: "green",
    RuleOutcome.FIRED: "bold red",
    RuleOutcome.UNKNOWN: "yellow",
    RuleOutcome.NOT_REGISTERED: "dim",
}


def progress_text(event: ProgressEvent) -> str:
    """Return one line: elapsed time and wall, block, stage with its budget, run, what came out."""
    parts = [f"{_clock(event.elapsed_ns)} of {_clock(event.budget_ns)}"]
    if event.block is not None:
        parts.append(f"block {event.block}")
    budget = f" of {_seconds(event.stage_budget_ns)}" if event.stage_budget_ns else ""
    parts.append(f"{event.stage} {_seconds(event.stage_elapsed_ns)}{budget}")
    if event.run_number:
        parts.append(f"run {event.run_number}/{event.run_count} {event.run_id.rpartition('/')[2]}")
    if event.rounds:
        parts.append(f"{event.rounds} rounds, {event.tokens} tokens")
    if event.outcome:
        parts.append(event.outcome)
    return " | ".join(parts)


def is_milestone(event: ProgressEvent, previous: ProgressEvent | None) -> bool:
    """Return whether a plain log should show this event: a stage or run began, or something ended."""
    if previous is None or event.outcome:
        return True
    return (event.stage, event.block, event.run_id) != (previous.stage, previous.block, previous.run_id)


def rule_table(decision: Decision) -> Table:
    """Return every registered rule with its operands, threshold and outcome, in the order of judgement."""
    table = Table(title="Rules in the order of judgement", title_justify="left", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("outcome", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("holds if", overflow="fold")
    table.add_column("measured", overflow="fold")
    group = ""
    for rule in decision.rules:
        if rule.group != group and group:
            table.add_section()
        group = rule.group
        measured = ", ".join(f"{operand.name} {operand.value}" for operand in rule.operands)
        outcome = Text(rule.outcome.value, style=OUTCOME_STYLES[rule.outcome])
        table.add_row(outcome, Text(rule.rule), Text(rule.threshold), Text(measured))
    return table


def closing_lines(result: RehearsalResult) -> tuple[str, ...]:
    """Return the last lines: dispositions, verdict, stamp, and where the report is."""
    decision = result.decision
    planned = len(result.registration.run_ids())
    return (
        "",
        f"Runs with a disposition: {len(result.sealed.records.runs)}/{planned}",
        f"Verdict: {decision.verdict.value} (exit code {int(result.exit_code)}, {result.exit_code.name})",
        decision.headline,
        decision.stamp,
        f"Report: {result.report_path}",
    )


def result_data(result: RehearsalResult) -> dict[str, Any]:
    """Return the same as plain data, with the whole decision."""
    return {
        "verdict": result.decision.verdict.value,
        "exit_code": int(result.exit_code),
        "exit_name": result.exit_code.name,
        "interrupted": result.interrupted,
        "folder": str(result.folder),
        "report": str(result.report_path),
        "dispositions": {run.run_id: run.disposition for run in result.sealed.records.runs},
        "decision": result.decision.model_dump(mode="json"),
    }


def _clock(nanoseconds: int) -> str:
    minutes, seconds = divmod(nanoseconds // 1_000_000_000, 60)
    return f"{minutes}:{seconds:02d}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.1f} s"
