"""The end of a window for a terminal and for --json: one table, one sentence, plain data.

Builds, never prints. Source: DESIGN section 7.
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from window.bundle_reader import SealedWindow
from window.decision import Decision, Verdict
from window.rehearse import RehearsalResult
from window.report_view import cell_table, disposition_rows, key_numbers, open_points
from window.rule_result import RuleOutcome

__all__ = ["result_data", "summary_data", "summary_lines", "summary_table"]

_COLOURS = {
    Verdict.CANDIDATE: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.REJECT: "red",
    Verdict.NO_GO: "yellow",
}


def summary_table(sealed: SealedWindow, decision: Decision) -> Table:
    """Return the six cells as one table that fits a terminal of 80 columns."""
    table = Table(title=_title(decision), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "A tok/s", "B tok/s", "change", "p95 B/A", "TTFT B/A", "runs"):
        table.add_column(name, justify="left" if name == "cell" else "right", no_wrap=True)
    rates = {(row[0], row[1]): row[3] for row in cell_table(sealed).rows}
    runs = {row[0]: row[1:] for row in disposition_rows(sealed).rows}
    for source_id in sealed.registration.source_grid():
        change = decision.rule(f"gain/cell/{source_id}").operands[0].value
        table.add_row(
            source_id,
            rates[source_id, "A"],
            rates[source_id, "B"],
            change,
            _outcome(decision, f"guard/round_time/{source_id}"),
            _outcome(decision, f"guard/ttft/{source_id}"),
            f"{sum(word != 'no record' for word in runs[source_id])}/{len(runs[source_id])}",
        )
    return table


def _title(decision: Decision) -> Text:
    """Return verdict and stamp."""
    return Text(decision.verdict.value.replace("_", "-"), style=f"bold {_COLOURS[decision.verdict]}")


def _outcome(decision: Decision, name: str) -> Text:
    """Return a guard's ratio with its outcome as colour and, for readers without colour, a mark."""
    rule = decision.rule(name)
    value = rule.operands[0].value if rule.operands else "unknown"
    style, mark = {
        RuleOutcome.PASS: ("green", ""),
        RuleOutcome.FIRED: ("red", " !"),
        RuleOutcome.UNKNOWN: ("yellow", " ?"),
        RuleOutcome.NOT_REGISTERED: ("dim", ""),
    }[rule.outcome]
    return Text(f"{value}{mark}", style=style)


def summary_lines(sealed: SealedWindow, decision: Decision) -> list[str]:
    """Return verdict, stamp, key numbers and every rule that did not hold, in plain lines."""
    lines = [f"{decision.verdict.value}: {decision.headline}", decision.stamp]
    lines += [f"{name}: {value} ({remark})" for name, value, remark in key_numbers(sealed, decision)]
    for rule in open_points(decision):
        measured = f" ({rule.operands[0].name} {rule.operands[0].value}, {rule.threshold})" if rule.operands else ""
        lines.append(f"{rule.outcome.value} {rule.rule}: {rule.reason}{measured}")
    return lines


def result_data(result: RehearsalResult) -> dict[str, Any]:
    """Return how a rehearsal ended as data: outcome, places, the whole decision, dispositions and cells."""
    return {
        "exit_code": int(result.exit_code),
        "exit_name": result.exit_code.name,
        "interrupted": result.interrupted,
        "folder": str(result.folder),
        "report": str(result.report_path),
        **summary_data(result.sealed, result.decision),
    }


def summary_data(sealed: SealedWindow, decision: Decision) -> dict[str, Any]:
    """Return the result as data: the whole decision, the dispositions and the cells."""
    cells, runs = cell_table(sealed), disposition_rows(sealed)
    return {
        **decision.model_dump(mode="json"),
        "cells": [dict(zip(cells.head, row, strict=True)) for row in cells.rows],
        "dispositions": {
            f"{block}/{row[0]}": word for row in runs.rows for block, word in zip(runs.head[1:], row[1:], strict=True)
        },
    }
