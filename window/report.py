"""The report: one HTML file with inline pictures, no script and no network, the same bytes for the same bundle.

Must never hold prompt or output text, and never say more than the decision. Source: DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import groupby

from jinja2 import Environment, StrictUndefined

from window import report_view as view
from window.bundle_reader import SealedWindow
from window.decision import Decision
from window.report_figures import dot_plot, forest_plot, split_plot, timeline_plot
from window.rule_result import RuleResult

__all__ = ["render_report"]

TEMPLATE = "report.html.jinja"
GROUP_TITLES = {
    "reject": "Reasons to reject, on whatever data exist",
    "completeness": "Completeness and evidence",
    "gain": "Throughput gain",
    "bound": "Lower bound",
    "guards": "Guards in every cell",
    "drift": "Drift between sessions of one arm",
}


def render_report(sealed: SealedWindow, decision: Decision) -> bytes:
    """Return the report as UTF-8 bytes."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = (files("window") / TEMPLATE).read_text(encoding="utf-8")
    page = environment.from_string(source).render(
        decision=decision,
        registration=sealed.registration,
        records=sealed.records,
        open_points=view.open_points(decision),
        key_numbers=view.key_numbers(sealed, decision),
        groups=tuple(_groups(decision)),
        dispositions=view.disposition_rows(sealed),
        cells=view.cell_table(sealed),
        percentiles=view.percentile_rows(sealed),
        rank_times=view.rank_time_rows(sealed),
        evidence=view.evidence_rows(sealed, decision),
        pictures=_pictures(sealed),
    )
    return (page.rstrip() + "\n").encode("utf-8")


def _groups(decision: Decision) -> Iterator[tuple[str, list[RuleResult]]]:
    """Yield the rules by group with their titles."""
    for group, rules in groupby(decision.rules, key=lambda rule: rule.group):
        yield GROUP_TITLES[group], list(rules)


def _pictures(sealed: SealedWindow) -> dict[str, str]:
    """Return every picture by name."""
    overall, bound = view.overall_and_bound(sealed)
    threshold = float(sealed.registration.rules.gain.minimum_gain) * 100
    return {
        "forest": forest_plot(view.forest_rows(sealed), overall, bound, threshold),
        "timeline": timeline_plot(view.timeline_rows(sealed), view.walls_of(sealed)),
        "drift": dot_plot(view.drift_rows(sealed), "tokens per second", "Rates by session", True),
        "split": split_plot(view.split_rows(sealed)),
        "rounds": dot_plot(view.round_rows(sealed), "milliseconds a round", "Round times", True),
        "ttft": dot_plot(view.ttft_rows(sealed), "milliseconds to the first token", "Time to first token", True),
    }
