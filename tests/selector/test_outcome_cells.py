"""Cell bounds: they hold for sound counts, fire on wrong ones, and say what they would catch."""

from __future__ import annotations

from math import comb, inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.outcome_cells import (
    bernoulli_divergence,
    find_deviations,
    log_bound,
    pool_cells,
    smallest_caught_shift,
)


@given(samples=st.integers(1, 60), probability=st.floats(0.01, 0.99))
def test_the_bound_is_above_the_exact_binomial_tail_for_every_sample_size(samples: int, probability: float) -> None:
    threshold = log_bound(0.02, 1)
    refused = sum(
        comb(samples, count) * probability**count * (1 - probability) ** (samples - count)
        for count in range(samples + 1)
        if find_deviations({"cell": probability}, {"cell": count}, samples, threshold)
    )
    assert refused <= 0.02


def test_a_cell_that_cannot_happen_is_red_at_its_first_count() -> None:
    assert bernoulli_divergence(0.1, 0.0) == inf
    assert find_deviations({"never": 0.0}, {"never": 1}, 10_000, 1e6)
    assert not find_deviations({"never": 0.0}, {}, 10_000, 0.0)


def test_a_cell_without_counts_counts_as_zero() -> None:
    assert find_deviations({"often": 0.5}, {}, 1000, log_bound(1e-6, 10))


@given(probability=st.floats(0.001, 0.6), samples=st.integers(200, 20_000))
def test_the_shift_that_is_said_to_be_caught_is_caught(probability: float, samples: int) -> None:
    threshold = log_bound(1e-6, 100)
    shift = smallest_caught_shift(probability, samples, threshold)
    assert 0.0 < shift <= 1.0
    if shift < 1.0:
        shifted = probability + shift
        expected = round(samples * shifted)
        assert find_deviations({"cell": probability}, {"cell": expected}, samples, threshold)


def test_more_samples_catch_a_smaller_shift() -> None:
    threshold = log_bound(1e-6, 1000)
    shifts = [smallest_caught_shift(0.1, samples, threshold) for samples in (200, 2000, 20_000)]
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[-1] < 0.03 < shifts[0]


def test_pooling_looks_at_probabilities_only() -> None:
    assert pool_cells({"a": 0.5, "b": 0.009, "c": 0.491}, 0.01) == {"a": 0.5, "c": 0.491}


@pytest.mark.parametrize(("observed", "law"), [(0.5, 0.5), (0.0, 0.0), (1.0, 1.0)])
def test_equal_laws_have_no_divergence(observed: float, law: float) -> None:
    assert isclose(bernoulli_divergence(observed, law), 0.0)
