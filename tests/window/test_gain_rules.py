"""Gain, bounds and drift: exact thresholds, worked windows, and the two ways to disagree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.window.planted import fired
from tests.window.registrations import ORDER, registration
from tests.window.scenes import Scene, scene
from window.decision import Verdict
from window.exact_numbers import percent_text
from window.gain import ratio_of_sums
from window.records import RunRecord
from window.rule_result import RuleOutcome
from window.rules import CellThroughputRule

MS = 1_000_000


@pytest.mark.parametrize(
    ("percents", "wanted"),
    [
        ((20, 5, -5, 20, 5, -5), ["bound/lower"]),
        ((15, 15, 15, -1, -1, -1), ["bound/lower"]),
        ((10, 8, 6, 9, 7, 5), []),
        ((12, 9, 2, 6, 3, -1), []),
        ((8, 8, 8, 8, 8, 8), []),
        ((4, 4, 4, 4, 4, 4), ["gain/point"]),
        ((0, 0, 0, 0, 0, 0), ["gain/point", "bound/lower"]),
    ],
)
def test_the_worked_windows_fire_their_known_rules(percents: tuple[int, ...], wanted: list[str]) -> None:
    grid = registration().source_grid()
    assert fired(scene(percent=dict(zip(grid, percents, strict=True))).decide()) == wanted


def test_a_gain_of_exactly_five_percent_passes_and_the_smallest_step_below_does_not() -> None:
    assert scene(percent=dict.fromkeys(ORDER, 5)).decide().rule("gain/point").outcome is RuleOutcome.PASS
    exact = scene(percent=dict.fromkeys(ORDER, 5))
    shy = replace(
        exact,
        edit_run=lambda run: (
            run.model_copy(update={"decode_time_ns": run.decode_time_ns + 1}) if run.run_id == "B1/f1-mid" else run
        ),
    )
    assert shy.decide().rule("gain/point").outcome is RuleOutcome.FIRED


def test_a_bound_of_exactly_zero_fires() -> None:
    decision = scene(percent={**dict.fromkeys(ORDER, 12), "f2-short": 0, "f2-mid": 0, "f2-long": 0}).decide()
    assert "bound/lower" in fired(decision)
    assert decision.rule("bound/lower").operands[0].value == "+0.00 %"


def test_a_degenerate_window_says_so() -> None:
    assert "degenerate" in scene().decide().rule("bound/lower").reason


def test_sampled_and_enumerated_bounds_on_different_sides_of_zero_are_inconclusive() -> None:
    # 2,000 draws put the percentile one value below the enumerated one for these gains; shift that value across 0.
    grid = registration().source_grid()
    percents = dict(zip(grid, (12, 9, 2, 6, 3, -1), strict=True))
    window = scene(percent=percents)
    shrunk = replace(window, edit_run=_slow_b_by(Fraction("1.0221")))
    assert "bound/sampled_and_exact" in fired(shrunk.decide())
    assert "bound/sampled_and_exact" not in fired(window.decide())


def _slow_b_by(factor: Fraction) -> Callable[[RunRecord], RunRecord]:
    """Return an edit that stretches the decode time of arm B."""

    def edit(run: RunRecord) -> RunRecord:
        if not run.block.startswith("B"):
            return run
        return run.model_copy(update={"decode_time_ns": int(run.decode_time_ns * factor)})

    return edit


def test_the_ratio_of_sums_has_its_worked_value_and_a_straddle_fires() -> None:
    # Gains 14, 2, -6, 13, 1, -5 percent at base rates 90, 60, 20, 85, 55, 18: 7.1 by sums, 2.9 with equal weight.
    grid = registration().source_grid()
    base = dict(zip(grid, (90, 60, 20, 85, 55, 18), strict=True))
    gains = dict(zip(grid, (14, 2, -6, 13, 1, -5), strict=True))

    def weigh(run: RunRecord) -> RunRecord:
        rate = base[run.source_id] * (100 + (gains[run.source_id] if run.block.startswith("B") else 0))
        return run.model_copy(update={"decode_tokens": rate, "decode_time_ns": 10**9})

    window = scene(edit_run=weigh)
    sums = ratio_of_sums(window.plan, window.records())
    assert sums is not None
    assert percent_text(sums, 1) == "+7.1 %"
    decision = window.decide()
    assert decision.rule("gain/point").operands[0].value == "+2.87 %"
    assert {"gain/point", "gain/ratio_of_sums"} <= set(fired(decision))


def test_a_registered_cell_guard_fires_on_a_cell_that_lost_throughput_and_an_unregistered_one_only_prints() -> None:
    percents = {**dict.fromkeys(ORDER, 20), "f1-long": -4}
    assert scene(percent=percents).decide().rule("gain/cell/f1-long").outcome is RuleOutcome.NOT_REGISTERED
    plan = registration()
    rules = plan.rules.model_copy(update={"cell_throughput": CellThroughputRule(minimum_ratio="0.97")})
    guarded = Scene(registration(rules=rules), percent=percents).decide()
    assert fired(guarded) == ["gain/cell/f1-long"]
    assert guarded.verdict is Verdict.INCONCLUSIVE
