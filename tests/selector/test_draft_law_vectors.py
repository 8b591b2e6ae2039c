"""The draft law against values in real arithmetic from an independent program."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.draft_law import GRID, LAW_ID, DraftCounts, InvalidRow, draft_law

VECTORS = Path(__file__).parent.parent / "data" / "draft_law_v1.json"
SHA256 = "b0f7a896361a390d57beaa810c1325c5b45e68a10cd5dde63365a9d41b08128a"

DOCUMENT: dict[str, Any] = json.loads(VECTORS.read_text(encoding="ascii"))
CASES: list[dict[str, Any]] = DOCUMENT["cases"]
VALID = [case for case in CASES if not case.get("invalid")]
INVALID = [case for case in CASES if case.get("invalid")]


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


def law_of(case: dict[str, Any]) -> DraftCounts | InvalidRow:
    # The hexadecimal digits of each float32 are written most significant byte first.
    row = np.frombuffer(bytes.fromhex(case["logits_f32_hex"]), dtype=">f4").astype(np.float32)
    return draft_law(row)


def departures(case: dict[str, Any], token_ids: list[int], counts: list[int]) -> list[str]:
    """Say in words where a law departs from a vector, by the vectors' own rule."""
    found = []
    if token_ids != case["ids"]:
        found.append("ids or their order")
    if sum(counts) != GRID:
        found.append("total")
    floors = [counts[0] - case["remainder"], *counts[1:]]
    pairs = zip(floors, case["floor_counts"], case["distance_to_integer"], strict=True)
    for index, (floor, expected, distance) in enumerate(pairs):
        # The first count also takes the remainder, so every other count that is off by one moves it too.
        allowance = 1 if distance < 0.5 else 0
        if abs(floor - expected) > (allowance if index else max(allowance, len(counts) - 1)):
            found.append(f"count {index}")
    return found


def test_the_vectors_are_the_registered_file_and_law() -> None:
    assert hashlib.sha256(VECTORS.read_bytes()).hexdigest() == SHA256
    assert DOCUMENT["law"] == LAW_ID
    assert DOCUMENT["grid"] == GRID
    assert (len(VALID), len(INVALID)) == (36, 9)


@pytest.mark.parametrize("case", VALID, ids=name_of)
def test_ids_order_total_and_counts_agree_with_real_arithmetic(case: dict[str, Any]) -> None:
    law = law_of(case)
    assert isinstance(law, DraftCounts)
    assert departures(case, law.token_ids.tolist(), law.counts.tolist()) == []


def test_every_count_is_the_very_floor_count_in_these_vectors() -> None:
    for case in VALID:
        law = law_of(case)
        assert isinstance(law, DraftCounts)
        assert (law.counts.tolist()[0] - case["remainder"], *law.counts.tolist()[1:]) == tuple(case["floor_counts"])


@pytest.mark.parametrize("case", INVALID, ids=name_of)
def test_rows_without_a_law_are_invalid_and_never_raise(case: dict[str, Any]) -> None:
    assert isinstance(law_of(case), InvalidRow)


@pytest.mark.parametrize("case", [case for case in VALID if len(case["ids"]) > 1], ids=name_of)
def test_a_changed_count_or_order_or_total_is_detected(case: dict[str, Any]) -> None:
    law = law_of(case)
    assert isinstance(law, DraftCounts)
    ids, counts = law.token_ids.tolist(), law.counts.tolist()
    moved = [counts[0] - 2, *counts[1:-1], counts[-1] + 2]
    assert f"count {len(counts) - 1}" in departures(case, ids, moved)
    assert "total" in departures(case, ids, [counts[0] + 1, *counts[1:]])
    assert departures(case, [ids[1], ids[0], *ids[2:]], counts) == ["ids or their order"]
