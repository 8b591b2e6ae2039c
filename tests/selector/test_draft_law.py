"""The draft law: counts, draws by enumeration of the whole grid, digests, shard merge."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.draft_law import (
    GRID,
    TOP_K,
    DraftCounts,
    InvalidReason,
    InvalidRow,
    counts_of,
    counts_of_rows,
    draft_law,
    draw_indices,
    draw_token,
    merge_candidates,
    one_hot,
    shard_candidates,
)

FINITE = st.floats(-30, 30, width=32)
COARSE = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.25, 5.0])


def law_of(values: Sequence[float]) -> DraftCounts:
    law = draft_law(np.array(values, dtype=np.float32))
    assert isinstance(law, DraftCounts)
    return law


def random_rows() -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(20_24)
    rows = [rng.normal(scale=scale, size=500) for scale in (0.1, 1.0, 4.0)]
    rows += [rng.integers(0, 4, size=80).astype(np.float64), np.zeros(40), np.array([3.0]), np.array([1.0, 0.5, 0.5])]
    rows += [np.array([0.0, -11.6, -11.7, -20.0, -200.0]), np.linspace(0, -14, 32), np.full(32, 9.0)]
    return [row.astype(np.float32) for row in rows]


def drawn_counts(law: DraftCounts) -> list[int]:
    """Every one of the 2^24 draws, through the code that draws."""
    seen = np.zeros(len(law.token_ids), dtype=np.int64)
    for start in range(0, GRID, 1 << 21):
        indices = draw_indices(law, np.arange(start, start + (1 << 21), dtype=np.int64))
        seen += np.bincount(indices, minlength=len(seen))
    return [int(count) for count in seen]


@pytest.mark.parametrize("row", random_rows())
def test_all_draws_of_the_grid_give_the_counts_back(row: NDArray[np.float32]) -> None:
    law = law_of(row.tolist())
    assert drawn_counts(law) == law.counts.tolist()


def test_a_draw_that_includes_its_upper_bound_would_be_caught_by_enumeration() -> None:
    law = law_of([1.0, 0.5, 0.5])
    draws = np.arange(GRID, dtype=np.int64)
    planted = np.bincount(np.searchsorted(np.cumsum(law.counts), draws, side="left"), minlength=3)
    assert planted.tolist() != law.counts.tolist()
    assert drawn_counts(law) == law.counts.tolist()


@given(st.lists(FINITE, min_size=1, max_size=60))
@settings(deadline=None)
def test_every_boundary_draw_picks_the_token_that_owns_it(values: list[float]) -> None:
    law = law_of(values)
    end = 0
    for token, count in zip(law.token_ids.tolist(), law.counts.tolist(), strict=True):
        if count:
            assert draw_token(law, end) == token
            assert draw_token(law, end + count - 1) == token
        end += count
    assert end == GRID


@given(st.lists(st.one_of(FINITE, COARSE), min_size=1, max_size=60).filter(lambda row: max(row) > -np.inf))
@settings(deadline=None)
def test_counts_are_the_floor_of_the_real_value_and_the_first_takes_the_rest(values: list[float]) -> None:
    law = law_of(values)
    logits = np.array(values, dtype=np.float32)[law.token_ids].tolist()
    with localcontext(prec=60):
        weights = [((Decimal(logit) - Decimal(logits[0])) * 10 / 7).exp() for logit in logits]
        total = sum(weights)
        real = [weight / total * GRID for weight in weights]
        for count, value in zip(law.counts.tolist()[1:], real[1:], strict=True):
            assert count <= value + Decimal(2) ** -6
            assert count > value - 1 - Decimal(2) ** -6
    assert law.counts.sum() == GRID
    assert law.counts[0] >= law.counts.max()
    assert (law.counts >= 0).all()


@given(
    st.lists(st.one_of(FINITE, COARSE, st.sampled_from([np.nan, np.inf])), min_size=2, max_size=90),
    st.integers(0, 90),
)
@settings(deadline=None)
def test_two_shards_give_the_law_of_the_whole_row(values: list[float], cut: int) -> None:
    cut = 1 + cut % (len(values) - 1)
    row = np.array(values, dtype=np.float32)
    whole = draft_law(row)
    merged = merge_candidates([shard_candidates(row[:cut], 0), shard_candidates(row[cut:], cut)])
    if isinstance(whole, InvalidRow):
        assert merged == whole
    else:
        assert not isinstance(merged, InvalidRow)
        law = counts_of(merged)
        assert law.token_ids.tolist() == whole.token_ids.tolist()
        assert law.counts.tolist() == whole.counts.tolist()


def test_a_batch_of_padded_rows_gives_the_counts_of_each_row_alone() -> None:
    rows = [law_of(row.tolist()) for row in random_rows()]
    padded = np.full((len(rows), TOP_K), -np.inf, dtype=np.float32)
    for index, (law, row) in enumerate(zip(rows, random_rows(), strict=True)):
        padded[index, : len(law.token_ids)] = row[law.token_ids]
    counts = counts_of_rows(padded)
    for index, law in enumerate(rows):
        assert counts[index, : len(law.counts)].tolist() == law.counts.tolist()
        assert not counts[index, len(law.counts) :].any()


def test_counts_from_float32_sums_would_differ_and_be_caught() -> None:
    rng = np.random.default_rng(7)
    caught = 0
    for _ in range(40):
        row = rng.normal(scale=2.0, size=200).astype(np.float32)
        law = law_of(row.tolist())
        logits = row[law.token_ids]
        weights = np.exp((logits - logits[0]) / np.float32(0.7), dtype=np.float32)
        planted = np.floor(weights / weights.sum(dtype=np.float32) * np.float32(GRID)).astype(np.int64)
        planted[0] += GRID - planted.sum()
        caught += int(planted.tolist() != law.counts.tolist())
    assert caught > 0


def test_a_count_of_zero_is_lawful_and_no_draw_picks_it() -> None:
    law = law_of([0.0, -11.7, -20.0])
    assert law.counts.tolist() == [GRID, 0, 0]
    assert {draw_token(law, draw) for draw in (0, 1, GRID // 2, GRID - 1)} == {0}
    assert law.count_of(1) == 0
    assert law.count_of(99) == 0


def test_equal_logits_share_the_grid_equally_and_the_first_takes_the_rest() -> None:
    assert law_of([2.0, 2.0, 2.0]).counts.tolist() == [GRID // 3 + 1, GRID // 3, GRID // 3]


def test_a_greedy_draft_has_the_whole_grid_on_its_token() -> None:
    law = one_hot(163_839)
    assert drawn_counts(law) == [GRID]
    assert draw_token(law, GRID - 1) == 163_839


@pytest.mark.parametrize("draw", [-1, GRID])
def test_a_draw_outside_the_grid_is_refused(draw: int) -> None:
    with pytest.raises(ValueError, match="draw is"):
        draw_token(one_hot(3), draw)


def test_counts_of_nothing_are_refused_because_such_a_row_is_invalid() -> None:
    empty = shard_candidates(np.full(4, -np.inf, dtype=np.float32), 0)
    with pytest.raises(ValueError, match="merge_candidates tells"):
        counts_of(empty)
    assert draft_law(np.full(4, -np.inf, dtype=np.float32)) == InvalidRow(InvalidReason.NONE_FINITE)
