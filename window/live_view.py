"""A running window as something to look at: a panel for a terminal, single lines for everything else.

Builds, never prints, and holds only the last events; dropping it changes nothing. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from window.progress import ProgressEvent

__all__ = ["LiveView", "PlainLines", "clock_text"]

KEPT_LINES = 6


def clock_text(nanoseconds: int) -> str:
    """Return a duration as minutes and seconds."""
    seconds = max(0, nanoseconds) // 1_000_000_000
    return f"{seconds // 60}:{seconds % 60:02d}"


def _place(event: ProgressEvent) -> str:
    """Return block and stage in words."""
    return f"{event.block} {event.stage}" if event.block else event.stage


def _finished_line(event: ProgressEvent) -> str:
    """Return one line for something that is over."""
    time = clock_text(event.elapsed_ns)
    if event.run_id:
        rate = event.tokens * 1e9 / event.stage_elapsed_ns if event.stage_elapsed_ns else 0.0
        return (
            f"{time}  run {event.run_number}/{event.run_count} {event.run_id}: {event.outcome}, "
            f"{event.tokens} tokens in {event.rounds} rounds, {rate:.1f} tokens/s"
        )
    return f"{time}  {_place(event)}: {event.outcome}"


@dataclass(slots=True)
class PlainLines:
    """Turns events into lines without control characters: one a stage and one a finished run."""

    _last_place: str = ""

    def line(self, event: ProgressEvent) -> str | None:
        """Return the line for an event, None when it says nothing new."""
        if event.outcome:
            return _finished_line(event)
        if event.run_id or _place(event) == self._last_place:
            return None
        self._last_place = _place(event)
        left = clock_text(event.budget_ns - event.elapsed_ns)
        return f"{clock_text(event.elapsed_ns)}  {_place(event)} (at most {left} left)"


@dataclass(slots=True)
class LiveView:
    """The last event as bars, the last finished things as lines."""

    _event: ProgressEvent | None = None
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def take(self, event: ProgressEvent) -> None:
        """Keep an event."""
        self._event = event
        if event.outcome:
            self._lines.append(_finished_line(event))

    def render(self) -> RenderableType:
        """Return what to show now."""
        event = self._event
        if event is None:
            return Text("preparing the registration")
        bars = Table.grid(padding=(0, 1))
        bars.add_column(no_wrap=True, min_width=12)
        bars.add_column(width=32)
        bars.add_column(no_wrap=True)
        bars.add_row("window", _bar(event.elapsed_ns, event.budget_ns), _times(event.elapsed_ns, event.budget_ns))
        name = event.run_id or _place(event)
        bars.add_row(
            name,
            _bar(event.stage_elapsed_ns, event.stage_budget_ns),
            _times(event.stage_elapsed_ns, event.stage_budget_ns),
        )
        if event.run_id:
            bars.add_row("runs", _bar(event.run_number, event.run_count), f"{event.run_number} of {event.run_count}")
            bars.add_row("", Text(f"{event.tokens} tokens in {event.rounds} rounds", style="dim"), "")
        heading = Text.assemble(("A/B window  ", "bold"), _place(event))
        return Group(heading, bars, Text("\n".join(self._lines), style="dim"))


def _bar(done: int, total: int) -> ProgressBar:
    """Return a bar; past its budget it is full."""
    return ProgressBar(total=max(total, 1), completed=min(done, max(total, 1)), width=32)


def _times(done_ns: int, total_ns: int) -> str:
    """Return elapsed and budget."""
    return f"{clock_text(done_ns)} of {clock_text(total_ns)}" if total_ns else clock_text(done_ns)
