"""Law ids: each names one law, and no text is taken for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.draw_depth import law_id_of
from ranks.records import DraftMode
from selector.draft_law import LAW_ID
from selector.law_ids import (
    EXACT_LAW_ID,
    GREEDY_LAW_ID,
    DraftLaw,
    LawFamily,
    law_number,
    law_of_id,
    pruned_law_id,
)


def test_the_plans_law_has_the_plans_name() -> None:
    assert EXACT_LAW_ID == LAW_ID == "top32/tau0.7/dyadic24-floor-first-v1"
    assert law_of_id(EXACT_LAW_ID) == DraftLaw(EXACT_LAW_ID, LawFamily.EXACT)


def test_the_ranks_declare_the_exact_and_the_one_hot_law() -> None:
    assert law_id_of(DraftMode.SAMPLED) == EXACT_LAW_ID
    assert law_of_id(law_id_of(DraftMode.GREEDY)) == DraftLaw(GREEDY_LAW_ID, LawFamily.GREEDY)


@given(st.integers(1, 64), st.integers(0, 16))
def test_a_pruned_id_gives_its_numbers_back_and_is_never_the_exact_law(width: int, grid_bits: int) -> None:
    law_id = pruned_law_id(width, grid_bits)
    assert law_of_id(law_id) == DraftLaw(law_id, LawFamily.PRUNED, width, grid_bits)
    assert law_number(law_id) != law_number(EXACT_LAW_ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "top32",
        f" {EXACT_LAW_ID}",
        f"{EXACT_LAW_ID}\n",
        f"pruned/{EXACT_LAW_ID}",
        f"pruned0-grid12/{EXACT_LAW_ID}",
        f"pruned032-grid12/{EXACT_LAW_ID}",
        f"pruned32-grid17/{EXACT_LAW_ID}",
        f"pruned65-grid12/{EXACT_LAW_ID}",
        f"pruned32-grid12/{EXACT_LAW_ID}x",
        f"pruned\u0663-grid12/{EXACT_LAW_ID}",
    ],
)
def test_any_other_text_names_no_law(text: str) -> None:
    with pytest.raises(ValueError, match="names no draft law; there are top32"):
        law_of_id(text)


@pytest.mark.parametrize(("width", "grid_bits"), [(0, 12), (65, 12), (32, -1), (32, 17)])
def test_a_pruned_law_out_of_range_has_no_id(width: int, grid_bits: int) -> None:
    with pytest.raises(ValueError, match=r"must be in 1 \.\. 64 and 0 \.\. 16"):
        pruned_law_id(width, grid_bits)
