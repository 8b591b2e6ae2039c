"""Failures of greedy rows and of bad numbers that this field has had in public: right value, and wrong ways caught."""

from __future__ import annotations

import numpy as np
import pytest
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
from selector.candidates import TOP_K, shard_candidates, shard_candidates_rows
from selector.draft_law import GRID, DraftCounts, one_hot
from selector.philox import Words

HIGH: Words = (2**32 - 1,) * 4


def decide_batch(
    logits: NDArray[np.float32], drafted: list[int], laws: list[DraftCounts], temperatures: list[int]
) -> list[RoundOutcome]:
    """Requests of depth 1, two rows each, verified as one batch on two shards with the greatest draws."""
    half = logits.shape[1] // 2
    ids = np.array([token for draft in drafted for token in (draft, -1)], dtype=np.int64)
    parts = [(np.ascontiguousarray(logits[:, :half]), 0), (np.ascontiguousarray(logits[:, half:]), half)]
    normaliser = combine_statistics(*(shard_statistics(part, first, ids) for part, first in parts))
    row_laws = [law for draft_law in laws for law in (draft_law, None)]
    words = [HIGH] * len(logits)
    masses = [shard_masses(part, first, normaliser, row_laws, words, words) for part, first in parts]
    return [
        decide_round(
            1,
            1,
            temperature,
            [draft],
            [law],
            normaliser.rows(2 * index, 2 * index + 2),
            masses[0].rows(2 * index, 2 * index + 2),
            masses[1].rows(2 * index, 2 * index + 2),
            [HIGH],
            [HIGH] * 2,
            [HIGH] * 2,
        )
        for index, (draft, law, temperature) in enumerate(zip(drafted, laws, temperatures, strict=True))
    ]


TIE = [1.0, 1.0, 0.0, -np.inf]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_greedy_mixed_batch_a_tie_goes_to_the_lower_id_beside_a_sampled_row(order: list[int]) -> None:
    logits = np.array([TIE, TIE, TIE, TIE], dtype=np.float32)
    outcomes = decide_batch(logits, [0, 0], [one_hot(0), one_hot(0)], order)
    greedy = outcomes[order.index(0)]
    assert greedy.token_ids == (0, 0)


def test_greedy_mixed_batch_dividing_by_a_temperature_of_zero_would_be_caught() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.array([TIE], dtype=np.float32) / np.float32(0.0)
    planted = decide_batch(np.repeat(scaled, 2, axis=0), [0], [one_hot(0)], [0])
    assert planted[0].invalid_row == 0
    assert decide_batch(np.array([TIE, TIE], dtype=np.float32), [0], [one_hot(0)], [0])[0].token_ids == (0, 0)


def test_greedy_one_row_or_many_the_selector_gives_identical_bits() -> None:
    logits = np.random.default_rng(54506).normal(scale=3, size=(6, 2048)).astype(np.float32)
    ids = np.arange(6, dtype=np.int64)
    many = shard_statistics(logits, 0, ids).pack()
    for row in range(6):
        one = shard_statistics(logits[row : row + 1].copy(), 0, ids[row : row + 1]).pack()
        assert one.tobytes() == many[row : row + 1].tobytes()
    # The same sum in another association, as another batch shape would take it, has other bits in some row.
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    planted = np.cumsum(exponentials, axis=1)[:, -1]
    assert planted.tobytes() != many[:, 1].tobytes()


def test_greedy_ties_and_batch_size_give_the_same_two_ids_alone_and_in_a_batch_of_eight() -> None:
    row = np.array([5, 3, 3, 3], dtype=np.float32)
    assert shard_candidates(row, 0).token_ids[:2].tolist() == [0, 1]
    for candidates in shard_candidates_rows(np.tile(row, (8, 1)), 0):
        assert candidates.token_ids[:2].tolist() == [0, 1]
    planted = np.argsort(row, kind="stable")[::-1][:2].tolist()
    assert planted != [0, 1]


def bisected_threshold(row: NDArray[np.float32], steps: int) -> int:
    """The wrong way: halve the range of values a few times, keep what lies above."""
    low, high = float(row.min()), float(row.max())
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if (row >= middle).sum() >= TOP_K else (low, middle)
    return int((row >= low).sum())


def test_greedy_collapsed_threshold_there_are_exactly_32_candidates() -> None:
    row = np.random.default_rng(329).uniform(-1, 1, size=5000).astype(np.float32)
    row[4321] = 20.0
    candidates = shard_candidates(row, 0)
    assert len(candidates.token_ids) == TOP_K
    assert candidates.token_ids[0] == 4321
    assert candidates.token_ids.tolist() == np.lexsort((np.arange(5000), -row))[:TOP_K].tolist()
    assert bisected_threshold(row, 8) != TOP_K


VOCABULARY = 20_000


def poisoned_rows() -> dict[str, NDArray[np.float32]]:
    healthy = np.random.default_rng(53029).normal(size=VOCABULARY).astype(np.float32)
    rows = {"all nan": np.full(VOCABULARY, np.nan, dtype=np.float32)}
    rows["all masked"] = np.full(VOCABULARY, -np.inf, dtype=np.float32)
    for name, value in (("one nan", np.nan), ("one +inf", np.inf)):
        row = healthy.copy()
        row[12_345] = value
        rows[name] = row
    return rows


@pytest.mark.parametrize("name", list(poisoned_rows()))
@pytest.mark.parametrize("temperature", [0, 1])
def test_num_nan_row_ends_its_request_and_leaves_batch_mates_unharmed(name: str, temperature: int) -> None:
    healthy = np.random.default_rng(1).normal(size=VOCABULARY).astype(np.float32)
    mates = np.stack([healthy] * 4)
    batch = np.concatenate([mates[:2], np.stack([poisoned_rows()[name], healthy]), mates[2:]])
    best = int(healthy.argmax())
    outcomes = decide_batch(batch, [best] * 3, [one_hot(best)] * 3, [temperature] * 3)
    without = decide_batch(mates, [best] * 2, [one_hot(best)] * 2, [temperature] * 2)
    assert [outcomes[0], outcomes[2]] == without
    assert outcomes[1] == RoundOutcome(0, (), forced=False, invalid_row=0)
    for outcome in outcomes:
        assert all(0 <= token < VOCABULARY for token in outcome.token_ids)


def test_num_nan_row_an_argmax_that_trusts_a_nan_would_be_caught() -> None:
    row = poisoned_rows()["one nan"]
    assert int(np.argmax(row)) == 12_345
    statistics = shard_statistics(row[np.newaxis, :], 0, np.array([-1], dtype=np.int64))
    assert statistics.argmax_id.tolist() == [-1]
    assert statistics.poisoned.tolist() == [True]


def test_num_p_equals_q_the_greatest_draw_is_accepted_and_no_residual_is_drawn() -> None:
    law = DraftCounts(np.arange(4, dtype=np.int32), np.full(4, GRID // 4, dtype=np.int64))
    logits = np.zeros((2, 4), dtype=np.float32)
    for drafted in range(4):
        outcome = decide_batch(logits, [drafted], [law], [1])[0]
        assert outcome.accepted == 1
        assert outcome.token_ids[0] == drafted
    greatest = (1 << 53) - 1
    assert accepts(greatest, 53, GRID // 4, 0.25)
    # u rounded to single precision becomes 1, and 1 * q < p would refuse.
    assert not float(np.float32(greatest / (1 << 53))) * 0.25 < 0.25


def test_num_zero_draft_mass_is_proof_of_an_earlier_failure_and_never_clamped() -> None:
    law = DraftCounts(np.array([0, 1], dtype=np.int32), np.array([GRID, 0], dtype=np.int64))
    logits = np.zeros((2, 4), dtype=np.float32)
    for temperature in (0, 1):
        with pytest.raises(ProofOfFailure, match="q_x_mismatch"):
            decide_batch(logits, [1], [law], [temperature])
    # The wrong way, a count clamped to one grid step, would quietly accept.
    assert accepts((1 << 53) - 1, 53, 1, 0.25)
