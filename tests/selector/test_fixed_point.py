"""Fixed-point weights: constants, error bound, no overflow, batch invariance."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector import fixed_point
from selector.fixed_point import EXPONENT_SCALE, LN2_Q36, WEIGHT_BITS, WEIGHT_TABLE, weights_of


def nearest(value: Decimal) -> int:
    return int(value.to_integral_value(rounding=ROUND_HALF_EVEN))


def test_the_constants_are_the_correctly_rounded_ones() -> None:
    with localcontext(prec=90):
        logarithm = Decimal(2).ln()
        assert float(1 / logarithm / Decimal("0.7")) == EXPONENT_SCALE
        assert nearest(logarithm * 2**36) == LN2_Q36


def test_the_table_is_the_correctly_rounded_one() -> None:
    with localcontext(prec=90):
        exact = [nearest(Decimal(2) ** (WEIGHT_BITS - Decimal(step) / 256)) for step in range(256)]
    assert WEIGHT_TABLE.tolist() == exact


def test_the_table_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        WEIGHT_TABLE[0] = 1


def exact_weight(distance: float) -> Decimal:
    return Decimal(2) ** WEIGHT_BITS * (Decimal(distance) * -10 / 7).exp()


@given(st.lists(st.floats(0, 30, width=32), min_size=1, max_size=31))
@settings(max_examples=150, deadline=None)
def test_every_weight_is_within_the_stated_error(distances: list[float]) -> None:
    weights = weights_of(np.array([0.0, *(-distance for distance in distances)], dtype=np.float32))
    with localcontext(prec=60):
        for distance, weight in zip([0.0, *distances], weights.tolist(), strict=True):
            exact = exact_weight(distance)
            assert abs(weight - exact) <= exact * Decimal(2) ** -31 + 1


def test_a_dropped_cubic_term_would_exceed_the_stated_error() -> None:
    # The fine part is greatest just below a table step: distance * scale = 1/256 - tiny.
    distance = np.float32(0.99999 / 256 / EXPONENT_SCALE)
    with localcontext(prec=60):
        loss = Decimal(float(distance)) * 10 / 7
        exact = exact_weight(float(distance))
        two_terms = Decimal(2) ** WEIGHT_BITS * (1 - loss + loss**2 / 2)
        assert abs(two_terms - exact) > exact * Decimal(2) ** -31 + 1
        weight = int(weights_of(np.array([0.0, -distance], dtype=np.float32))[1])
        assert abs(weight - exact) <= exact * Decimal(2) ** -31 + 1


def test_no_intermediate_product_can_overflow() -> None:
    fine = (1 << 24) - 1
    first = (fine * LN2_Q36) >> 30
    assert fine * LN2_Q36 < 1 << 63
    assert first * first < 1 << 63
    loss = int(fixed_point._one_minus_power(np.array(fine)))
    assert int(WEIGHT_TABLE[0]) * loss < 1 << 63
    assert int(WEIGHT_TABLE[0]) << 24 < 1 << 63


def test_equal_logits_have_equal_weights_and_the_greatest_has_the_full_one() -> None:
    weights = weights_of(np.array([3.5, 3.5, 1.25, 1.25, -0.5], dtype=np.float32))
    assert weights[0] == weights[1] == 1 << WEIGHT_BITS
    assert weights[2] == weights[3]


def test_far_and_masked_logits_have_no_weight() -> None:
    greatest = float(np.finfo(np.float32).max)
    weights = weights_of(np.array([greatest, 0.0, -greatest, -np.inf], dtype=np.float32))
    assert weights.tolist() == [1 << WEIGHT_BITS, 0, 0, 0]


@given(st.lists(st.lists(st.floats(-40, 40, width=32), min_size=5, max_size=5), min_size=1, max_size=6))
def test_a_row_has_the_same_weights_alone_and_in_a_batch(rows: list[list[float]]) -> None:
    batch = np.array(rows, dtype=np.float32)
    assert weights_of(batch).tolist() == [weights_of(row).tolist() for row in batch]
