"""The decision: every rule fires on its planted fault and on nothing else, and nothing missing ever passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks.records import RequestResult, RequestStatus
from ranks.verdict import DepthReason
from tests.window.scenes import (
    MATRICES,
    ORDER,
    ROUND_NS,
    Scene,
    lost,
    registration,
    scene,
)
from window.decision import Decision, Verdict, decide, exit_code_of
from window.dispositions import Disposition, DispositionEffect, RejectReason
from window.exact_numbers import decimal_text, geometric_gain_text, percent_text
from window.exit_codes import ExitCode
from window.gain import IndexMatrices, ratio_of_sums
from window.records import BlockReceipt, Finding, PrimeRecord, RoundFault, RunRecord
from window.registration import RegistrationKind
from window.rejects import CORRUPTION_REASONS
from window.rule_result import RuleOutcome
from window.rules import CellThroughputRule

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


def test_a_window_in_which_every_rule_holds_is_a_candidate_but_reduced_is_never_promotable() -> None:
    decision = scene().decide()
    assert decision.verdict is Verdict.CANDIDATE
    assert not decision.promotable
    assert "never promotable" in decision.stamp
    assert "separate" in decision.headline
    assert exit_code_of(decision, opened=True) is ExitCode.CANDIDATE


def test_only_a_full_plan_is_promotable() -> None:
    decision = Scene(registration(RegistrationKind.PLAN)).decide()
    assert (decision.verdict, decision.promotable) == (Verdict.CANDIDATE, True)


def test_the_same_window_is_decided_the_same_and_another_matrix_is_refused() -> None:
    window = scene()
    assert decide(window.plan, window.records(), MATRICES) == window.decide()
    other = IndexMatrices(MATRICES.families, np.zeros_like(MATRICES.sources))
    with pytest.raises(ValueError, match="not the registered"):
        decide(window.plan, window.records(), other)


# -- gain and bound --------------------------------------------------------------------------------------------


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


# -- guards ----------------------------------------------------------------------------------------------------


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
        return stalled(*run_id.split("/"), 50, 101 * MS)(run_id, result)  # type: ignore[arg-type]

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


# -- reject ----------------------------------------------------------------------------------------------------


def faulty(reason: str) -> Scene:
    """Return a window in which one measured round lost its drafts for a reason."""
    return scene(edit_run=run_changed("B2/f2-mid", faults=(RoundFault(reason=reason, rounds=1),)))


REJECTS: list[tuple[RejectReason, Scene]] = [
    (RejectReason.Q_LAW, faulty("frame_missing")),
    (RejectReason.Q_LAW, scene(edit_run=run_changed("B1/f1-long", disposition_reason="q_x_mismatch"))),
    (
        RejectReason.TARGET_LAW,
        scene(edit_run=run_changed("A1/f1-long", disposition_reason="target row 1 is not finite")),
    ),
    (RejectReason.GREEDY_IDENTITY, scene(greedy_outcome="MISMATCH")),
    (RejectReason.STOP, scene(edit_run=run_changed("A2/f1-short", tokens_after_stop=1, delivered_tokens=4999))),
    (RejectReason.LIFECYCLE, scene(edit_run=run_lost("B1/f1-short", Disposition.ENGINE_FAILED))),
    (RejectReason.LIFECYCLE, scene(edit_run=run_lost("B1/f1-short", Disposition.WATCHDOG))),
    (RejectReason.LIFECYCLE, scene(edit_run=run_lost("B1/f1-short", Disposition.TRANSPORT_FAILED))),
    (RejectReason.LIFECYCLE, scene(edit_block=block_changed("B2", survivors=(4242,)))),
    (RejectReason.LIFECYCLE, scene(edit_block=block_changed("A2", outcome="FAILED", failure="died"))),
    (RejectReason.CORRUPTION, faulty("frame_damaged")),
    (RejectReason.RECOVERY, scene(edit_run=run_changed("B2/f1-mid", epochs_survived=1))),
    (RejectReason.RECOVERY, scene(restored=False)),
    (RejectReason.LOST_REQUEST, scene(edit_run=run_lost("A1/f1-short", Disposition.LOST))),
    (RejectReason.POLICY_OR_WEIGHT_MISMATCH, scene(edit_block=block_changed("B1", mismatches=("weights differ",)))),
    (RejectReason.POLICY_OR_WEIGHT_MISMATCH, scene(edit_run=run_changed("B1/f1-mid", rounds_off_depth=1))),
    (RejectReason.POLICY_OR_WEIGHT_MISMATCH, scene(edit_run=run_changed("A1/f1-mid", rounds_with_wrong_q=2))),
]


@pytest.mark.parametrize(("reason", "window"), REJECTS)
def test_each_reason_to_reject_fires_on_its_planted_fault_and_alone_among_reasons(
    reason: RejectReason, window: Scene
) -> None:
    decision = window.decide()
    assert decision.verdict is Verdict.REJECT
    assert [name for name in fired(decision) if name.startswith("reject/")] == [f"reject/{reason}"]
    assert f"reject/{reason}" in decision.headline


def test_a_structured_mismatch_rejects_a_full_plan_and_cannot_be_shown_by_a_reduced_one() -> None:
    window = Scene(registration(RegistrationKind.PLAN))
    records = window.records()
    assert records.smoke is not None
    results = tuple(
        result.model_copy(update={"outcome": "MISMATCH", "first_difference": 2})
        if result.part == "structured"
        else result
        for result in records.smoke.results
    )
    bad = replace(records, smoke=records.smoke.model_copy(update={"results": results}))
    assert fired(decide(window.plan, bad, MATRICES)) == ["reject/grammar"]
    assert scene().decide().rule("reject/grammar").outcome is RuleOutcome.NOT_REGISTERED


def test_a_prefix_that_is_not_held_exactly_is_a_mismatch() -> None:
    def short(receipt: BlockReceipt) -> BlockReceipt:
        first = receipt.primes[0]
        odd = PrimeRecord(**{**first.model_dump(), "occupied_tokens": first.occupied_tokens - 1})
        return receipt.model_copy(update={"primes": (odd, *receipt.primes[1:])}) if receipt.block == "B1" else receipt

    assert fired(scene(edit_block=short).decide()) == ["reject/policy_or_weight_mismatch"]


def test_every_reason_why_a_round_loses_drafts_rejects() -> None:
    for reason in DepthReason:
        if reason is DepthReason.NONE:
            continue
        wanted = RejectReason.CORRUPTION if reason in CORRUPTION_REASONS else RejectReason.Q_LAW
        assert fired(faulty(reason.value).decide()) == [f"reject/{wanted}"]


def test_a_lost_request_in_the_first_block_rejects_a_window_that_was_cut_there() -> None:
    plan = registration()

    def cut(run: RunRecord) -> RunRecord | None:
        if run.run_id == "A1/f1-short":
            return lost(plan, run, Disposition.LOST, "no answer")
        return lost(plan, run, Disposition.NOT_ADMITTED, "unexplained_failure")

    decision = scene(edit_run=cut, edit_block=lambda receipt: receipt if receipt.block == "A1" else None).decide()
    assert decision.verdict is Verdict.REJECT
    assert "reject/lost_request" in fired(decision)


# -- completeness ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (lambda run: True, "all"),
        (lambda run: run.order_index >= 3, "half"),
        (lambda run: run.run_id == "A2/f2-long", "one run"),
        (lambda run: run.source_id.startswith("f2"), "one family"),
    ],
)
def test_a_window_that_lost_data_is_never_better_than_inconclusive(
    gone: Callable[[RunRecord], bool], words: str
) -> None:
    decision = scene(edit_run=lambda run: None if gone(run) else run).decide()
    assert decision.verdict is Verdict.INCONCLUSIVE, words
    assert "complete/runs" in unknown(decision)


@pytest.mark.parametrize("disposition", list(Disposition))
def test_every_disposition_has_the_effect_that_is_registered_for_it(disposition: Disposition) -> None:
    plan = registration()
    decision = scene(edit_run=run_changed("B1/f2-mid", disposition=disposition)).decide()
    wanted = {
        DispositionEffect.COMPLETE: Verdict.CANDIDATE,
        DispositionEffect.INCOMPLETE: Verdict.INCONCLUSIVE,
        DispositionEffect.REJECT_LIFECYCLE: Verdict.REJECT,
        DispositionEffect.REJECT_LOST_REQUEST: Verdict.REJECT,
    }
    assert decision.verdict is wanted[plan.rules.effect_of(disposition)]


@pytest.mark.parametrize(
    ("window", "rule"),
    [
        (scene(smoke=False), "complete/smoke"),
        (scene(greedy_outcome="INCOMPLETE"), "complete/smoke"),
        (scene(edit_block=lambda receipt: None if receipt.block == "B2" else receipt), "complete/blocks"),
        (scene(edit_block=block_changed("B2", outcome="TRUNCATED", failure="block_over_limit")), "complete/blocks"),
        (scene(edit_block=block_changed("A1", primes=())), "complete/blocks"),
        (scene(edit_block=block_changed("A1", warm_up=None)), "complete/blocks"),
    ],
)
def test_a_missing_part_is_unknown_and_never_a_pass(window: Scene, rule: str) -> None:
    decision = window.decide()
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert rule in unknown(decision)


@pytest.mark.parametrize(
    "edit",
    [
        run_changed("B1/f1-mid", seed=12),
        run_changed("B1/f1-mid", order_index=0),
        run_changed("B1/f1-mid", complete_rounds=49),
        run_changed("B1/f1-mid", delivered_tokens=1),
        run_changed("B1/f1-mid", run_id="B1/f3-mid"),
        run_changed("B1/f1-mid", request_digest="0" * 64),
        run_changed("B1/f1-mid", run_id="A1/f1-mid", block="A1"),
    ],
)
def test_records_that_contradict_the_registration_or_each_other_fail_the_evidence(
    edit: Callable[[RunRecord], RunRecord],
) -> None:
    decision = scene(edit_run=edit).decide()
    assert decision.evidence_failed
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert exit_code_of(decision, opened=True) is ExitCode.EVIDENCE_FAILED


def test_a_finding_from_outside_fails_the_evidence() -> None:
    window = scene()
    records = replace(window.records(), findings=(Finding(where="journal", what="torn"),))
    assert fired(decide(window.plan, records, MATRICES)) == ["evidence"]


def test_a_window_that_was_never_opened_is_no_go() -> None:
    decision = scene(opened=False).decide()
    assert decision.verdict is Verdict.NO_GO
    assert exit_code_of(decision, opened=False) is ExitCode.NO_GO


def test_an_unrestored_pair_speaks_before_the_verdict() -> None:
    assert exit_code_of(scene(restored=False).decide(), opened=True) is ExitCode.RESTORE_ESCALATED


# -- laws ------------------------------------------------------------------------------------------------------


def test_changing_accepted_drafts_while_tokens_and_times_stay_changes_no_verdict() -> None:
    window = scene(edit_run=lambda run: run.model_copy(update={"accepted": 0}))
    assert [(rule.rule, rule.outcome) for rule in window.decide().rules] == [
        (rule.rule, rule.outcome) for rule in scene().decide().rules
    ]


def test_doubling_every_round_changes_no_bound() -> None:
    percents = dict(zip(ORDER, (10, 8, 6, 9, 7, 5), strict=True))
    # Twice as many rounds after the first one, so that every rate stays what it is.
    once = scene(percent=percents, rounds_per_run=51).decide()
    twice = scene(percent=percents, rounds_per_run=101).decide()
    assert once.rule("bound/lower") == twice.rule("bound/lower")
    assert once.rule("gain/point") == twice.rule("gain/point")


@settings(max_examples=25)
@given(st.lists(st.integers(-20, 40), min_size=6, max_size=6))
def test_a_candidate_implies_that_every_registered_rule_passed(percents: list[int]) -> None:
    decision = scene(percent=dict(zip(ORDER, percents, strict=True)), rounds_per_run=45).decide()
    if decision.verdict is Verdict.CANDIDATE:
        assert {rule.outcome for rule in decision.rules} <= {RuleOutcome.PASS, RuleOutcome.NOT_REGISTERED}
        assert min(percents) > -20
    else:
        assert fired(decision) or unknown(decision)


def test_the_limits_text_carries_the_window_s_own_numbers_and_no_claim_beyond_them() -> None:
    decision = scene(percent=dict(zip(registration().source_grid(), (10, 8, 6, 9, 7, 5), strict=True))).decide()
    assert "(+6.99 %)" in decision.limits
    assert "one window of four" in decision.limits
    assert "not independent" in decision.design
    everything = decision.model_dump_json().lower()
    assert "randomised" not in everything
    assert "p-value" not in everything


def test_printed_numbers_are_rounded_and_never_in_exponent_form() -> None:
    assert decimal_text(Fraction(1, 3)) == "0.3333"
    assert decimal_text(Fraction(-1, 10**9)) == "0.0000"
    assert percent_text(Fraction(21, 20)) == "+5.00 %"
    assert geometric_gain_text(Fraction(21, 20) ** 6, 6) == "+5.00 %"
    assert percent_text(Fraction(9, 10)) == "-10.00 %"
