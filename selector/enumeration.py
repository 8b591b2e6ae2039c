"""The law that shipped code really emits: it is run on every draw of a small grid, or on the whole grid by bisection.

A grid of b bits puts its integer into the top bits of the shipped draws, so u = a / 2^b exactly and no line of the
shipped code is changed or repeated here. The method under test is an argument: the same enumeration judges the
shipped decision and any other.
Must never decide anything itself. Source: DESIGN section 3, "Two statements are held".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from selector.acceptance import RoundOutcome, decide_round
from selector.draft_law import GRID, DraftCounts
from selector.exact_law import JointLaw, Law, Prefix
from selector.philox import Words
from selector.target_masses import ShardMasses, masses_of_probabilities
from selector.target_statistics import RowNormaliser

__all__ = [
    "DrawGrid",
    "RoundCase",
    "RoundInstance",
    "RoundMethod",
    "decide_case",
    "draft_fractions",
    "enumerate_round",
    "grid_words",
    "prepare_case",
    "rational_law",
    "shipped_method",
    "shipped_row_law",
]

_ACCEPTANCE_BITS = 53
_LANE_BITS = 64
_MASK_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RoundInstance:
    """One round over a vocabulary of two shards, as laws of the prefix drafted so far.

    shard_size: tokens a shard; target_row: prefix to p, float64 (2 * shard_size,); draft_row: prefix to the declared
    counts; drawn_row: prefix to the counts that drafts are really drawn from (the declared ones in a sound bed).
    """

    depth: int
    usable_depth: int
    shard_size: int
    target_row: Callable[[Prefix], NDArray[np.float64]]
    draft_row: Callable[[Prefix], DraftCounts]
    drawn_row: Callable[[Prefix], DraftCounts]


@dataclass(frozen=True, slots=True)
class DrawGrid:
    """Widths of the enumerated draws: acceptance, shard (lane 0) and token (lane 1); each 0 .. 32 bits."""

    acceptance_bits: int
    shard_bits: int
    token_bits: int


@dataclass(frozen=True, slots=True)
class RoundCase:
    """A round up to its decision: drafts, declared laws, merged rows and both shards' masses for one set of draws.

    laws: depth entries; residual_words, target_words: one a row, and the masses were drawn with them.
    """

    instance: RoundInstance
    drafted: tuple[int, ...]
    laws: tuple[DraftCounts, ...]
    normaliser: RowNormaliser
    masses0: ShardMasses
    masses1: ShardMasses
    residual_words: tuple[Words, ...]
    target_words: tuple[Words, ...]


RoundMethod = Callable[[RoundCase, tuple[Words, ...]], tuple[int, ...]]
"""(case, acceptance words of the usable rows) to the emitted token ids."""


def grid_words(lane0: int, lane0_bits: int, lane1: int, lane1_bits: int) -> Words:
    """Return words whose lane 0 and lane 1 draws are lane / 2^bits of their range. bits: 0 .. 32."""
    return lane0 << (32 - lane0_bits), 0, lane1 << (32 - lane1_bits), 0


def draft_fractions(draft_counts: DraftCounts) -> Law:
    """Return counts as exact probabilities."""
    pairs = zip(draft_counts.token_ids.tolist(), draft_counts.counts.tolist(), strict=True)
    return {token: Fraction(count, GRID) for token, count in pairs}


def rational_law(probabilities: NDArray[np.float64]) -> Law:
    """Return float64 probabilities (n,) as the exact fractions that they are, zeros left out."""
    return {token: Fraction(value) for token, value in enumerate(probabilities.tolist()) if value > 0.0}


def prepare_case(instance: RoundInstance, drafted: tuple[int, ...], words: Words) -> RoundCase:
    """Return the case of one drafted sequence, with the shipped masses of both shards drawn by the same words a row."""
    prefixes = [drafted[:row] for row in range(instance.depth + 1)]
    rows = [instance.target_row(prefix) for prefix in prefixes]
    laws = tuple(instance.draft_row(prefix) for prefix in prefixes[:-1])
    draft_probability = np.array([*(float(row[token]) for row, token in zip(rows, drafted, strict=False)), np.nan])
    count = len(rows)
    argmax_id = np.array([int(row.argmax()) for row in rows], dtype=np.int64)
    normaliser = RowNormaliser(np.zeros(count), np.ones(count), np.ones(count, np.bool_), argmax_id, draft_probability)
    row_words = (words,) * count
    size = instance.shard_size
    masses0, masses1 = (
        masses_of_probabilities([row[start : start + size] for row in rows], start, [*laws, None], row_words, row_words)
        for start in (0, size)
    )
    return RoundCase(instance, drafted, laws, normaliser, masses0, masses1, row_words, row_words)


def decide_case(case: RoundCase, acceptance_words: tuple[Words, ...], usable_depth: int | None = None) -> RoundOutcome:
    """Return the shipped decision on a case at temperature 1. usable_depth: the instance's own unless told."""
    return decide_round(
        case.instance.usable_depth if usable_depth is None else usable_depth,
        case.instance.depth,
        1,
        case.drafted,
        case.laws,
        case.normaliser,
        case.masses0,
        case.masses1,
        acceptance_words,
        case.residual_words,
        case.target_words,
    )


def shipped_method(case: RoundCase, acceptance_words: tuple[Words, ...]) -> tuple[int, ...]:
    """Return what the shipped decision emits; the method that enumerate_round judges by default."""
    return decide_case(case, acceptance_words).token_ids


def enumerate_round(instance: RoundInstance, grid: DrawGrid, method: RoundMethod = shipped_method) -> JointLaw:
    """Return the exact law of what a method emits, over all drafts and every draw of the grid.

    Drafts weigh what drawn_row says; each acceptance row runs through its grid alone; shard and token draws run
    through theirs for all rows together, which is exact because a round reads them in one row only and its residual
    and target draws never both. Cost: drafts x 2^(acceptance_bits x usable_depth + shard_bits + token_bits).
    """
    emitted: JointLaw = {}
    one_row = [grid_words(draw, grid.acceptance_bits, 0, 0) for draw in range(1 << grid.acceptance_bits)]
    lanes = itertools.product(range(1 << grid.shard_bits), range(1 << grid.token_bits))
    finals = [grid_words(shard, grid.shard_bits, token, grid.token_bits) for shard, token in lanes]
    runs = len(one_row) ** instance.usable_depth * len(finals)
    for drafted, weight in _drafted_sequences(instance).items():
        seen: Counter[tuple[int, ...]] = Counter()
        for words in finals:
            case = prepare_case(instance, drafted, words)
            seen.update(
                method(case, acceptance_words)
                for acceptance_words in itertools.product(one_row, repeat=instance.usable_depth)
            )
        for tokens, times in seen.items():
            emitted[tokens] = emitted.get(tokens, Fraction(0)) + weight * Fraction(times, runs)
    return emitted


def shipped_row_law(instance: RoundInstance) -> Law:
    """Return the exact law of the first emitted token over *all* 2^53 acceptance and 2^128 other draws.

    Each shipped decision is monotone in its draw, so the number of draws on either side is found by bisection.
    instance: depth 1. Raises ValueError for another depth. Source: DESIGN section 3.
    """
    if instance.depth != 1 or instance.usable_depth != 1:
        raise ValueError(f"depth {instance.depth}, usable {instance.usable_depth}: bisection needs one verified row")
    law: dict[int, Fraction] = {}
    for drafted, weight in _drafted_sequences(instance).items():
        standing = _leading(partial(_stands, instance, drafted), _ACCEPTANCE_BITS)
        stands = Fraction(standing, 1 << _ACCEPTANCE_BITS)
        law[drafted[0]] = law.get(drafted[0], Fraction(0)) + weight * stands
        if stands < 1:
            for other, share in _residual_shares(instance, drafted).items():
                law[other] = law.get(other, Fraction(0)) + weight * (1 - stands) * share
    return law


def _first_token(instance: RoundInstance, drafted: tuple[int, ...], draw: int, lane0: int, lane1: int) -> RoundOutcome:
    aim = draw << (_LANE_BITS - _ACCEPTANCE_BITS)
    case = prepare_case(instance, drafted, (lane0 >> 32, lane0 & _MASK_32, lane1 >> 32, lane1 & _MASK_32))
    return decide_case(case, ((aim >> 32, aim & _MASK_32, 0, 0),))


def _stands(instance: RoundInstance, drafted: tuple[int, ...], draw: int) -> bool:
    return _first_token(instance, drafted, draw, 0, 0).accepted == 1


def _replaced_below(instance: RoundInstance, drafted: tuple[int, ...], bound: int, lane0: int, lane1: int) -> bool:
    # The greatest acceptance draw is refused whenever any is.
    outcome = _first_token(instance, drafted, (1 << _ACCEPTANCE_BITS) - 1, lane0, lane1)
    return outcome.token_ids[0] < bound


def _residual_shares(instance: RoundInstance, drafted: tuple[int, ...]) -> Law:
    last = (1 << _LANE_BITS) - 1
    size = instance.shard_size
    in_shard0 = _leading(lambda lane0: _replaced_below(instance, drafted, size, lane0, 0), _LANE_BITS)
    shares: dict[int, Fraction] = {}
    for start, lane0, draws in ((0, 0, in_shard0), (size, last, last + 1 - in_shard0)):
        owned = 0
        for other in range(start, start + size if draws else start):
            reach = _leading(partial(_replaced_below, instance, drafted, other + 1, lane0), _LANE_BITS)
            shares[other] = Fraction(draws * (reach - owned), 1 << (2 * _LANE_BITS))
            owned = reach
    return shares


def _leading(holds: Callable[[int], bool], bits: int) -> int:
    # Number of draws in 0 .. 2^bits-1 for which a predicate holds that never turns true again after it turned false.
    low, high = 0, 1 << bits
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


def _drafted_sequences(instance: RoundInstance) -> dict[tuple[int, ...], Fraction]:
    sequences: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for _ in range(instance.depth):
        sequences = {
            (*prefix, token): weight * chance
            for prefix, weight in sequences.items()
            for token, chance in draft_fractions(instance.drawn_row(prefix)).items()
            if chance > 0
        }
    return sequences
