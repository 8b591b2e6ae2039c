"""The decision as a whole: four verdicts, missing data never passes, and laws that hold for any window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.window.planted import block_changed, fired, run_changed, unknown
from tests.window.registrations import MATRICES, ORDER, registration
from tests.window.scenes import Scene, scene
from window.decision import Verdict, decide, exit_code_of
from window.dispositions import Disposition, DispositionEffect
from window.exact_numbers import decimal_text, geometric_gain_text, percent_text
from window.exit_codes import ExitCode
from window.gain import IndexMatrices
from window.records import Finding, RunRecord
from window.registration import RegistrationKind
from window.rule_result import RuleOutcome

MS = 1_000_000


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
