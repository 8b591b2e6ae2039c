"""The bootstraps: frozen indices, exact percentiles, and the worked values of the registered readings."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from window.bootstrap import BootstrapBound, enumerated_counts, lower_bound, sampled_counts
from window.errors import WindowError
from window.exact_numbers import geometric_gain_text, product, quantile_rank
from window.index_matrix import draw_index_matrix, matrix_bytes, matrix_digest, read_index_matrix

LEVEL = Fraction("0.05")
FAMILIES_DIGEST = "c9eb4250f50e74871d84a31f8c5d577fdbe4d6c87beb5692850d87758997496b"
SOURCES_DIGEST = "07e1adfc5d24e320025baab45257775ab9f12e49bd6a99b918e133dbb77e404e"


def ratios(*percents: int) -> list[Fraction]:
    """Return 1 + percent/100 for each."""
    return [1 + Fraction(percent, 100) for percent in percents]


def both_bounds(six: list[Fraction]) -> tuple[BootstrapBound, BootstrapBound]:
    """Return the registered family and source bounds for six ratios, family by family."""
    families = [product(six[:3]), product(six[3:])]
    by_family = lower_bound(families, 3, sampled_counts(draw_index_matrix(2, 2000, 4103)), LEVEL)
    by_source = lower_bound(six, 1, sampled_counts(draw_index_matrix(6, 2000, 4103)), LEVEL)
    return by_family, by_source


def one_decimal(bound: BootstrapBound) -> str:
    """Return the bound as a gain in percent with one decimal."""
    return geometric_gain_text(bound.ratio_product, bound.factors, 1)


@pytest.mark.parametrize(("groups", "digest"), [(2, FAMILIES_DIGEST), (6, SOURCES_DIGEST)])
def test_the_index_matrices_have_the_frozen_digests(groups: int, digest: str) -> None:
    assert matrix_digest(draw_index_matrix(groups, 2000, 4103)) == digest


def test_another_seed_gives_another_digest() -> None:
    assert matrix_digest(draw_index_matrix(6, 2000, 4104)) != SOURCES_DIGEST


def test_a_stored_matrix_with_one_changed_byte_is_refused() -> None:
    stored = bytearray(matrix_bytes(draw_index_matrix(6, 2000, 4103)))
    assert read_index_matrix(bytes(stored), 6, 2000, SOURCES_DIGEST).shape == (2000, 6)
    stored[17] ^= 1
    with pytest.raises(WindowError, match="not the registered one"):
        read_index_matrix(bytes(stored), 6, 2000, SOURCES_DIGEST)


WORKED = [
    ((20, 5, -5, 20, 5, -5), "+6.2 %", "+6.2 %", "-0.1 %"),
    ((15, 15, 15, -1, -1, -1), "+6.7 %", "-1.0 %", "+1.5 %"),
    ((10, 8, 6, 9, 7, 5), "+7.5 %", "+7.0 %", "+6.3 %"),
    ((12, 9, 2, 6, 3, -1), "+5.1 %", "+2.6 %", "+2.3 %"),
    ((8, 8, 8, 8, 8, 8), "+8.0 %", "+8.0 %", "+8.0 %"),
]


@pytest.mark.parametrize(("percents", "point", "family", "source"), WORKED)
def test_the_enumerated_bounds_have_the_worked_values(
    percents: tuple[int, ...], point: str, family: str, source: str
) -> None:
    six = ratios(*percents)
    by_family = lower_bound([product(six[:3]), product(six[3:])], 3, enumerated_counts(2), LEVEL)
    by_source = lower_bound(six, 1, enumerated_counts(6), LEVEL)
    assert geometric_gain_text(product(six), 6, 1) == point
    assert one_decimal(by_family) == family
    assert one_decimal(by_source) == source


@pytest.mark.parametrize(("percents", "point", "family", "source"), WORKED)
def test_the_registered_draw_gives_the_worked_values_up_to_one_neighbouring_value(
    percents: tuple[int, ...], point: str, family: str, source: str
) -> None:
    by_family, by_source = both_bounds(ratios(*percents))
    assert one_decimal(by_family) == family
    # 2,000 draws put the fourth window's percentile on the next value below the enumerated one (2.15 against 2.26).
    assert one_decimal(by_source) == ("+2.1 %" if percents == (12, 9, 2, 6, 3, -1) else source)


def test_six_equal_gains_are_reported_as_degenerate() -> None:
    by_family, by_source = both_bounds(ratios(8, 8, 8, 8, 8, 8))
    assert by_family.degenerate
    assert by_source.degenerate
    assert by_source.share_of_bound == 1


def test_the_lower_family_atom_has_the_known_share_of_the_registered_draw() -> None:
    by_family, _ = both_bounds(ratios(-1, -1, -1, 15, 15, 15))
    assert by_family.distinct_values == 3
    assert abs(by_family.share_of_bound - Fraction(245, 1000)) < Fraction(1, 1000)


def test_the_enumerations_have_4_and_46656_outcomes() -> None:
    assert sum(enumerated_counts(2).values()) == 4
    everything = enumerated_counts(6)
    assert sum(everything.values()) == 46_656
    assert len(everything) == 462


def test_the_exact_family_bound_is_the_smaller_family() -> None:
    six = ratios(12, 9, 2, 6, 3, -1)
    bound = lower_bound([product(six[:3]), product(six[3:])], 3, enumerated_counts(2), LEVEL)
    assert bound.ratio_product == product(six[3:]) ** 2


def test_a_ratio_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        lower_bound([Fraction(0), Fraction(1)], 1, enumerated_counts(2), LEVEL)


@given(st.lists(st.integers(50, 200), min_size=3, max_size=3), st.integers(1, 99))
def test_the_enumerated_bound_equals_the_quantile_of_all_ordered_resamples(percents: list[int], level: int) -> None:
    three = [Fraction(percent, 100) for percent in percents]
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    values = sorted(prod((three[int(i)] for i in row), start=Fraction(1)) for row in grid)
    wanted = values[quantile_rank(27, Fraction(level, 100)) - 1]
    bound = lower_bound(three, 1, enumerated_counts(3), Fraction(level, 100))
    assert bound.ratio_product == wanted


@given(st.integers(1, 500), st.integers(1, 1000))
def test_the_quantile_rank_agrees_with_numpy_inverted_cdf(count: int, per_mille: int) -> None:
    level = Fraction(per_mille, 1000)
    rank = quantile_rank(count, level)
    assert Fraction(rank, count) >= level
    assert rank == 1 or Fraction(rank - 1, count) < level
