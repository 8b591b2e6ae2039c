"""Comparing sampled ids: exactly as far as both were sampled, and never into the padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from window.token_compare import compare_sampled_rows

IDS = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
PADDING = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)


@given(IDS, PADDING, PADDING)
def test_rows_with_equal_samples_are_equal_whatever_stands_behind_them(
    ids: list[int], padding_a: list[int], padding_b: list[int]
) -> None:
    compared = compare_sampled_rows(ids + padding_a, len(ids), ids + padding_b, len(ids))
    assert compared.equal
    assert compared.compared == len(ids)


@given(IDS, PADDING, st.data())
def test_one_unequal_sample_is_found_though_all_padding_is_equal(
    ids: list[int], padding: list[int], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids[:place], ids[place] + 1, *ids[place + 1 :]]
    compared = compare_sampled_rows(ids + padding, len(ids), other + padding, len(ids))
    assert not compared.equal
    assert compared.first_difference == place


def test_poisoned_padding_is_not_read_on_either_side() -> None:
    row_a, row_b = [4, 9, 2, -1, -1], [4, 9, 2, 777, 778]
    assert compare_sampled_rows(row_a, 3, row_b, 3).equal
    assert not compare_sampled_rows(row_a, 4, row_b, 4).equal


def test_equal_padding_does_not_hide_a_row_that_ended_early() -> None:
    compared = compare_sampled_rows([4, 9, 0, 0], 2, [4, 9, 0, 0], 3)
    assert not compared.equal
    assert compared.first_difference == 2


def test_a_count_beyond_the_row_is_refused() -> None:
    with pytest.raises(ValueError, match="row B has 2 ids but claims 3"):
        compare_sampled_rows([1, 2, 3], 3, [1, 2], 3)
