"""Acceptance and the decision of one round: strictness, invalid rows, forced rejection, proof of failure."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.acceptance import (
    ProofOfFailure,
    RoundOutcome,
    accepts,
    combine_statistics,
    decide_round,
    shard_masses,
    shard_statistics,
)
from selector.draft_law import GRID, DraftCounts, one_hot
from selector.philox import Words
from selector.target_masses import pick_index, pick_shard_token

LOW: Words = (0, 0, 0, 0)
HIGH: Words = (2**32 - 1,) * 4
MASKED = -np.inf
PROBABILITIES = st.floats(0, 1, exclude_min=True, allow_nan=False)


def rows_of(*rows: list[float]) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32)


def counts_over(pairs: dict[int, int]) -> DraftCounts:
    return DraftCounts(np.array(list(pairs), dtype=np.int32), np.array(list(pairs.values()), dtype=np.int64))


def decide(
    logits: NDArray[np.float32],
    drafted: list[int],
    laws: list[DraftCounts],
    usable: int | None = None,
    temperature: int = 1,
    acceptance: Words = LOW,
    final: Words = LOW,
) -> RoundOutcome:
    """One request on two shards that halve the vocabulary; the same words for every row."""
    half = logits.shape[1] // 2
    ids = np.array([*drafted, -1], dtype=np.int64)
    shards = [(np.ascontiguousarray(logits[:, :half]), 0), (np.ascontiguousarray(logits[:, half:]), half)]
    normaliser = combine_statistics(*(shard_statistics(part, first, ids) for part, first in shards))
    words = [final] * len(logits)
    masses = [shard_masses(part, first, normaliser, [*laws, None], words, words) for part, first in shards]
    depth = len(drafted)
    usable = depth if usable is None else usable
    accept_words = [acceptance] * depth
    return decide_round(
        usable, depth, temperature, drafted, laws, normaliser, masses[0], masses[1], accept_words, words, words
    )


@given(st.integers(1, 120), st.integers(1, GRID), PROBABILITIES)
def test_just_the_draws_below_p_over_q_stand_at_every_width(bits: int, count: int, target_prob: float) -> None:
    standing = min(1 << bits, math.ceil(Fraction(target_prob) * GRID / count * (1 << bits)))
    assert accepts(standing - 1, bits, count, target_prob)
    if standing < 1 << bits:
        assert not accepts(standing, bits, count, target_prob)


def test_comparing_rounded_products_would_be_caught_at_the_boundary() -> None:
    bits, count, target_prob = 53, GRID - 1, 0.3
    boundary = math.ceil(Fraction(target_prob) * GRID / count * (1 << bits))
    near = range(boundary - 3, boundary + 3)
    exact = [draw < boundary for draw in near]
    planted = [np.float32(draw / (1 << bits)) * np.float32(count / GRID) < np.float32(target_prob) for draw in near]
    assert [accepts(draw, bits, count, target_prob) for draw in near] == exact
    assert planted != exact


@given(st.integers(1, 64), st.integers(1, GRID))
def test_a_token_without_target_mass_never_stands_not_even_at_draw_zero(bits: int, count: int) -> None:
    assert not accepts(0, bits, count, 0.0)
    assert accepts(0, bits, count, 5e-324)


@given(st.integers(1, GRID))
def test_p_equal_to_q_stands_at_the_greatest_draw(count: int) -> None:
    assert accepts((1 << 53) - 1, 53, count, count / GRID)


def test_a_count_of_zero_is_proof_of_failure_and_is_never_clamped() -> None:
    with pytest.raises(ProofOfFailure, match="q_x_mismatch") as caught:
        accepts(0, 53, 0, 0.5)
    assert caught.value.reason == "q_x_mismatch"


@pytest.mark.parametrize(
    ("draw", "count", "target_prob"),
    [(-1, 1, 0.5), (1 << 53, 1, 0.5), (0, -1, 0.5), (0, GRID + 1, 0.5), (0, 1, math.nan), (0, 1, 1.5), (0, 1, -0.1)],
)
def test_numbers_out_of_range_are_refused(draw: int, count: int, target_prob: float) -> None:
    with pytest.raises(ValueError, match="must be in"):
        accepts(draw, 53, count, target_prob)


EVEN = [0.0, 0.0, 0.0, 0.0]


def test_all_usable_drafts_stand_and_a_bonus_follows() -> None:
    outcome = decide(rows_of([5, 0, 0, 0], [0, 5, 0, 0], [MASKED, MASKED, MASKED, 0]), [0, 1], [one_hot(0), one_hot(1)])
    assert outcome == RoundOutcome(2, (0, 1, 3), forced=False, invalid_row=None)


def test_the_first_draft_that_falls_is_replaced_and_ends_the_round() -> None:
    logits = rows_of(EVEN, [MASKED, MASKED, 0, MASKED], EVEN)
    outcome = decide(logits, [0, 1], [one_hot(0), one_hot(1)])
    assert outcome == RoundOutcome(1, (0, 2), forced=False, invalid_row=None)


def test_a_replacement_is_never_the_refused_token_of_a_greedy_draft() -> None:
    for final in (LOW, HIGH, (1 << 31, 0, 1 << 31, 0)):
        outcome = decide(rows_of(EVEN, EVEN), [1], [one_hot(1)], acceptance=HIGH, final=final)
        assert outcome.accepted == 0
        assert outcome.token_ids[0] != 1


def test_a_forced_rejection_draws_from_p_and_may_emit_the_draft_itself() -> None:
    only = rows_of([0, MASKED, MASKED, MASKED], [MASKED, 0, MASKED, MASKED], EVEN)
    outcome = decide(only, [0, 1], [one_hot(0), one_hot(1)], usable=1)
    assert outcome == RoundOutcome(1, (0, 1), forced=True, invalid_row=None)


def test_target_only_ignores_the_drafts_and_needs_no_draft_law() -> None:
    only = rows_of([MASKED, MASKED, 0, MASKED], EVEN, EVEN)
    outcome = decide(only, [0, 1], [counts_over({3: GRID}), counts_over({3: GRID})], usable=0)
    assert outcome == RoundOutcome(0, (2,), forced=True, invalid_row=None)


def test_a_round_without_drafts_emits_one_token_and_is_not_forced() -> None:
    outcome = decide(rows_of([MASKED, MASKED, MASKED, 0]), [], [])
    assert outcome == RoundOutcome(0, (3,), forced=False, invalid_row=None)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_verified_draft_with_count_zero_releases_no_token_wherever_it_stands(position: int) -> None:
    laws = [one_hot(0), one_hot(1), one_hot(2)]
    laws[position] = counts_over({3: GRID, position: 0})
    # Row 0 refuses its draft, so the bad row may lie beyond the end of the round and is proof all the same.
    logits = rows_of([MASKED, 0, 0, 0], EVEN, EVEN, EVEN)
    for temperature in (0, 1):
        with pytest.raises(ProofOfFailure, match=f"row {position} drafted token {position}"):
            decide(logits, [0, 1, 2], laws, temperature=temperature)


def test_a_count_of_zero_beyond_the_usable_depth_proves_nothing() -> None:
    laws = [one_hot(0), counts_over({3: GRID, 1: 0})]
    assert decide(rows_of([9, 0, 0, 0], EVEN, EVEN), [0, 1], laws, usable=1).accepted == 1


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("poison", [[np.nan, 0, 0, 0], [0, 0, np.inf, 0], [MASKED] * 4, [np.nan] * 4])
@pytest.mark.parametrize("bad_row", [0, 1, 2])
def test_the_request_ends_at_the_first_invalid_row_that_verification_reaches(
    temperature: int, poison: list[float], bad_row: int
) -> None:
    rows = [[9.0, 0.0, 0.0, 0.0] for _ in range(3)]
    rows[bad_row] = poison
    outcome = decide(rows_of(*rows), [0, 0], [one_hot(0), one_hot(0)], temperature=temperature)
    assert outcome == RoundOutcome(bad_row, (0,) * bad_row, forced=False, invalid_row=bad_row)


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_invalid_row_that_verification_does_not_reach_changes_nothing(temperature: int) -> None:
    rows = rows_of([MASKED, 1, 1, 1], [np.nan] * 4, [np.inf] * 4)
    outcome = decide(rows, [0, 0], [one_hot(0), one_hot(0)], temperature=temperature)
    assert outcome.invalid_row is None
    assert outcome.accepted == 0
    assert outcome.token_ids == (1,)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, MASKED]), min_size=4, max_size=4), st.integers(0, 3))
@settings(deadline=None)
def test_greedy_accepts_the_argmax_alone_and_always_emits_it(row: list[float], drafted: int) -> None:
    if max(row) == MASKED:
        assert decide(rows_of(row, row), [drafted], [one_hot(drafted)], temperature=0).invalid_row == 0
        return
    best = row.index(max(row))
    outcome = decide(rows_of(row, row), [drafted], [one_hot(drafted)], temperature=0)
    assert outcome.token_ids == ((best, best) if drafted == best else (best,))


def test_greedy_gives_the_same_tokens_for_every_draw() -> None:
    logits = rows_of([1, 1, 0, 0], [0, 2, 2, 0], [0, 0, 3, 3])
    outcomes = {
        decide(logits, [0, 1], [one_hot(0), one_hot(1)], temperature=0, acceptance=words, final=words).token_ids
        for words in (LOW, HIGH, (5, 6, 7, 8))
    }
    assert outcomes == {(0, 1, 2)}


def test_a_rejection_by_rounding_alone_stands_because_an_empty_residual_is_never_drawn_from() -> None:
    # p is one float below q on the drafted token, and nothing else has more p than q.
    half = GRID // 2
    law = counts_over({0: half, 1: half})
    logits = rows_of([0, 0, MASKED, MASKED], [0, 0, MASKED, MASKED])
    ids = np.array([0, -1], dtype=np.int64)
    parts = [(logits[:, :2].copy(), 0), (logits[:, 2:].copy(), 2)]
    normaliser = combine_statistics(*(shard_statistics(part, first, ids) for part, first in parts))
    masses = [shard_masses(part, first, normaliser, [law, None], [LOW] * 2, [LOW] * 2) for part, first in parts]
    assert [float(mass.residual_mass[0]) for mass in masses] == [0.0, 0.0]
    normaliser.draft_probability[0] = np.nextafter(0.5, 0) - 2**-53
    assert not accepts((1 << 53) - 1, 53, half, float(normaliser.draft_probability[0]))
    outcome = decide_round(1, 1, 1, [0], [law], normaliser, masses[0], masses[1], [HIGH], [HIGH] * 2, [LOW] * 2)
    assert outcome.accepted == 1
    assert outcome.token_ids[0] == 0


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("depth", range(1, 9))
def test_at_every_depth_from_1_to_8_the_round_ends_where_it_must(depth: int, temperature: int) -> None:
    # Row j wants token j alone; drafting token 9 in its place makes that row the first that falls.
    logits = np.full((depth + 1, 10), MASKED, dtype=np.float32)
    logits[np.arange(depth + 1), np.arange(depth + 1)] = 0.0
    for usable in range(depth + 1):
        for falls in range(depth + 1):
            drafted = [9 if row == falls else row for row in range(depth)]
            laws = [one_hot(token) for token in drafted]
            outcome = decide(logits, drafted, laws, usable=usable, temperature=temperature, acceptance=HIGH, final=HIGH)
            accepted = min(usable, falls)
            forced = accepted == usable and usable < depth
            assert outcome == RoundOutcome(accepted, tuple(range(accepted + 1)), forced, invalid_row=None)


def test_rows_depths_and_temperatures_that_do_not_fit_are_refused() -> None:
    for usable, temperature in ((3, 1), (-1, 1), (1, 2)):
        with pytest.raises(ValueError, match="needs 0 <= usable_depth <= depth"):
            decide(rows_of(EVEN, EVEN), [0], [one_hot(0)], usable=usable, temperature=temperature)


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=8), st.integers(0, 2**64 - 1))
def test_a_token_is_picked_by_exact_integers_and_never_with_weight_zero(weights: list[int], draw: int) -> None:
    picked = pick_index(np.array(weights, dtype=np.uint64), (0, 0, draw >> 32, draw & 0xFFFFFFFF))
    if sum(weights) == 0:
        assert picked is None
        return
    assert picked is not None
    aim = Fraction(draw * sum(weights), 2**64)
    assert sum(weights[:picked]) <= math.floor(aim) < sum(weights[: picked + 1])


def test_a_shard_without_mass_is_never_picked() -> None:
    for words in (LOW, HIGH):
        assert pick_shard_token(0.0, 1, 0.25, 2, words) == 2
        assert pick_shard_token(0.25, 1, 0.0, 2, words) == 1
        assert pick_shard_token(0.0, 1, 0.0, 2, words) is None


@pytest.mark.parametrize("mass", [math.nan, -0.1, math.inf])
def test_masses_that_are_no_masses_are_refused(mass: float) -> None:
    with pytest.raises(ValueError, match="shard masses"):
        pick_shard_token(mass, 1, 0.5, 2, LOW)
