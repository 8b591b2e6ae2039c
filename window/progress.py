"""What a running window tells whoever watches: values only, never a text and never a question back.

Source: DESIGN section 7, "progress with time left".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from window.arms import BlockName

__all__ = ["ProgressEvent", "ProgressListener"]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Where the window stands. Elapsed times and budgets in ns; `run_number` counts from 1, 0 outside a run.

    `outcome` is set once a stage or run is over: a disposition, or a word.
    """

    stage: str
    block: BlockName | None
    run_id: str
    run_number: int
    run_count: int
    rounds: int
    tokens: int
    elapsed_ns: int
    budget_ns: int
    stage_elapsed_ns: int
    stage_budget_ns: int
    outcome: str


ProgressListener = Callable[[ProgressEvent], None]
