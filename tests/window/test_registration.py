"""The registration: canonical, closed, and refused with one sentence when it contradicts itself or the plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.window.registrations import ORDER, arm, registration, registration_fields, small_stages, source
from window.canonical import canonical_bytes, canonical_json, strict_json
from window.dispositions import Disposition, DispositionEffect, RejectReason
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.registration import Registration, RegistrationKind, parse_registration
from window.rules import DispositionRow, RejectFeed

REDUCED, PLAN = RegistrationKind.REDUCED, RegistrationKind.PLAN


def changed(path: str, value: Any, kind: RegistrationKind = REDUCED) -> bytes:
    """Return the bytes of a lawful registration with one field changed; `path` is dotted."""
    document = registration(kind).model_dump(mode="json")
    place: Any = document
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return rfc8785.dumps(document)


def test_a_registration_reads_back_equal_and_its_digest_is_the_window_id() -> None:
    plan = registration()
    again = parse_registration(canonical_bytes(plan), "r")
    assert again == plan
    assert again.window_id() == plan.window_id()


def test_the_canonical_form_is_the_one_of_rfc_8785() -> None:
    plan = registration()
    assert canonical_bytes(plan) == rfc8785.dumps(json.loads(canonical_bytes(plan)))


def test_the_full_plan_is_lawful_and_has_the_plan_s_minutes() -> None:
    plan = registration(PLAN)
    minutes = [value // 60_000_000_000 for value in plan.stages.model_dump().values()]
    assert minutes == [7, 4, 4, 3, 11, 3, 12, 3]
    assert [value // 60_000_000_000 for value in plan.walls.model_dump().values()] == [50, 60, 72, 75]


def test_every_changed_byte_of_a_value_gives_another_window_id() -> None:
    assert registration(label="another window").window_id() != registration().window_id()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("arms.1.worker_sampled_drafts", False, "one sampled switch on and one off"),
        ("arms.0.draft_law_id", "top32/tau0.7/dyadic24-floor-first-v1", "must be greedy/one-hot"),
        ("arms.1.draft_law_id", "greedy/one-hot-v1", "one-hot law"),
        ("arms.1.draft_law_id", "pruned32-grid12/top32/tau0.7/dyadic24-floor-first-v1", "exact"),
        ("arms.1.draft_law_id", "top32/tau0.7/dyadic24-floor-first-v2", "names no draft law"),
        ("arms.1.depth", 4, "same fixed depth"),
        ("arms.0.adaptive_admission", True, "adaptive_admission"),
        ("arms.0.confidence_admission", True, "confidence_admission"),
        ("arms.1.prompt_lookup", True, "prompt_lookup"),
        ("arms.1.dynamic_depth", True, "dynamic_depth"),
        ("arms.0.depth_file_reload", True, "depth_file_reload"),
        ("policy.temperature", "0.7", "temperature 1"),
        ("policy.top_p", "0.95", "top_p 1"),
        ("policy.reasoning_effort", "low", "reasoning_effort"),
        ("policy.priority", 9, "priority"),
        ("policy.context_limit_tokens", 8_192, "above context_limit_tokens"),
        ("order.0", "f2-mid", "every source exactly once"),
        ("blocks.1", "A2", "A1, B1, B2, A2"),
        ("run.time_budget_ns", 9_000_000_000, "runs need"),
        ("run.batch_size", 2, "batch_size"),
        ("run.max_new_tokens", 1_000_000, "above the reserve"),
        ("smoke.source_ids.0", "f9-short", "no registered source"),
        ("stages.block_limit_ns", 40_000_000_000, "block is cut"),
        ("stages.restore_ns", 60_000_000_000, "must fit before escalate_restore_ns"),
        ("walls.closed_ns", 231_000_000_000, "must fit before closed_ns"),
        ("walls.latest_restore_start_ns", 100_000_000_000, "walls must rise"),
        ("rules.gain.minimum_gain", "0", "above 0"),
        ("rules.ttft.maximum_ratio", "0.95", "above 1"),
        ("rules.drift.maximum_ratio", "1", "above 1"),
        ("rules.round_time.percentile", "1", "between 0 and 1"),
        ("rules.bootstrap.lower_percentile", "0", "between 0 and 1"),
        ("rules.bootstrap.quantile_rule", "linear", "quantile_rule"),
        ("rules.cell_throughput.minimum_ratio", "0", "above 0"),
        ("rules.decisions_per_registration", 2, "decisions_per_registration"),
        ("rules.order.0", "gain", "order must be"),
        ("sources.0.occupied_tokens", 0, "occupied_tokens"),
        ("sources.0.source_id", "f1-mid", "must be named"),
        ("sources.1.family_title", "", "family_title"),
        ("registered_at_utc", "yesterday", "registered_at_utc"),
        ("kind", "OTHER", "kind"),
    ],
)
def test_a_contradiction_is_refused_by_one_sentence_that_names_it(path: str, value: Any, words: str) -> None:
    with pytest.raises(WindowError, match="not valid") as caught:
        parse_registration(changed(path, value), "registration.json")
    assert words in caught.value.sentence
    assert "\n" not in caught.value.sentence
    assert caught.value.exit_code is ExitCode.BAD_DATA


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rules.round_time.minimum_rounds", 44, "at least 90 rounds"),
        ("sources.2.occupied_tokens", 32_768, "at least 150000"),
        ("sources.1.occupied_tokens", 2_048, "at least 32000"),
        ("stages.smoke_ns", 240_000_000_000, "stage budgets"),
        ("walls.stop_admission_if_overrun_ns", 3_060_000_000_000, "stage budgets"),
    ],
)
def test_a_full_plan_refuses_reduced_numbers(path: str, value: Any, words: str) -> None:
    with pytest.raises(WindowError) as caught:
        parse_registration(changed(path, value, PLAN), "r")
    assert words in caught.value.sentence


def test_a_full_plan_refuses_a_fixed_depth_of_four() -> None:
    with pytest.raises(ValueError, match="depth 5"):
        registration(PLAN, arms=(arm("A", depth=4), arm("B", depth=4)))


def test_a_full_plan_needs_all_three_smoke_parts_and_records_behind_every_reason() -> None:
    fields = registration_fields(PLAN)
    rules = fields["rules"].model_copy(
        update={
            "reject_feeds": tuple(
                RejectFeed(reason=feed.reason, records=() if feed.reason is RejectReason.Q_LAW else feed.records)
                for feed in fields["rules"].reject_feeds
            )
        }
    )
    with pytest.raises(ValueError, match="ten reasons"):
        Registration(**{**fields, "rules": rules})
    smoke = fields["smoke"].model_copy(update={"parts": ("greedy", "structured")})
    with pytest.raises(ValueError, match="greedy, failure and structured"):
        Registration(**{**fields, "smoke": smoke})


def test_an_order_that_does_not_rotate_is_refused() -> None:
    still = ("f1-short", "f1-mid", "f1-long", "f2-short", "f2-mid", "f2-long")
    with pytest.raises(ValueError, match="must rotate"):
        registration(order=still)


def test_a_missing_cell_is_refused() -> None:
    sources = tuple(source(name, 100) for name in ORDER[:-1])
    with pytest.raises(ValueError, match="one source in every context"):
        registration(sources=sources, order=ORDER[:-1])


def test_two_sources_with_one_prompt_are_refused() -> None:
    plan = registration()
    twin = plan.sources[0].model_copy(update={"prompt_tokens_sha256": plan.sources[1].prompt_tokens_sha256})
    with pytest.raises(ValueError, match="two prompts are the same"):
        registration(sources=(twin, *plan.sources[1:]))


def test_a_table_that_forgets_a_disposition_is_refused() -> None:
    document = registration().model_dump(mode="json")
    document["rules"]["dispositions"] = document["rules"]["dispositions"][1:]
    with pytest.raises(WindowError, match="ten dispositions"):
        parse_registration(rfc8785.dumps(document), "r")


def test_a_lost_request_can_never_count_as_complete() -> None:
    rules = registration().rules
    rows = tuple(
        DispositionRow(
            disposition=row.disposition,
            effect=DispositionEffect.COMPLETE if row.disposition is Disposition.LOST else row.effect,
        )
        for row in rules.dispositions
    )
    document = registration().model_dump(mode="json")
    document["rules"]["dispositions"] = [row.model_dump(mode="json") for row in rows]
    with pytest.raises(WindowError, match="may count as complete"):
        parse_registration(rfc8785.dumps(document), "r")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 0.5}',
        b'{"a": NaN}',
        b'{"a": 1e3}',
        '{"a": "e\u0301"}'.encode(),
        b'{"a": 9007199254740993}',
        b"not json",
        b"\xff",
    ],
)
def test_what_has_two_readings_is_no_document(data: bytes) -> None:
    with pytest.raises(WindowError) as caught:
        parse_registration(data, "r")
    assert caught.value.exit_code is ExitCode.BAD_DATA


def test_an_unknown_field_is_refused() -> None:
    document = registration().model_dump(mode="json")
    document["promote"] = True
    with pytest.raises(WindowError, match="promote"):
        parse_registration(rfc8785.dumps(document), "r")


PLAIN: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text("abc xyz", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_survives_its_canonical_form(value: Any) -> None:
    assert strict_json(canonical_json(value)) == value


@pytest.mark.parametrize("value", [0.5, {"é": 1}, "e\u0301", 2**53, {"a": b"x"}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"document"):
        canonical_json(value)


def test_small_stages_are_lawful_on_their_own() -> None:
    stages, walls = small_stages()
    assert walls.latest_restore_start_ns + stages.restore_ns <= walls.escalate_restore_ns
