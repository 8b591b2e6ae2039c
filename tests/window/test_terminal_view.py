"""What a person at a terminal sees of a window while it runs and when it is over."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from window.decision import Decision, Verdict
from window.progress import ProgressEvent
from window.registration import RegistrationKind
from window.rule_result import RuleOutcome, RuleResult, operand
from window.terminal_view import OUTCOME_STYLES, is_milestone, progress_text, rule_table

RUNNING = ProgressEvent(
    stage="decode",
    block="B1",
    run_id="B1/f1-short",
    run_number=7,
    run_count=24,
    rounds=52,
    tokens=171,
    elapsed_ns=83_900_000_000,
    budget_ns=240_000_000_000,
    stage_elapsed_ns=1_240_000_000,
    stage_budget_ns=3_500_000_000,
    outcome="",
)


def rule(name: str, group: str, outcome: RuleOutcome) -> RuleResult:
    return RuleResult(
        rule=name,
        group=group,
        operands=(operand("gain", "+6.10 %"), operand("runs", "24/24")),
        threshold="at least +5.00 %",
        outcome=outcome,
        reason="",
        records=(),
    )


def decision_with(*rules: RuleResult) -> Decision:
    return Decision(
        format="specbed-decision-1",
        window_id="0" * 64,
        kind=RegistrationKind.REDUCED,
        verdict=Verdict.INCONCLUSIVE,
        promotable=False,
        stamp="REDUCED",
        headline="",
        design="",
        limits="",
        evidence_failed=False,
        restored=True,
        findings=(),
        rules=rules,
    )


def test_a_running_line_shows_time_against_the_wall_block_stage_run_and_tokens() -> None:
    assert progress_text(RUNNING) == (
        "1:23 of 4:00 | block B1 | decode 1.2 s of 3.5 s | run 7/24 f1-short | 52 rounds, 171 tokens"
    )


def test_a_stage_outside_blocks_and_runs_shows_no_empty_parts() -> None:
    event = replace(RUNNING, stage="restore", block=None, run_number=0, rounds=0, stage_budget_ns=0, outcome="RESTORED")
    assert progress_text(event) == "1:23 of 4:00 | restore 1.2 s | RESTORED"


def test_a_plain_log_shows_beginnings_and_endings_and_no_tick_between() -> None:
    assert is_milestone(RUNNING, None)
    assert not is_milestone(replace(RUNNING, rounds=53, tokens=175), RUNNING)
    assert is_milestone(replace(RUNNING, run_id="B1/f2-mid"), RUNNING)
    assert is_milestone(replace(RUNNING, stage="stop ranks"), RUNNING)
    assert is_milestone(replace(RUNNING, outcome="EOS"), RUNNING)


def test_the_table_has_a_row_for_every_rule_with_operands_threshold_and_outcome() -> None:
    decision = decision_with(*(rule(f"group/{name}", "group", name) for name in RuleOutcome))
    console = Console(file=io.StringIO(), width=120)
    console.print(rule_table(decision))
    printed = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    for outcome in RuleOutcome:
        (line,) = [row for row in printed.splitlines() if f"group/{outcome}" in row]
        assert line.split()[0] == outcome.value
        assert "at least +5.00 %" in line
        assert "gain +6.10 %, runs 24/24" in line


def test_every_outcome_has_its_own_style() -> None:
    assert set(OUTCOME_STYLES) == set(RuleOutcome)
    assert len(set(OUTCOME_STYLES.values())) == len(RuleOutcome)


def test_square_brackets_in_a_rule_are_text_and_no_markup() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(rule_table(decision_with(rule("group/[red]", "group", RuleOutcome.PASS))))
    assert isinstance(console.file, io.StringIO)
    assert "group/[red]" in console.file.getvalue()
