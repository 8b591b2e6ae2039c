"""How a decision is read, and edits that plant one fault into a scripted window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.window.registrations import registration
from tests.window.scenes import lost
from window.decision import Decision
from window.dispositions import Disposition
from window.records import BlockReceipt, RunRecord
from window.rule_result import RuleOutcome

MS = 1_000_000


def fired(decision: Decision) -> list[str]:
    """Return the names of the rules that fired."""
    return [rule.rule for rule in decision.rules if rule.outcome is RuleOutcome.FIRED]


def unknown(decision: Decision) -> list[str]:
    """Return the names of the rules that could not be judged."""
    return [rule.rule for rule in decision.rules if rule.outcome is RuleOutcome.UNKNOWN]


def run_changed(run_id: str, /, **changes: Any) -> Callable[[RunRecord], RunRecord]:
    """Return an edit of one run record."""
    return lambda run: run.model_copy(update=changes) if run.run_id == run_id else run


def block_changed(name: str, /, **changes: Any) -> Callable[[BlockReceipt], BlockReceipt]:
    """Return an edit of one block receipt."""
    return lambda receipt: receipt.model_copy(update=changes) if receipt.block == name else receipt


def run_lost(run_id: str, disposition: Disposition, reason: str = "planted") -> Callable[[RunRecord], RunRecord]:
    """Return an edit that takes the answer of one run away."""
    plan = registration()
    return lambda run: lost(plan, run, disposition, reason) if run.run_id == run_id else run
