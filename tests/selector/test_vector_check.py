"""Files of vectors: every backend equals them; one changed number anywhere is the difference that is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specbed
from selector.backends.law_rows import LawRow, compiled_rows, numpy_rows
from selector.backends.vector_check import (
    Backend,
    BackendUnavailable,
    backends_here,
    check_data,
    check_lines,
    check_vectors,
)
from selector.draft_law import DraftCounts, draft_law
from selector.law_vectors import COUNT_ERROR, LawVectors, case_difference, read_vectors

VECTORS = Path(__file__).parent.parent / "data" / "draft_law_v1.json"
TEXT = VECTORS.read_text(encoding="ascii")
WHOLE = read_vectors(TEXT)
# The narrow cases of every kind, so that the interpreter is quick.
SMALL = WHOLE.model_copy(update={"cases": tuple(case for case in WHOLE.cases if len(case.logits_f32_hex) <= 2100)})
FAST = (Backend("numpy", numpy_rows), Backend("compiled", compiled_rows))


def changed(**of_case: Any) -> LawVectors:
    """Return the vectors with fields of one valid case replaced."""
    document = json.loads(TEXT)
    document["cases"][0].update(of_case)
    return read_vectors(json.dumps(document))


def case_zero() -> dict[str, Any]:
    return dict(json.loads(TEXT)["cases"][0])


def test_every_backend_that_runs_here_equals_the_vectors() -> None:
    check = check_vectors(SMALL, backends_here())
    ran = {result.name: result for result in check.results if result.unavailable is None}
    assert {"numpy reference", "compiled CPU", "Triton kernels, interpreted"} <= set(ran)
    assert {result.rows for result in ran.values()} == {2 * len(SMALL.cases)}
    assert [result.first for result in ran.values() if result.first] == []
    assert check.exit_code == 0


def test_the_whole_file_equals_reference_and_compiled_code() -> None:
    assert check_vectors(WHOLE, FAST).exit_code == 0


@pytest.mark.parametrize("place", [0, 1, 17, 31])
@pytest.mark.parametrize("step", [-1, 1, 7])
def test_one_changed_count_is_a_mismatch_that_names_the_case(place: int, step: int) -> None:
    counts = list(case_zero()["floor_counts"])
    counts[place] += step
    check = check_vectors(changed(floor_counts=counts), FAST)
    assert check.exit_code == 1
    first = check.results[0].first
    assert first is not None
    assert first.startswith("case normal-0, whole row: the file's floor_counts and remainder sum to")
    assert f"count {place} " in first or place == 0


@pytest.mark.parametrize("place", [1, 31])
def test_a_changed_count_whose_remainder_was_mended_is_a_mismatch(place: int) -> None:
    case = case_zero()
    counts = list(case["floor_counts"])
    counts[place] += 1
    check = check_vectors(changed(floor_counts=counts, remainder=case["remainder"] - 1), FAST)
    assert check.exit_code == 1
    assert f"count {place} (token {case['ids'][place]}) is {counts[place] - 1}" in str(check.results[0].first)


def test_a_count_that_the_error_bound_excuses_is_no_mismatch_and_a_first_count_follows_it() -> None:
    case = WHOLE.cases[0]
    law = draft_law(case.logits())
    assert isinstance(law, DraftCounts)
    counts = list(case.floor_counts)
    counts[5] += 1
    distances = list(case.distance_to_integer)
    distances[5] = COUNT_ERROR
    excused = case.model_copy(
        update={"floor_counts": tuple(counts), "remainder": case.remainder - 1, "distance_to_integer": tuple(distances)}
    )
    assert case_difference(excused, law) is None
    distances[5] = COUNT_ERROR * 1.01
    refused = excused.model_copy(update={"distance_to_integer": tuple(distances)})
    assert "count 5 " in str(case_difference(refused, law))


def test_swapped_or_missing_candidates_and_validity_are_mismatches() -> None:
    ids = list(case_zero()["ids"])
    swapped = [ids[1], ids[0], *ids[2:]]
    assert "candidate 0 is token 114" in str(check_vectors(changed(ids=swapped), FAST).results[0].first)
    law = draft_law(WHOLE.cases[0].logits())
    invalid = next(case for case in WHOLE.cases if case.invalid)
    assert case_difference(invalid, law) == "the file has an invalid row, the law is valid"
    assert case_difference(WHOLE.cases[0], draft_law(invalid.logits())) == "the row is invalid, the file has a law"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("counts", lambda law: replace(law, counts=(law.counts[0] - 1, *law.counts[1:-1], law.counts[-1] + 1))),
        ("ids", lambda law: replace(law, ids=law.ids[::-1])),
        ("token", lambda law: replace(law, token=law.token + 1)),
        ("digest", lambda law: replace(law, digest=law.digest ^ 1)),
        ("status", lambda law: replace(law, status=1)),
    ],
)
def test_a_backend_that_differs_in_one_field_of_one_row_is_named(field: str, change: Any) -> None:
    def planted(rows: Sequence[NDArray[np.float32]], shards: int) -> list[LawRow]:
        laws = numpy_rows(rows, shards)
        if shards == 2:
            laws[3] = change(laws[3])
        return laws

    check = check_vectors(WHOLE, (FAST[0], Backend("planted", planted)))
    assert check.exit_code == 1
    assert check.results[1].mismatches == 1
    assert str(check.results[1].first).startswith(f"case {WHOLE.cases[3].name}, 2 shards: {field}")


def test_a_backend_that_breaks_is_a_mismatch_and_one_that_is_not_here_is_not_a_pass() -> None:
    def broken(rows: Sequence[NDArray[np.float32]], shards: int) -> list[LawRow]:
        raise ZeroDivisionError("planted")

    def absent(rows: Sequence[NDArray[np.float32]], shards: int) -> list[LawRow]:
        raise BackendUnavailable("no such device")

    check = check_vectors(SMALL, (*FAST, Backend("broken", broken), Backend("absent", absent)))
    assert check.exit_code == 1
    assert check_lines(check)[-2:] == [
        "broken: 1 MISMATCHES, the first: it failed, ZeroDivisionError: planted",
        "absent: not run (no such device)",
    ]
    assert check_vectors(SMALL, (Backend("absent", absent),)).exit_code == 1
    assert check_data(check)["exit_code"] == 1


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.update(law="top32/tau0.7"), "law is 'top32/tau0.7', this check knows top32"),
        (lambda d: d.update(grid=1), "grid is 1, must be 16777216"),
        (lambda d: d.update(cases=[]), "cases: "),
        (lambda d: d["cases"][0].pop("ids"), "must be of one length"),
        (lambda d: d["cases"][0].update(logits_f32_hex="3f69"), "logits_f32_hex"),
        (lambda d: d["cases"][0].update(extra=1), "extra"),
        (lambda d: d["cases"][1].update(name="normal-0"), "two cases have one name"),
        (lambda d: d["cases"][0]["floor_counts"].__setitem__(0, "7"), "floor_counts"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_place(edit: Any, words: str) -> None:
    document = json.loads(TEXT)
    edit(document)
    with pytest.raises(ValueError, match=words):
        read_vectors(json.dumps(document))


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(TEXT[:1000], encoding="ascii")
    assert specbed.main(["selector", "check", "--vectors", str(cut)]) == 65
    assert "is no file of vectors: Invalid JSON" in capsys.readouterr().err
    assert specbed.main(["selector", "check", "--vectors", str(tmp_path / "none.json")]) == 65
    assert "cannot be read: No such file" in capsys.readouterr().err
