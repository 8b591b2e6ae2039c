"""The shipped exponential is within its stated error of the real one, and its sums do not know their order."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.target_exponential import (
    EXPONENT_LIMIT,
    EXPONENTIAL_ERROR,
    LIMB_BITS,
    MOST_TERMS,
    POWER_TABLE,
    STEP_HIGH,
    STEP_LOW,
    STEPS_PER_UNIT,
    exponential,
    limbs_of,
    orderless_sum,
    sum_of_limbs,
)

Exponential = Callable[[NDArray[np.float64]], NDArray[np.float64]]
LN2 = 0.6931471805599453


def arguments() -> NDArray[np.float64]:
    """Return random and edge arguments above the limit: halfway points, steps, the ends, tiny and float32 ones."""
    rng = np.random.default_rng(690)
    steps = np.arange(0, 254_000, 97)
    halfway = -(steps + 0.5) * LN2 / 256
    found = [
        -rng.exponential(8, size=2000),
        -rng.random(2000) * 690,
        -(10.0 ** rng.uniform(-320, 1, size=500)),
        (-rng.exponential(8, size=1000)).astype(np.float32).astype(np.float64),
        halfway,
        np.nextafter(halfway, 0.0),
        -steps * LN2 / 256,
        np.array([0.0, -0.0, -5e-324, -(2.0**-53), -(2.0**-54), np.nextafter(EXPONENT_LIMIT, 0.0)]),
    ]
    return np.concatenate(found)


def greatest_error(shipped: Exponential, points: NDArray[np.float64]) -> Fraction:
    values = shipped(points).tolist()
    with localcontext(prec=50):
        pairs = zip(values, points.tolist(), strict=True)
        return max(abs(Fraction(value) / Fraction(Decimal(point).exp()) - 1) for value, point in pairs)


def test_every_value_is_within_the_stated_error_of_the_real_exponential() -> None:
    error = greatest_error(exponential, arguments())
    assert error < EXPONENTIAL_ERROR
    # The last rounding alone comes near to it, so the statement is not idle.
    assert error > Fraction(7, 8) / (1 << 53)


def without_the_low_part_of_the_step(points: NDArray[np.float64]) -> NDArray[np.float64]:
    steps = np.rint(points * STEPS_PER_UNIT)
    return exponential(points) * (1.0 - steps * STEP_LOW)


def with_a_table_in_one_part(points: NDArray[np.float64]) -> NDArray[np.float64]:
    steps = np.rint(points * STEPS_PER_UNIT).astype(np.int64)
    reduced = (points - steps * STEP_HIGH) - steps * STEP_LOW
    return np.asarray(np.ldexp(POWER_TABLE[0][steps & 255] * (1.0 + np.expm1(reduced)), steps >> 8))


@pytest.mark.parametrize("planted", [without_the_low_part_of_the_step, with_a_table_in_one_part])
def test_an_exponential_with_a_missing_part_would_be_caught(planted: Exponential) -> None:
    points = arguments()
    assert greatest_error(planted, points[points > -600]) > EXPONENTIAL_ERROR


def test_the_constants_are_those_of_the_real_numbers() -> None:
    with localcontext(prec=80):
        step = Fraction(Decimal(2).ln()) / 256
        powers = [Fraction(Decimal(2) ** (Decimal(index) / 256)) for index in range(256)]
    assert float(1 / step) == STEPS_PER_UNIT
    assert Fraction(STEP_HIGH).numerator.bit_length() == 35
    assert float(step - Fraction(STEP_HIGH)) == STEP_LOW
    for power, high, low in zip(powers, *POWER_TABLE.tolist(), strict=True):
        assert float(power) == high
        assert float(power - Fraction(high)) == pytest.approx(low, rel=1e-15, abs=1e-70)


def test_the_ends_of_the_range_are_exact() -> None:
    values = exponential(np.array([0.0, -0.0, EXPONENT_LIMIT, -1e300, -np.inf, np.nan]))
    assert values.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert not np.signbit(values).any()
    least = exponential(np.array([np.nextafter(EXPONENT_LIMIT, 0.0)]))[0]
    assert least / MOST_TERMS > np.finfo(np.float64).tiny


def test_the_values_are_the_recorded_bits() -> None:
    # The real exponential rounded once; a backend that gives other bits holds another law.
    points = np.array([-1.0, -0.5, -10.25, -100.0, -689.5])
    expected = [
        "0x1.78b56362cef38p-2",
        "0x1.368b2fc6f960ap-1",
        "0x1.2899a7a835446p-15",
        "0x1.a8c1f14e2af5dp-145",
        "0x1.32ee449dd2e00p-995",
    ]
    assert [value.hex() for value in exponential(points).tolist()] == expected


@given(st.lists(st.floats(-700, 0), min_size=2, max_size=60))
def test_a_greater_argument_never_has_a_smaller_exponential(points: list[float]) -> None:
    values = exponential(np.sort(np.array(points)))
    assert (np.diff(values) >= 0).all()
    assert values.max() <= 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_a_sum_has_the_same_bits_in_every_order_and_grouping(terms: list[float], shuffler: object) -> None:
    straight = orderless_sum(np.array(terms))
    shuffled = list(terms)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(terms) // 3
    parts = [limbs_of(np.array(part)) for part in (shuffled[:cut], shuffled[cut:])]
    grouped = sum_of_limbs(*(sum(int(part[limb].sum()) for part in parts) for limb in (0, 1)))
    assert straight == grouped == orderless_sum(np.array(shuffled))
    exact = sum(map(Fraction, terms), Fraction(0))
    assert abs(Fraction(straight) - exact) <= exact / (1 << 52) + Fraction(len(terms), 1 << 2 * LIMB_BITS)


@given(st.floats(0, 1))
def test_the_limbs_of_a_term_fall_short_of_it_by_less_than_their_unit(term: float) -> None:
    high, low = limbs_of(np.array([term]))
    held = Fraction(int(high[0]), 1 << LIMB_BITS) + Fraction(int(low[0]), 1 << 2 * LIMB_BITS)
    assert 0 <= Fraction(term) - held < Fraction(1, 1 << 2 * LIMB_BITS)


def test_a_float_sum_changes_with_the_order_of_its_terms_and_ours_does_not() -> None:
    rng = np.random.default_rng(45)
    terms = exponential(-rng.exponential(4, size=5000))
    orders = [rng.permutation(5000) for _ in range(6)]
    assert len({float(np.cumsum(terms[order])[-1]) for order in orders}) > 1
    assert len({orderless_sum(terms[order]) for order in orders}) == 1


def test_the_most_terms_fit_and_one_more_is_refused() -> None:
    assert orderless_sum(np.ones(MOST_TERMS)) == float(MOST_TERMS)
    assert orderless_sum(np.empty(0)) == 0.0
    with pytest.raises(ValueError, match="262144 terms"):
        orderless_sum(np.ones(MOST_TERMS + 1))
