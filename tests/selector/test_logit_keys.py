"""Integer keys of logits sort exactly as the law orders candidates."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.candidates import shard_candidates
from selector.logit_keys import (
    LEAST_ORDERED,
    MASKED_KEY,
    MASKED_ORDERED,
    POISON_ORDERED,
    candidate_keys,
    keys_to_candidates,
    ordered_bits,
    poisoned_bits,
)

BITS = st.integers(0, 2**32 - 1)


def from_bits(bits: list[int]) -> NDArray[np.float32]:
    return np.array(bits, dtype=np.uint32).view(np.float32)


@given(BITS, BITS)
def test_integers_are_in_the_order_of_their_floats(first: int, second: int) -> None:
    with np.errstate(invalid="ignore"):
        pair = from_bits([first, second])
    ordered = ordered_bits(pair).tolist()
    if not np.isnan(pair).any():
        assert (ordered[0] < ordered[1]) == bool(pair[0] < pair[1])
        assert (ordered[0] == ordered[1]) == bool(pair[0] == pair[1])


@given(BITS)
def test_every_nan_and_positive_infinity_is_poisoned_and_nothing_else(bits: int) -> None:
    value = from_bits([bits])
    assert bool(poisoned_bits(ordered_bits(value))[0]) == bool(np.isnan(value[0]) or value[0] == np.inf)


def test_the_named_bounds_are_those_of_their_values() -> None:
    values = np.array([np.inf, -np.inf, np.finfo(np.float32).min], dtype=np.float32)
    assert ordered_bits(values).tolist() == [POISON_ORDERED, MASKED_ORDERED, LEAST_ORDERED]


def test_a_maximum_alone_would_miss_a_negative_nan() -> None:
    row = from_bits([0x3F800000, 0xFFC00000])
    ordered = ordered_bits(row)
    planted = bool(ordered.max() >= POISON_ORDERED)
    assert not planted
    assert poisoned_bits(ordered).any()


@given(st.lists(st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1e-45, 1.0, 3.0e38]), min_size=1, max_size=80))
def test_keys_in_descending_order_are_the_candidates_in_order_of_law(values: list[float]) -> None:
    row = np.array(values, dtype=np.float32)
    keys = np.sort(candidate_keys(row, np.arange(len(row), dtype=np.int64) + 7))[::-1]
    token_ids, logits = keys_to_candidates(keys[:32])
    expected = shard_candidates(row, 7)
    assert token_ids.tolist() == expected.token_ids.tolist()
    assert logits.tobytes() == expected.logits.tobytes()


def test_a_masked_logit_has_no_candidate() -> None:
    keys = candidate_keys(np.array([-np.inf], dtype=np.float32), np.array([0], dtype=np.int64))
    assert keys.tolist() == [MASKED_KEY]
    assert keys_to_candidates(keys)[0].tolist() == []
