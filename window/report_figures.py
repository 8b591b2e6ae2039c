"""The report's pictures as SVG text: fixed bytes for equal data, colours left to the page's theme.

Every colour is drawn as a placeholder and becomes a CSS variable, so one picture serves light and dark.
Must never use global plotting state, a date or a random id. Source: DESIGN section 8.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "BarRow",
    "DotRow",
    "ForestRow",
    "TimelineRow",
    "TimelineSegment",
    "dot_plot",
    "forest_plot",
    "split_plot",
    "timeline_plot",
]

# Placeholder colours; `_themed` turns each into the CSS variable of that name.
INK, MUTED, GRID, ARM_A, ARM_B, WARN, SOFT = (
    "#010101",
    "#020202",
    "#030303",
    "#040404",
    "#050505",
    "#060606",
    "#070707",
)
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", ARM_A: "arm-a", ARM_B: "arm-b", WARN: "warn", SOFT: "soft"}
_WIDTH_IN = 6.8
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specbed",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One source or family: gain in percent, both session contrasts, None where unknown."""

    label: str
    gain: float | None
    sessions: tuple[float | None, ...]
    is_family: bool


@dataclass(frozen=True, slots=True)
class TimelineSegment:
    """One stage on a lane, in seconds; `kind` picks its shade."""

    start_s: float
    end_s: float
    kind: str
    overrun: bool


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One lane of the time line with its budget in seconds, counted from its first segment."""

    label: str
    budget_s: float
    segments: tuple[TimelineSegment, ...]


@dataclass(frozen=True, slots=True)
class DotRow:
    """One row with values of both arms; each value has a marker name."""

    label: str
    arm_a: tuple[tuple[float, str], ...]
    arm_b: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class BarRow:
    """One source: parts of its log gain in percent points."""

    label: str
    tokens_part: float
    speed_part: float


def forest_plot(rows: Sequence[ForestRow], overall: float | None, bound: float | None, threshold: float) -> str:
    """Return the six cells by family, family means, the point gain and the decision bound on a log axis."""

    def draw(axes: Axes) -> None:
        places = list(range(len(rows), 0, -1))
        for place, row in zip(places, rows, strict=True):
            known = [value for value in row.sessions if value is not None]
            if known:
                axes.plot([min(known), max(known)], [place, place], color=MUTED, linewidth=1.2, zorder=2)
                axes.scatter(known, [place] * len(known), marker="|", s=60, color=MUTED, zorder=3)
            if row.gain is not None:
                marker, size = ("D", 62) if row.is_family else ("o", 46)
                axes.scatter(
                    [row.gain], [place], marker=marker, s=size, color=INK if row.is_family else ARM_B, zorder=4
                )
        axes.axvline(0, color=INK, linewidth=1)
        axes.axvline(threshold, color=WARN, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"needed +{threshold:g} %",
            (threshold, len(rows) + 0.62),
            xytext=(5, 0),
            textcoords="offset points",
            color=WARN,
            fontsize=8.5,
        )
        if overall is not None:
            axes.scatter([overall], [0.0], marker="D", s=90, color=ARM_B, zorder=5)
        if bound is not None:
            axes.scatter([bound], [0.0], marker="<", s=54, color=WARN, zorder=5)
        axes.axhline(0.5, color=GRID, linewidth=0.8)
        axes.set_yticks([*places, 0.0], [*(row.label for row in rows), "all six"])
        for label, strong in zip(axes.get_yticklabels(), [*(row.is_family for row in rows), True], strict=True):
            label.set_color(INK)
            label.set_fontweight("bold" if strong else "normal")
        axes.set_ylim(-0.6, len(rows) + 1.1)
        drawn = [value for row in rows for value in (row.gain, *row.sessions) if value is not None]
        low, high = min([0.0, *drawn]), max([threshold, *drawn])
        # Room on the right for the label of the threshold, whatever was measured.
        axes.set_xlim(low - 0.05 * (high - low) - 0.5, max(high, threshold + 0.22 * (high - low)) + 0.05 * (high - low))
        if not drawn:
            axes.text(0.5, 0.5, "no source has a rate in both arms", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_xlabel("change of delivered tokens per second, B against A (%)")

    return _picture(draw, 0.34 * len(rows) + 1.4, "Throughput change by source and family")


def timeline_plot(rows: Sequence[TimelineRow], walls: Sequence[tuple[str, float]]) -> str:
    """Return stages on lanes against their budgets and the walls, in seconds from the first effect."""
    shades = {"start": 0.45, "prime": 0.7, "runs": 1.0, "stop": 0.25, "other": 0.85}

    def draw(axes: Axes) -> None:
        for place, row in zip(range(len(rows), 0, -1), rows, strict=True):
            if row.segments:
                begin = row.segments[0].start_s
                axes.barh(place, row.budget_s, left=begin, height=0.78, color=SOFT, zorder=1)
            for segment in row.segments:
                color = ARM_B if row.label.startswith("B") else ARM_A if row.label.startswith("A") else MUTED
                axes.barh(
                    place,
                    max(segment.end_s - segment.start_s, 0.2),
                    left=segment.start_s,
                    height=0.5,
                    color=color,
                    alpha=shades.get(segment.kind, 0.85),
                    edgecolor=WARN if segment.overrun else "none",
                    linewidth=1.6 if segment.overrun else 0,
                    zorder=2,
                )
        for index, (name, seconds) in enumerate(walls):
            top = len(rows) + 0.9 + 0.6 * index
            axes.plot([seconds, seconds], [0.3, top + 0.25], color=WARN, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
            axes.annotate(
                f"{name} {seconds:.0f} s",
                (seconds, top),
                xytext=(-5, 0),
                textcoords="offset points",
                color=WARN,
                ha="right",
                va="center",
                fontsize=8.5,
            )
        axes.set_yticks(list(range(len(rows), 0, -1)), [row.label for row in rows])
        for label in axes.get_yticklabels():
            label.set_color(INK)
        axes.set_ylim(0.3, len(rows) + 1.3 + 0.6 * len(walls))
        axes.set_xlim(0, max([seconds for _, seconds in walls], default=1.0) * 1.01)
        axes.set_xlabel("seconds since the first effect of the drain")

    return _picture(draw, 0.33 * len(rows) + 2.2, "Stages against budgets and walls")


_MARKERS = {"p50": "o", "p95": "D", "p99": ">", "1": "o", "2": "s", "cold": "o"}


def dot_plot(rows: Sequence[DotRow], axis_label: str, title: str, connect: bool) -> str:
    """Return rows of dots, arm A above arm B; `connect` joins the dots of one arm by a line."""

    def draw(axes: Axes) -> None:
        for place, row in zip(range(len(rows), 0, -1), rows, strict=True):
            for values, offset, color in ((row.arm_a, 0.17, ARM_A), (row.arm_b, -0.17, ARM_B)):
                if connect and len(values) > 1:
                    numbers = [value for value, _ in values]
                    axes.plot([min(numbers), max(numbers)], [place + offset] * 2, color=color, linewidth=1.2, zorder=2)
                for value, name in values:
                    axes.scatter([value], [place + offset], marker=_MARKERS.get(name, "o"), s=30, color=color, zorder=3)
        axes.set_yticks(list(range(len(rows), 0, -1)), [row.label for row in rows])
        for label in axes.get_yticklabels():
            label.set_color(INK)
        axes.set_ylim(0.4, len(rows) + 0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel(axis_label)

    return _picture(draw, 0.36 * len(rows) + 0.9, title)


def split_plot(rows: Sequence[BarRow]) -> str:
    """Return the two parts of every source's log gain: more tokens a round, and faster or slower rounds."""

    def draw(axes: Axes) -> None:
        for place, row in zip(range(len(rows), 0, -1), rows, strict=True):
            axes.barh(place + 0.16, row.tokens_part, height=0.3, color=ARM_B)
            axes.barh(place - 0.16, row.speed_part, height=0.3, color=MUTED)
            axes.scatter([row.tokens_part + row.speed_part], [place], marker="D", s=34, color=INK, zorder=4)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(list(range(len(rows), 0, -1)), [row.label for row in rows])
        for label in axes.get_yticklabels():
            label.set_color(INK)
        axes.set_ylim(0.4, len(rows) + 0.6)
        axes.set_xlabel("100 x log change, B against A")

    return _picture(draw, 0.36 * len(rows) + 0.9, "Throughput split")


def _picture(draw: Callable[[Axes], None], height_in: float, title: str) -> str:
    """Return one drawn picture as inline SVG with a title for screen readers."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height_in))
        axes = figure.add_axes((0.19, 0.5 / height_in, 0.79, 1 - 0.62 / height_in))
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return _themed(target.getvalue(), title)


def _themed(svg: str, title: str) -> str:
    """Return the svg element alone, colours as CSS variables, ids of its own, sized by the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for placeholder, name in _VARIABLES.items():
        svg = svg.replace(placeholder, f"var(--{name})")
    prefix = re.sub(r"[^a-z]+", "-", title.lower())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    head, rest = svg.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{title}"><title>{title}</title>{rest}'
