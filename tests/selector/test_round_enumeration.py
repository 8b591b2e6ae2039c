"""Shipped acceptance, run on every draw: the predicted ceil-law exactly, and p itself where the grid can hold it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from selector.acceptance import RowNormaliser
from selector.draft_law import GRID, DraftCounts, one_hot
from selector.enumeration import (
    DrawGrid,
    RoundCase,
    RoundInstance,
    decide_case,
    draft_fractions,
    enumerate_round,
    rational_law,
    shipped_row_law,
)
from selector.exact_law import (
    CONTINUOUS_RULE,
    JointLaw,
    Prefix,
    RoundRule,
    ceil_rule,
    completed_law,
    emitted_law,
    target_joint_law,
)
from selector.philox import Words


def random_target(rng: random.Random, vocabulary: int) -> NDArray[np.float64]:
    """Whole multiples of 1/64, some of them zero, padded to two equal shards."""
    cuts = sorted(rng.randint(0, 64) for _ in range(vocabulary - 1))
    parts = [high - low for low, high in zip([0, *cuts], [*cuts, 64], strict=True)]
    return np.array([*parts, *([0] * (vocabulary % 2))]) / 64.0


def random_draft(rng: random.Random, vocabulary: int, arm: str) -> DraftCounts:
    """Arm A: one-hot. Arm B: counts on the true grid over a part of the vocabulary, a lawful zero among them."""
    if arm == "A":
        return one_hot(rng.randrange(vocabulary))
    tokens = rng.sample(range(vocabulary), rng.randint(2, vocabulary))
    cuts = sorted(rng.randint(0, GRID) for _ in range(len(tokens) - 1))
    counts = sorted((high - low for low, high in zip([0, *cuts], [*cuts, GRID], strict=True)), reverse=True)
    if len(tokens) > 2:
        counts[0], counts[-1] = counts[0] + counts[-1], 0
    return DraftCounts(np.array(tokens, dtype=np.int32), np.array(counts, dtype=np.int64))


def random_instance(seed: int, vocabulary: int, depth: int, usable: int, arm: str) -> RoundInstance:
    """Every row depends on the prefix drafted before it."""
    rng = random.Random(seed)
    prefixes: list[Prefix] = [()] + [(x,) for x in range(vocabulary)]
    prefixes += [(x, y) for x in range(vocabulary) for y in range(vocabulary)]
    targets = {prefix: random_target(rng, vocabulary) for prefix in prefixes}
    drafts = {prefix: random_draft(rng, vocabulary, arm) for prefix in prefixes}
    size = (vocabulary + 1) // 2
    return RoundInstance(depth, usable, size, targets.__getitem__, drafts.__getitem__, drafts.__getitem__)


def predicted(instance: RoundInstance, rule: RoundRule) -> JointLaw:
    return emitted_law(
        instance.depth,
        instance.usable_depth,
        lambda prefix: draft_fractions(instance.draft_row(prefix)),
        lambda prefix: rational_law(instance.target_row(prefix)),
        rule,
    )


def rule_of(grid: DrawGrid, instance: RoundInstance) -> RoundRule:
    return ceil_rule(grid.acceptance_bits, grid.shard_bits, grid.token_bits, instance.shard_size)


@pytest.mark.parametrize("arm", ["A", "B"])
@pytest.mark.parametrize("vocabulary", [2, 3, 4, 5])
@pytest.mark.parametrize("usable", [0, 1])
def test_one_draft_with_eight_bit_acceptance_emits_the_predicted_ceil_law(
    arm: str, vocabulary: int, usable: int
) -> None:
    grid = DrawGrid(acceptance_bits=8, shard_bits=3, token_bits=3)
    for seed in range(2):
        instance = random_instance(seed, vocabulary, 1, usable, arm)
        assert enumerate_round(instance, grid) == predicted(instance, rule_of(grid, instance))


@pytest.mark.parametrize("arm", ["A", "B"])
@pytest.mark.parametrize("vocabulary", [2, 3, 4, 5])
@pytest.mark.parametrize("usable", [0, 1, 2])
def test_two_drafts_emit_the_predicted_joint_ceil_law(arm: str, vocabulary: int, usable: int) -> None:
    grid = DrawGrid(acceptance_bits=4, shard_bits=2, token_bits=2)
    instance = random_instance(17 + vocabulary, vocabulary, 2, usable, arm)
    assert enumerate_round(instance, grid) == predicted(instance, rule_of(grid, instance))


def dyadic_instance(usable: int, arm: str) -> RoundInstance:
    """Every ratio in this round is a power of two, so a small grid holds the continuous law itself."""
    targets = {
        (): [2, 2, 2, 2],
        (0,): [2, 2, 4, 0],
        (1,): [0, 0, 4, 4],
        (2,): [1, 3, 2, 2],
        (3,): [2, 2, 3, 1],
    }
    drafts = {
        (): {0: 4, 1: 2, 2: 1, 3: 1},
        (0,): {1: 4, 0: 2, 2: 2},
        (1,): {3: 8},
        (2,): {2: 4, 3: 4},
        (3,): {0: 2, 1: 2, 2: 2, 3: 2},
    }

    def target_row(prefix: Prefix) -> NDArray[np.float64]:
        return np.array(targets[prefix[:1]]) / 8.0

    def draft_row(prefix: Prefix) -> DraftCounts:
        row = drafts[prefix[:1]]
        if arm == "A":
            return one_hot(next(iter(row)))
        tokens, eighths = np.array(list(row), dtype=np.int32), np.array(list(row.values()), dtype=np.int64)
        return DraftCounts(tokens, eighths * (GRID // 8))

    return RoundInstance(2, usable, 2, target_row, draft_row, draft_row)


DYADIC_GRID = DrawGrid(acceptance_bits=3, shard_bits=3, token_bits=3)


def target_row_of(instance: RoundInstance) -> Callable[[Prefix], dict[int, Fraction]]:
    return lambda prefix: dict(rational_law(instance.target_row(prefix)))


@pytest.mark.parametrize("usable", [0, 1, 2])
def test_where_the_grid_holds_every_ratio_shipped_code_emits_p_itself_over_the_whole_round(usable: int) -> None:
    instance = dyadic_instance(usable, "B")
    emitted = enumerate_round(instance, DYADIC_GRID)
    assert emitted == predicted(instance, CONTINUOUS_RULE)
    target_row = target_row_of(instance)
    assert completed_law(emitted, target_row, 3) == target_joint_law(target_row, 3)


def test_every_drafted_depth_of_that_round_is_really_accepted_and_refused() -> None:
    lengths = {len(tokens) for tokens in enumerate_round(dyadic_instance(2, "B"), DYADIC_GRID)}
    assert lengths == {1, 2, 3}


def non_strict(case: RoundCase, acceptance_words: tuple[Words, ...]) -> tuple[int, ...]:
    # u one grid step lower stands for "<=" in place of "<" at every boundary.
    earlier = tuple((max(words[0] - (1 << 29), 0), 0, 0, 0) for words in acceptance_words)
    return decide_case(case, earlier).token_ids


def swapped_shards(case: RoundCase, acceptance_words: tuple[Words, ...]) -> tuple[int, ...]:
    return decide_case(replace(case, masses0=case.masses1, masses1=case.masses0), acceptance_words).token_ids


def first_row_again(case: RoundCase, acceptance_words: tuple[Words, ...]) -> tuple[int, ...]:
    same = case.normaliser
    first = float(case.instance.target_row(())[case.drafted[1]])
    probabilities = np.array([same.draft_probability[0], first, np.nan])
    stale = RowNormaliser(same.maximum, same.sum_exp, same.valid, same.argmax_id, probabilities)
    return decide_case(replace(case, normaliser=stale), acceptance_words).token_ids


@pytest.mark.parametrize("method", [non_strict, first_row_again])
def test_a_wrong_boundary_or_a_stale_row_is_caught_by_the_same_enumeration(
    method: Callable[[RoundCase, tuple[Words, ...]], tuple[int, ...]],
) -> None:
    instance = dyadic_instance(2, "B")
    target_row = target_row_of(instance)
    emitted = enumerate_round(instance, DYADIC_GRID, method)
    assert completed_law(emitted, target_row, 3) != target_joint_law(target_row, 3)


def test_shards_combined_in_the_wrong_order_are_caught_by_the_predicted_law() -> None:
    grid = DrawGrid(acceptance_bits=3, shard_bits=2, token_bits=2)
    instance = random_instance(3, 5, 1, 1, "B")
    assert enumerate_round(instance, grid, swapped_shards) != predicted(instance, rule_of(grid, instance))
    assert enumerate_round(instance, grid) == predicted(instance, rule_of(grid, instance))


@pytest.mark.parametrize("arm", ["A", "B"])
@pytest.mark.parametrize("vocabulary", [2, 4, 5])
def test_over_the_whole_grid_of_shipped_draws_the_emitted_law_is_within_the_bound(arm: str, vocabulary: int) -> None:
    instance = random_instance(91, vocabulary, 1, 1, arm)
    shipped = shipped_row_law(instance)
    exact = rational_law(instance.target_row(()))
    tokens = shipped.keys() | exact.keys()
    distance = sum(abs(shipped.get(token, Fraction(0)) - exact.get(token, Fraction(0))) for token in tokens) / 2
    assert sum(shipped.values()) == 1
    assert distance <= Fraction(1, 1 << 45)


def test_bisection_over_the_whole_grid_agrees_with_the_ceil_law_of_53_and_64_bits() -> None:
    instance = random_instance(5, 4, 1, 1, "B")
    joint = predicted(instance, ceil_rule(53, 64, 64, instance.shard_size))
    first = completed_law(joint, target_row_of(instance), 1)
    shipped = shipped_row_law(instance)
    assert {(token,): share for token, share in shipped.items() if share} == first
    with pytest.raises(ValueError, match="one verified row"):
        shipped_row_law(random_instance(5, 4, 2, 2, "B"))
