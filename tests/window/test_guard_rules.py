"""Guards: every cell fires alone, exactly at its threshold, and a stall can never hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ranks.records import RequestResult, RequestStatus
from tests.window.planted import fired
from tests.window.registrations import ORDER, registration
from tests.window.scenes import ROUND_NS, Scene, scene
from window.decision import Verdict
from window.rule_result import RuleOutcome

MS = 1_000_000


@pytest.mark.parametrize("source_id", ORDER)
def test_a_slower_first_token_in_one_cell_fires_only_that_guard(source_id: str) -> None:
    slow = {("B1", source_id): 105 * MS, ("B2", source_id): 105 * MS}
    assert fired(scene(ttft_ns=slow).decide()) == []
    slow[("B2", source_id)] += 1
    assert fired(scene(ttft_ns=slow).decide()) == [f"guard/ttft/{source_id}"]


def test_a_cold_first_block_is_shown_beside_the_mean_that_it_inflates() -> None:
    cold = {("A1", "f1-mid"): 400 * MS, ("B1", "f1-mid"): 150 * MS, ("B2", "f1-mid"): 150 * MS}
    rule = scene(ttft_ns=cold).decide().rule("guard/ttft/f1-mid")
    assert rule.outcome is RuleOutcome.PASS
    assert {item.name: item.value for item in rule.operands}["A1 ms"] == "400.00"


@pytest.mark.parametrize("source_id", ORDER)
def test_slower_rounds_in_one_cell_fire_only_that_guard(source_id: str) -> None:
    limit = ROUND_NS * 105 // 100
    percents = {**dict.fromkeys(ORDER, 8), source_id: 14}
    at_limit = {(block, source_id): limit for block in ("B1", "B2")}
    assert fired(scene(percent=percents, round_ns=at_limit).decide()) == []
    over = {key: value + 1 for key, value in at_limit.items()}
    assert fired(scene(percent=percents, round_ns=over).decide()) == [f"guard/round_time/{source_id}"]


@pytest.mark.parametrize(("per_run", "wanted"), [(45, RuleOutcome.PASS), (44, RuleOutcome.UNKNOWN)])
def test_ninety_rounds_an_arm_and_cell_are_enough_and_eighty_eight_are_not(per_run: int, wanted: RuleOutcome) -> None:
    decision = scene(rounds_per_run=per_run).decide()
    assert decision.rule("guard/round_time/f1-short").outcome is wanted
    assert decision.verdict is (Verdict.CANDIDATE if wanted is RuleOutcome.PASS else Verdict.INCONCLUSIVE)


def test_a_reduced_registration_may_write_down_fewer_rounds() -> None:
    assert Scene(registration(minimum_rounds=44), rounds_per_run=22).decide().verdict is Verdict.CANDIDATE


def stalled(block: str, source_id: str, rounds: int, age_ns: int) -> Callable[[str, RequestResult], RequestResult]:
    """Return an edit after which one run stalls behind some rounds until its deadline."""

    def edit(run_id: str, result: RequestResult) -> RequestResult:
        if run_id != f"{block}/{source_id}":
            return result
        kept = result.rounds[:rounds]
        end = kept[-1].released_ns + age_ns
        return replace(
            result,
            status=RequestStatus.DEADLINE,
            rounds=kept,
            token_ids=result.token_ids[: sum(row.emitted for row in kept)],
            finished_ns=end,
            open_round_age_ns=age_ns,
        )

    return edit


def test_a_round_that_stalls_until_the_deadline_stays_in_the_time_and_in_the_guard() -> None:
    healthy = scene(rounds_per_run=60).decide()
    assert healthy.verdict is Verdict.CANDIDATE
    decision = scene(rounds_per_run=60, edit_result=stalled("B1", "f1-mid", 50, 1_000 * MS)).decide()
    assert decision.verdict is Verdict.INCONCLUSIVE
    rate = {item.name: item.value for item in decision.rule("gain/cell/f1-mid").operands}
    assert rate["B1/A1"].startswith("-")


def test_an_order_statistic_of_b_that_rests_on_an_open_round_is_never_a_pass() -> None:
    def many(run_id: str, result: RequestResult) -> RequestResult:
        block, source_id = run_id.split("/")
        return stalled(block, source_id, 50, 101 * MS)(run_id, result)

    plan = registration()
    rule = plan.rules.round_time.model_copy(update={"percentile": "0.995", "minimum_rounds": 90})
    strict = registration(rules=plan.rules.model_copy(update={"round_time": rule}))
    first = {(block, name): 100 * MS for block in plan.blocks for name in ORDER}
    decision = Scene(strict, rounds_per_run=60, edit_result=many, ttft_ns=first).decide()
    assert decision.rule("guard/round_time/f1-short").outcome is RuleOutcome.UNKNOWN
    assert "still open" in decision.rule("guard/round_time/f1-short").reason


def test_a_colder_start_of_b_is_inconclusive_unless_the_registration_dropped_it() -> None:
    cold = {"B1": 736 * MS, "B2": 735 * MS}
    decision = scene(cold_ttft_ns=cold).decide()
    assert fired(decision) == ["guard/cold_ttft"]
    assert fired(scene(cold_ttft_ns={"B1": 735 * MS, "B2": 735 * MS}).decide()) == []
    plan = registration()
    ttft = plan.rules.ttft.model_copy(update={"cold_outcome": "report_only"})
    dropped = registration(rules=plan.rules.model_copy(update={"ttft": ttft}))
    rule = Scene(dropped, cold_ttft_ns=cold).decide().rule("guard/cold_ttft")
    assert rule.outcome is RuleOutcome.NOT_REGISTERED
    assert rule.operands[0].value == "1.0507"


@pytest.mark.parametrize(("block", "arm"), [("A2", "A"), ("A1", "A"), ("B2", "B"), ("B1", "B")])
def test_two_sessions_of_one_arm_more_than_five_percent_apart_are_drift_either_way(block: str, arm: str) -> None:
    percents = dict.fromkeys(ORDER, 30)
    assert f"drift/{arm}" not in fired(scene(percent=percents, session_percent={block: 5}).decide())
    assert f"drift/{arm}" in fired(scene(percent=percents, session_percent={block: 9}).decide())
