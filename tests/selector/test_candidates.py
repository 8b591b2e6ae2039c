"""Candidates: order of law, ties, masks, poison, and the merge of two shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.candidates import (
    TOP_K,
    InvalidReason,
    InvalidRow,
    ShardCandidates,
    merge_candidates,
    shard_candidates,
    shard_candidates_rows,
)

# Few distinct values, so that ties at the threshold and across shards are the rule.
LOGITS = st.sampled_from([-np.inf, -3.0, -0.0, 0.0, 1e-45, 0.5, 0.5000001, 7.0, 3e38])
ROWS = st.lists(LOGITS, min_size=2, max_size=120)
WILD = st.lists(st.one_of(LOGITS, st.floats(width=32)), min_size=2, max_size=120)


def naive_candidates(row: list[float]) -> list[tuple[int, float]]:
    finite = [(token, float(np.float32(value))) for token, value in enumerate(row) if value != -np.inf]
    return sorted(finite, key=lambda pair: (-pair[1], pair[0]))[:TOP_K]


def pairs_of(candidates: ShardCandidates | InvalidRow) -> list[tuple[int, float]]:
    assert isinstance(candidates, ShardCandidates)
    return list(zip(candidates.token_ids.tolist(), candidates.logits.tolist(), strict=True))


def row_of(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@given(ROWS)
def test_a_shard_lists_what_sorting_the_whole_shard_lists(values: list[float]) -> None:
    assert pairs_of(shard_candidates(row_of(values), 0)) == naive_candidates(values)


@given(ROWS, st.integers(0, 120))
def test_two_shards_merge_to_the_whole_row(values: list[float], cut: int) -> None:
    cut = 1 + cut % (len(values) - 1)
    shards = [shard_candidates(row_of(values[:cut]), 0), shard_candidates(row_of(values[cut:]), cut)]
    expected = naive_candidates(values)
    for merged in (merge_candidates(shards), merge_candidates(shards[::-1])):
        if expected:
            assert pairs_of(merged) == expected
        else:
            assert merged == InvalidRow(InvalidReason.NONE_FINITE)


@given(WILD, st.integers(0, 120))
def test_a_row_is_invalid_exactly_when_it_holds_nan_or_positive_infinity(values: list[float], cut: int) -> None:
    cut = 1 + cut % (len(values) - 1)
    merged = merge_candidates([shard_candidates(row_of(values[:cut]), 0), shard_candidates(row_of(values[cut:]), cut)])
    row = row_of(values)
    bad = bool((np.isnan(row) | (row == np.inf)).any())
    assert (merged == InvalidRow(InvalidReason.NAN_OR_POSITIVE_INFINITY)) == bad
    if not bad:
        assert isinstance(merged, InvalidRow) == (not np.isfinite(row).any())


def test_reversing_an_ascending_sort_gives_ties_to_the_higher_ids_and_would_be_caught() -> None:
    values = [1.0] * 100
    values[97] = 2.0
    row = row_of(values)
    planted = np.argsort(row, kind="stable")[::-1][:TOP_K].tolist()
    expected = [token for token, _ in naive_candidates(values)]
    assert planted != expected
    assert shard_candidates(row, 0).token_ids.tolist() == expected


def test_a_shard_that_is_all_masked_is_lawful_and_lists_nothing() -> None:
    masked = shard_candidates(np.full(50, -np.inf, dtype=np.float32), 50)
    assert not masked.poisoned
    assert len(masked.token_ids) == 0
    other = shard_candidates(row_of([1.0, 2.0]), 0)
    assert pairs_of(merge_candidates([other, masked])) == [(1, 2.0), (0, 1.0)]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("width", [3, TOP_K, 500])
def test_one_poisoned_element_poisons_its_shard_and_the_row(poison: float, width: int) -> None:
    row = np.zeros(width, dtype=np.float32)
    row[width // 2] = poison
    shard = shard_candidates(row, 0)
    assert shard.poisoned
    assert len(shard.token_ids) == 0
    healthy = shard_candidates(np.zeros(width, dtype=np.float32), width)
    assert merge_candidates([healthy, shard]) == InvalidRow(InvalidReason.NAN_OR_POSITIVE_INFINITY)


def test_a_poisoned_row_leaves_its_batch_mates_alone() -> None:
    rows = np.random.default_rng(3).normal(size=(4, 300)).astype(np.float32)
    alone = [pairs_of(shard_candidates(row, 7)) for row in rows]
    rows[2, 5] = np.nan
    batch = shard_candidates_rows(rows, 7)
    assert batch[2].poisoned
    assert [pairs_of(batch[row]) for row in (0, 1, 3)] == [alone[row] for row in (0, 1, 3)]


def test_a_nan_that_arrives_in_a_list_of_candidates_makes_the_row_invalid() -> None:
    arrived = ShardCandidates(np.array([4], dtype=np.int32), row_of([np.nan]), poisoned=False)
    assert merge_candidates([arrived]) == InvalidRow(InvalidReason.NAN_OR_POSITIVE_INFINITY)


def test_one_token_with_two_logits_makes_the_row_invalid() -> None:
    first = ShardCandidates(np.array([4, 1], dtype=np.int32), row_of([2.0, 1.0]), poisoned=False)
    second = ShardCandidates(np.array([4], dtype=np.int32), row_of([0.5]), poisoned=False)
    assert merge_candidates([first, second]) == InvalidRow(InvalidReason.ONE_TOKEN_TWO_LOGITS)
    # Nothing stands between both entries in order of law, so comparing neighbours by id alone would take them for one.
    beside = ShardCandidates(np.array([4], dtype=np.int32), row_of([1.5]), poisoned=False)
    assert merge_candidates([first, beside]) == InvalidRow(InvalidReason.ONE_TOKEN_TWO_LOGITS)


def test_negative_zero_is_listed_as_zero_and_ties_with_it() -> None:
    shard = shard_candidates(row_of([0.0, -0.0, 0.0, -0.0]), 10)
    assert shard.token_ids.tolist() == [10, 11, 12, 13]
    assert not np.signbit(shard.logits).any()


@pytest.mark.parametrize(
    "bad", [np.zeros((0,), np.float32), np.zeros((2, 3), np.float32), np.zeros(3, np.float64), np.zeros(3, np.int32)]
)
def test_logits_of_another_shape_or_dtype_are_refused(bad: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="shard_logits"):
        shard_candidates(bad, 0)


def test_a_merge_of_nothing_and_a_negative_first_token_are_refused() -> None:
    with pytest.raises(ValueError, match="no shards"):
        merge_candidates([])
    with pytest.raises(ValueError, match="first_token_id is -1"):
        shard_candidates(np.zeros(3, np.float32), -1)
