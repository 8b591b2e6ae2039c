"""A request's logits are the same bits whatever shares its batch, slot, depth or tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ranks.reference_pair import ReferencePair
from ranks.row_invariance import products_are_row_invariant
from ranks.weights import EMBEDDED_WEIGHTS, load_weights

DEPTHS = range(1, 9)
LENGTHS = (1, 61, 250, 517)


@pytest.fixture(scope="module")
def pair() -> Iterator[ReferencePair]:
    with ReferencePair(load_weights(EMBEDDED_WEIGHTS), slot_count=5) as opened:
        yield opened


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 4096, count)]


def rows(seed: int, depth: int) -> NDArray[np.int64]:
    return np.array(tokens(1000 + seed, depth + 1), dtype=np.int64)


def fill(pair: ReferencePair, slot: int, seed: int, length: int) -> None:
    prompt = tokens(seed, length)
    pair.clear(slot)
    pair.prefill(slot, prompt)


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def test_the_kernels_of_this_machine_are_row_invariant(pair: ReferencePair) -> None:
    assert all(engine.is_row_invariant() for engine in pair.engines)


def test_products_whose_bits_follow_the_row_number_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_place(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        left = rows[:, :12] @ weight
        doubled = (rows[:, 12:].double() @ weight.double()).float()
        return torch.cat([left, doubled], dim=1)

    weight = torch.randn((192, 96), generator=torch.Generator().manual_seed(1))
    assert products_are_row_invariant(weight, torch.Generator().manual_seed(2))
    monkeypatch.setattr("ranks.row_invariance.tiled_linear", by_place)
    assert not products_are_row_invariant(weight, torch.Generator().manual_seed(2))


@pytest.mark.parametrize("depth", DEPTHS)
def test_verify_logits_do_not_depend_on_batch_mates(pair: ReferencePair, depth: int) -> None:
    for slot, length in enumerate(LENGTHS):
        fill(pair, slot, slot, length)
    alone = [pair.verify([slot], rows(slot, depth)[None]) for slot in range(4)]
    for slots in ([0, 1], [1, 0], [2, 0, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        together = pair.verify(slots, np.stack([rows(slot, depth) for slot in slots]))
        for place, slot in enumerate(slots):
            assert same_bits(together[place : place + 1], alone[slot])


def test_verify_logits_do_not_depend_on_the_slot(pair: ReferencePair) -> None:
    answers = []
    for slot in range(5):
        fill(pair, slot, 7, 300)
        answers.append(pair.verify([slot], rows(7, 5)[None]))
    assert all(same_bits(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("length", [1, 2, 55, 60, 63, 64, 120, 255, 256, 257, 500, 511, 512, 700])
def test_many_rows_give_the_bits_that_one_row_gives(pair: ReferencePair, length: int) -> None:
    fill(pair, 0, length, length)
    fill(pair, 1, length, length)
    drafted = rows(length, 8)
    many = pair.verify([0], drafted[None])
    for place, token in enumerate(drafted):
        one = pair.verify([1], np.array([[token]], dtype=np.int64))
        pair.commit(1, 1)
        assert same_bits(one[0, 0], many[0, place]), place


def test_fewer_rows_give_the_bits_of_more_rows(pair: ReferencePair) -> None:
    fill(pair, 2, 9, 381)
    full = pair.verify([2], rows(9, 8)[None])
    for depth in DEPTHS:
        assert same_bits(pair.verify([2], rows(9, 8)[None, : depth + 1]), full[:, : depth + 1])


def test_a_row_does_not_depend_on_later_drafts(pair: ReferencePair) -> None:
    fill(pair, 0, 3, 130)
    first, second = rows(3, 5), rows(4, 5)
    second[:3] = first[:3]
    assert same_bits(pair.verify([0], first[None])[:, :3], pair.verify([0], second[None])[:, :3])


@pytest.mark.parametrize("depth", DEPTHS)
def test_draft_logits_do_not_depend_on_batch_slot_or_depth(pair: ReferencePair, depth: int) -> None:
    for slot, length in enumerate(LENGTHS):
        fill(pair, slot, slot, length)
    anchors = tokens(11, 4)
    alone = [pair.draft([slot], [anchors[slot]], 8) for slot in range(4)]
    for slots in ([3], [2, 1], [0, 2, 3], [3, 1, 0, 2]):
        together = pair.draft(slots, [anchors[slot] for slot in slots], depth)
        for place, slot in enumerate(slots):
            assert same_bits(together[place], alone[slot][0, :depth])


def test_biased_draft_logits_do_not_depend_on_the_batch(pair: ReferencePair) -> None:
    for slot, length in enumerate(LENGTHS):
        fill(pair, slot, slot, length)
    base = pair.engines[0].shard_size
    halves = pair.both(lambda engine: engine.draft_base([0, 1, 2, 3], [5, 6, 7, 8], 1)[:, 0])
    for engine, half in zip(pair.engines, halves, strict=True):
        assert half.shape == (4, base)
        together = engine.draft_logits(half, [9, 8, 7, 6])
        for row, previous in enumerate([9, 8, 7, 6]):
            assert same_bits(engine.draft_logits(half[row : row + 1], [previous])[0], together[row])


def test_draft_logits_sit_on_the_grid_and_the_bias_is_the_integer_dot(pair: ReferencePair) -> None:
    weights = load_weights(EMBEDDED_WEIGHTS)
    fill(pair, 0, 21, 40)
    halves = pair.both(lambda engine: engine.draft_base([0], [17], 1)[:, 0])
    previous, following = (weights.tensors[f"markov.{name}"].numpy().astype(np.int64) for name in ("previous", "next"))
    grid, scale = weights.config.drafter.grid_bits, weights.config.drafter.markov_scale_bits
    dot = previous[99] @ following
    for engine, half in zip(pair.engines, halves, strict=True):
        scaled = half.astype(np.float64) * 2.0**grid
        assert np.array_equal(scaled, np.rint(scaled))
        mine = dot[engine.first_token_id : engine.first_token_id + engine.shard_size]
        exact = half.astype(np.float64)[0] + mine * 2.0**-scale
        assert np.array_equal(engine.draft_logits(half, [99])[0].astype(np.float64), exact)
        assert np.any(mine != 0)


def test_a_permuted_batch_leaves_equal_states_on_both_ranks(pair: ReferencePair) -> None:
    digests = []
    for order in ([0, 1, 2], [2, 0, 1]):
        for slot in range(3):
            fill(pair, slot, slot, 90 + slot)
        pair.verify(order, np.stack([rows(slot, 4) for slot in order]))
        for slot in order:
            pair.commit(slot, 1 + slot)
        digests.append([pair.state_digests(slot) for slot in range(3)])
    assert digests[0] == digests[1]
    assert all(first == second for first, second in digests[0])
    assert len({first for first, _ in digests[0]}) == 3
