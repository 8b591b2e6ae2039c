"""Measuring a run: delivered tokens, the time they took, the open round, and a disposition for every end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.records import RequestResult, RequestStatus
from tests.window.registrations import STOP_TOKEN, registration
from tests.window.scenes import answer, identity
from window.dispositions import Disposition
from window.measure import columns_of, measure_run, rounds_digest, run_without_result
from window.records import RunRecord
from window.stages import SECOND_NS

PLAN = registration()
MS = 1_000_000
BUDGET = PLAN.run.time_budget_ns


def measured(result: RequestResult, **changes: Any) -> RunRecord:
    """Return the record of an answer in block B1."""
    return measure_run(replace(identity(PLAN, "B1", "f1-short"), **changes), result)[0]


def cut(durations_ns: tuple[int, ...], open_age_ns: int | None = None) -> RequestResult:
    """Return an answer that the deadline cut; what is left of its budget was spent after the last round."""
    return answer(
        durations_ns=durations_ns,
        emitted=3,
        sampled=True,
        status=RequestStatus.DEADLINE,
        finished_ns=MS + BUDGET,
        open_round_age_ns=open_age_ns,
    )


def test_tokens_and_time_begin_after_the_first_token_round() -> None:
    record = measured(answer(durations_ns=(90 * MS, 40 * MS, 50 * MS), emitted=3, sampled=True))
    assert (record.decode_tokens, record.decode_time_ns) == (6, 90 * MS)
    assert record.delivered_tokens == 9
    assert record.ttft_ns == 90 * MS
    assert record.complete_rounds == 3


def test_an_open_round_as_young_as_the_longest_one_leaves_tokens_and_time() -> None:
    rounds = (100 * MS,) * ((BUDGET // MS - 100) // 100)
    record = measured(cut(rounds))
    assert record.disposition is Disposition.CENSORED_DEADLINE
    assert record.open_round_ns == 100 * MS
    assert not record.open_round_kept
    assert record.decode_time_ns == 100 * MS * (len(rounds) - 1)


def test_an_open_round_older_than_every_complete_one_stays_in_the_time() -> None:
    rounds = (100 * MS,) * 10
    record = measured(cut(rounds, open_age_ns=BUDGET - 1000 * MS))
    assert record.open_round_kept
    assert record.decode_time_ns == 900 * MS + (BUDGET - 1000 * MS)
    assert record.decode_tokens == 27


def test_a_stall_that_the_bed_does_not_name_stays_in_the_time_too() -> None:
    record = measured(cut((100 * MS,) * 10, open_age_ns=None))
    assert record.open_round_kept
    assert record.open_round_ns == BUDGET - 1000 * MS


def test_an_answer_that_comes_after_the_deadline_ends_its_clock_at_the_deadline() -> None:
    late = replace(cut((100 * MS,) * 10), finished_ns=MS + BUDGET + 5 * SECOND_NS)
    assert measured(late).open_round_ns == BUDGET - 1000 * MS


def test_a_run_without_a_single_round_keeps_its_whole_time_and_has_no_first_token() -> None:
    record = measured(cut(()))
    assert (record.decode_tokens, record.decode_time_ns, record.ttft_ns) == (0, BUDGET, None)


def test_a_failed_run_keeps_its_clock_running_until_the_failure() -> None:
    result = answer(
        durations_ns=(100 * MS,) * 3,
        emitted=2,
        sampled=True,
        status=RequestStatus.FAILED,
        failure="watchdog: silent",
        finished_ns=MS + 350 * MS,
    )
    record = measured(result)
    assert record.decode_time_ns == 250 * MS
    assert record.disposition is Disposition.WATCHDOG


def test_tokens_behind_a_stop_never_count() -> None:
    result = answer(durations_ns=(50 * MS,) * 3, emitted=2, sampled=True, status=RequestStatus.EOS)
    record = measured(replace(result, token_ids=(5, 5, 5, STOP_TOKEN, 5, 5)))
    assert (record.delivered_tokens, record.tokens_after_stop, record.decode_tokens) == (4, 2, 2)


@pytest.mark.parametrize(
    ("status", "failure", "wanted"),
    [
        (RequestStatus.EOS, "", Disposition.EOS),
        (RequestStatus.BUDGET, "", Disposition.BUDGET),
        (RequestStatus.DEADLINE, "", Disposition.CENSORED_DEADLINE),
        (RequestStatus.CANCELED, "asked", Disposition.CANCELED_CLIENT),
        (RequestStatus.FAILED, "watchdog", Disposition.WATCHDOG),
        (RequestStatus.FAILED, "link closed", Disposition.TRANSPORT_FAILED),
        (RequestStatus.FAILED, "state_digest in 3 attempts", Disposition.ENGINE_FAILED),
    ],
)
def test_every_status_has_its_disposition(status: RequestStatus, failure: str, wanted: Disposition) -> None:
    result = answer(durations_ns=(50 * MS,) * 3, emitted=2, sampled=True, status=status, failure=failure)
    assert measured(result).disposition is wanted


def test_a_deadline_that_a_wall_brought_nearer_is_canceled_by_the_plan() -> None:
    assert measured(cut((100 * MS,) * 10), granted_ns=BUDGET - 1).disposition is Disposition.CANCELED_PLAN


def test_a_round_at_another_depth_or_with_the_other_arm_s_q_is_counted() -> None:
    result = answer(durations_ns=(50 * MS,) * 3, emitted=2, sampled=True)
    rows = result.rounds
    odd = replace(result, rounds=(replace(rows[0], drafted=4), replace(rows[1], q_frames=0), rows[2]))
    record = measured(odd)
    assert (record.rounds_off_depth, record.rounds_with_wrong_q) == (1, 1)
    assert measured(result, sampled_drafts=False).rounds_with_wrong_q == 3


def test_lost_drafts_are_counted_by_reason() -> None:
    result = answer(durations_ns=(50 * MS,) * 3, emitted=2, sampled=True)
    rows = result.rounds
    odd = replace(result, rounds=(rows[0], replace(rows[1], reason="late"), replace(rows[2], reason="late")))
    assert [(fault.reason, fault.rounds) for fault in measured(odd).faults] == [("late", 2)]


def test_a_run_that_was_never_sent_has_a_record_without_times() -> None:
    record = run_without_result(identity(PLAN, "A2", "f2-long"), Disposition.NOT_ADMITTED, "block_over_limit")
    assert (record.run_id, record.admitted_ns, record.decode_time_ns) == ("A2/f2-long", None, 0)


@given(st.lists(st.integers(1, 10**9), max_size=30), st.integers(1, 9))
def test_no_round_is_ever_dropped_and_their_times_add_up(durations: list[int], emitted: int) -> None:
    result = answer(durations_ns=tuple(durations), emitted=emitted, sampled=True)
    record, rounds = measure_run(identity(PLAN, "B2", "f1-mid"), result)
    columns = columns_of(rounds)
    assert list(columns.duration_ns) == durations
    assert record.decode_time_ns == sum(durations[1:])
    assert int(columns.emitted.sum()) == record.delivered_tokens
    assert record.rounds_sha256 == rounds_digest(rounds)
