"""The rational reference: an exact method emits p over the whole round, and named wrong rules do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.exact_law import (
    CONTINUOUS_RULE,
    JointLaw,
    Law,
    Prefix,
    RowLaw,
    ceil_rule,
    completed_law,
    emitted_law,
    residual_law,
    target_joint_law,
    total_variation,
)

Tables = Mapping[Prefix, Law]


def law_from(weights: list[int]) -> Law:
    total = sum(weights)
    return {token: Fraction(weight, total) for token, weight in enumerate(weights) if weight}


@st.composite
def rounds(draw: st.DrawFn, arm: str) -> tuple[int, int, Tables, Tables]:
    """Depth, usable depth, and q and p rows that depend on the drafted prefix."""
    vocabulary = draw(st.integers(2, 5))
    depth = draw(st.integers(1, 2))
    usable = draw(st.integers(0, depth))
    weights = st.lists(st.integers(0, 7), min_size=vocabulary, max_size=vocabulary).filter(lambda row: sum(row) > 0)
    prefixes: list[Prefix] = [()] + [(x,) for x in range(vocabulary)]
    prefixes += [(x, y) for x in range(vocabulary) for y in range(vocabulary)]
    token = st.integers(0, vocabulary - 1)
    drafts: dict[Prefix, Law] = {
        prefix: {draw(token): Fraction(1)} if arm == "A" else law_from(draw(weights)) for prefix in prefixes
    }
    return depth, usable, drafts, {prefix: law_from(draw(weights)) for prefix in prefixes}


def endless(tables: Tables) -> RowLaw:
    return lambda prefix: tables[prefix[:2]]


@pytest.mark.parametrize("arm", ["A", "B"])
def test_the_emitted_law_of_a_round_is_the_target_law_exactly(arm: str) -> None:
    @given(rounds(arm))
    @settings(max_examples=120, deadline=None)
    def holds(case: tuple[int, int, Tables, Tables]) -> None:
        depth, usable, drafts, targets = case
        emitted = emitted_law(depth, usable, endless(drafts), endless(targets), CONTINUOUS_RULE)
        assert sum(emitted.values()) == 1
        length = depth + 1
        whole = completed_law(emitted, endless(targets), length)
        assert whole == target_joint_law(endless(targets), length)

    holds()


P, Q = law_from([6, 3, 1]), law_from([2, 3, 5])


def first_token(emitted: JointLaw) -> list[Fraction]:
    law = completed_law(emitted, lambda _: P, 1)
    return [law.get((token,), Fraction(0)) for token in range(3)]


def test_replacing_from_p_instead_of_the_residual_is_told_by_its_exact_law() -> None:
    right = emitted_law(1, 1, lambda _: Q, lambda _: P, CONTINUOUS_RULE)
    planted: JointLaw = {(x, y): Q[x] * min(Fraction(1), P[x] / Q[x]) * P[y] for x in P for y in P}
    refused = 1 - sum(planted.values())
    for token in P:
        planted[(token,)] = refused * P[token]
    assert first_token(right) == [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
    assert first_token(planted) == [Fraction(44, 100), Fraction(42, 100), Fraction(14, 100)]


def test_a_rule_that_accepts_too_often_is_told_apart() -> None:
    planted = replace(CONTINUOUS_RULE, acceptance=lambda p, q: min(Fraction(1), 2 * p / q))
    emitted = emitted_law(1, 1, lambda _: Q, lambda _: P, planted)
    assert first_token(emitted) != [P[token] for token in range(3)]


def test_the_continuous_limit_of_the_ceil_rule_is_the_continuous_rule() -> None:
    exact = emitted_law(2, 2, lambda _: Q, lambda _: P, CONTINUOUS_RULE)
    distances = [
        total_variation(exact, emitted_law(2, 2, lambda _: Q, lambda _: P, ceil_rule(bits, bits, bits, 2)))
        for bits in (2, 8, 24, 100)
    ]
    assert distances[0] > distances[1] > distances[2] > distances[3] > 0
    assert distances[3] < Fraction(1, 2**96)


def test_the_residual_holds_only_what_p_has_over_q() -> None:
    assert residual_law(P, Q) == {0: Fraction(4, 10)}
    assert residual_law(P, P) == {}


def test_total_variation_counts_what_only_one_law_has() -> None:
    assert total_variation({(0,): Fraction(1)}, {(1,): Fraction(1)}) == 1
    assert total_variation({(0,): Fraction(1)}, {(0,): Fraction(1)}) == 0


def test_a_usable_depth_beyond_the_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="usable_depth is 2"):
        emitted_law(1, 2, lambda _: Q, lambda _: P, CONTINUOUS_RULE)
