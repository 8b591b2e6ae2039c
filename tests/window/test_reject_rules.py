"""The ten reasons to reject: each fires on its planted fault, alone, and on partial data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranks.verdict import DepthReason
from tests.window.planted import block_changed, fired, run_changed, run_lost
from tests.window.registrations import MATRICES, registration
from tests.window.scenes import Scene, lost, scene
from window.decision import Verdict, decide
from window.dispositions import Disposition, RejectReason
from window.records import BlockReceipt, PrimeRecord, RoundFault, RunRecord
from window.registration import RegistrationKind
from window.rejects import CORRUPTION_REASONS
from window.rule_result import RuleOutcome

MS = 1_000_000


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
