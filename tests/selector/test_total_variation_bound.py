"""The stated bound of 2^-45 a position: each ingredient is held on its own, then added up."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.acceptance import accepts, combine_statistics, shard_statistics, target_probabilities
from selector.draft_law import GRID
from selector.philox import Words
from selector.shipped_bound import TOTAL_VARIATION_AIM, target_law_error, total_variation_bound
from selector.target_exponential import MOST_TERMS
from selector.target_masses import pick_index

VOCABULARY = 163_840
COLUMNS = 2048
TARGET_ERROR = target_law_error(COLUMNS)


def real_softmax(logits: Sequence[float]) -> list[Fraction]:
    with localcontext(prec=40):
        top = Decimal(max(logits))
        weights = [(Decimal(value) - top).exp() if value > -np.inf else Decimal(0) for value in logits]
        total = sum(weights)
        return [Fraction(weight / total) for weight in weights]


def l1_error(logits: NDArray[np.float32]) -> Fraction:
    half = logits.shape[1] // 2
    none = np.full(1, -1, dtype=np.int64)
    shards = [(logits[:, :half].copy(), 0), (logits[:, half:].copy(), half)]
    normaliser = combine_statistics(*(shard_statistics(part, first, none) for part, first in shards))
    shipped: list[float] = []
    for part, _ in shards:
        row = target_probabilities(part, normaliser)[0]
        assert row is not None
        shipped += row.tolist()
    exact = real_softmax(logits[0].tolist())
    return sum((abs(Fraction(mine) - true) for mine, true in zip(shipped, exact, strict=True)), Fraction(0))


def hostile_rows() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(45)
    near_tie = np.full(COLUMNS, -7.0) + rng.normal(scale=1e-6, size=COLUMNS)
    near_tie[1000] = 1e-9
    # Arguments halfway between two steps of the exponential, where its reduced argument is greatest.
    halfway = -(rng.integers(0, 4000, size=COLUMNS) + 0.5) * np.log(2) / 256
    return {
        "normal": rng.normal(scale=3, size=COLUMNS).astype(np.float32),
        "flat": rng.normal(scale=1e-3, size=COLUMNS).astype(np.float32),
        "offset": (rng.normal(scale=2, size=COLUMNS) + 5000).astype(np.float32),
        "inexact differences": near_tie.astype(np.float32),
        "halfway": halfway.astype(np.float32),
        "around the cut": -np.linspace(0, 1400, COLUMNS, dtype=np.float32),
        "one shard far below": np.where(np.arange(COLUMNS) < COLUMNS // 2, 0.0, -800.0).astype(np.float32),
        "masked": np.where(rng.random(COLUMNS) < 0.9, -np.inf, rng.normal(size=COLUMNS)).astype(np.float32),
        "one": np.where(np.arange(COLUMNS) == 7, 0.0, -np.inf).astype(np.float32),
    }


@pytest.mark.parametrize("name", list(hostile_rows()))
def test_the_float_target_law_is_within_its_share_of_the_real_softmax(name: str) -> None:
    assert l1_error(hostile_rows()[name][np.newaxis, :]) <= TARGET_ERROR


def test_a_target_law_in_single_precision_would_be_caught() -> None:
    logits = hostile_rows()["normal"]
    weights = np.exp(logits - logits.max())
    planted = (weights / weights.sum()).tolist()
    exact = real_softmax(logits.tolist())
    error = sum((abs(Fraction(mine) - true) for mine, true in zip(planted, exact, strict=True)), Fraction(0))
    assert error > TARGET_ERROR


@given(st.integers(1, GRID), st.floats(0, 1))
def test_acceptance_by_53_bits_errs_by_less_than_one_draw(count: int, target_prob: float) -> None:
    chance = min(Fraction(1), Fraction(target_prob) * GRID / count)
    low, high = 0, 1 << 53
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if accepts(middle, 53, count, target_prob) else (low, middle)
    assert 0 <= Fraction(low, 1 << 53) - chance < Fraction(1, 1 << 53)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_weight_is_within_half_a_unit_of_its_probability(values: list[float]) -> None:
    weights = np.rint(np.array(values) * float(1 << 63)).astype(np.uint64).tolist()
    for value, weight in zip(values, weights, strict=True):
        assert abs(weight - Fraction(value) * (1 << 63)) <= Fraction(1, 2)


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=6).filter(lambda row: sum(row) > 0))
def test_a_token_owns_its_share_of_the_64_bit_draws_to_within_one(weights: list[int]) -> None:
    array = np.array(weights, dtype=np.uint64)

    def picked(draw: int) -> int:
        words: Words = (0, 0, draw >> 32, draw & 0xFFFFFFFF)
        index = pick_index(array, words)
        assert index is not None
        return index

    owned_before = 0
    for index, weight in enumerate(weights):
        low, high = 0, 1 << 64
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if picked(middle) <= index else (low, middle)
        assert abs((low - owned_before) - Fraction(weight << 64, sum(weights))) < 1
        owned_before = low
    assert owned_before == 1 << 64


def test_the_bound_stays_below_the_aim_at_the_greatest_vocabulary() -> None:
    assert total_variation_bound(VOCABULARY) < TOTAL_VARIATION_AIM
    assert total_variation_bound(32_000) < total_variation_bound(129_280) < total_variation_bound(VOCABULARY)
    # With draws and weights of 53 bits, the within-shard share alone would exceed it.
    assert Fraction(VOCABULARY, 1 << 54) > TOTAL_VARIATION_AIM


def test_the_bound_is_the_sum_of_its_stated_terms() -> None:
    share = target_law_error(VOCABULARY)
    weights, picks, acceptance_and_masses = Fraction(VOCABULARY, 1 << 64), Fraction(VOCABULARY, 1 << 65), 2
    rest = weights + picks + Fraction(acceptance_and_masses, 1 << 53) + Fraction(1, 1 << 64)
    assert total_variation_bound(VOCABULARY) == 2 * share + rest
    assert Fraction(33, 1 << 53) < share + Fraction(1, 1 << 53) < Fraction(35, 1 << 53)


@given(st.lists(st.floats(0, 40), min_size=1, max_size=40))
def test_the_mean_distance_from_the_maximum_is_at_most_the_logarithm_of_the_size(distances: list[float]) -> None:
    exact = real_softmax([min(distances) - distance for distance in distances])
    mean = sum(share * Fraction(distance - min(distances)) for share, distance in zip(exact, distances, strict=True))
    assert mean <= Fraction(np.log(len(distances))) + Fraction(1, 10**12)


@pytest.mark.parametrize("size", [0, -1, 2 * MOST_TERMS + 1])
def test_a_vocabulary_that_no_two_shards_can_hold_has_no_bound(size: int) -> None:
    with pytest.raises(ValueError, match="vocabulary_size"):
        total_variation_bound(size)
