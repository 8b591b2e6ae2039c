"""The end of a window for a terminal and for --json: one table, one sentence, plain data.

Builds, never prints. Source: DESIGN section 7.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from window.bundle_reader import SealedWindow
from window.decision import Decision, Verdict
from window.report_view import cell_table, disposition_rows, key_numbers, open_points
from window.rule_result import RuleOutcome

__all__ = ["summary_data", "summary_lines", "summary_table"]

_COLOURS = {
    Verdict.CANDIDATE: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.REJECT: "red",
    Verdict.NO_GO: "yellow",
}


def summary_table(sealed: SealedWindow, decision: Decision) -> Table:
    """Return the verdict, the key numbers and the cells as one table."""
    table = Table(title=_title(decision), caption=decision.headline, title_justify="left", caption_justify="left")
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
    table.add_section()
    for name, value, _ in key_numbers(sealed, decision):
        table.add_row(name, "", "", Text(value, style="bold"), "", "", "")
    return table


def _title(decision: Decision) -> Text:
    """Return verdict and stamp."""
    text = Text()
    text.append(decision.verdict.value.replace("_", "-"), style=f"bold {_COLOURS[decision.verdict]}")
    text.append(f"   {decision.stamp}")
    return text


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
    """Return the same in plain lines, for pipes and logs."""
    lines = [f"{decision.verdict.value}: {decision.headline}", decision.stamp]
    lines += [f"{name}: {value} ({remark})" for name, value, remark in key_numbers(sealed, decision)]
    lines += [f"{rule.outcome.value} {rule.rule}: {rule.reason}" for rule in open_points(decision)]
    return lines


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
