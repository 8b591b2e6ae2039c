"""Two shards say together what the whole row says: validity, argmax, p, masses; and a row's bits are its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.acceptance import (
    RoundOutcome,
    RowNormaliser,
    ShardMasses,
    ShardStatistics,
    combine_statistics,
    decide_round,
    shard_masses,
    shard_statistics,
)
from selector.draft_law import DraftCounts, draft_law, draw_token
from selector.philox import Purpose, Words, draw24, draw_words
from selector.target_exponential import MOST_TERMS, exponential

LOGITS = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-np.inf, 0.0, -0.0, 3.0, 3.0]))
WILD = st.one_of(LOGITS, st.sampled_from([np.nan, np.inf]))
DEPTH = 3


def batches(elements: st.SearchStrategy[float]) -> st.SearchStrategy[NDArray[np.float32]]:
    row = st.integers(2, 40).flatmap(
        lambda width: st.lists(
            st.lists(elements, min_size=width, max_size=width), min_size=DEPTH + 1, max_size=DEPTH + 1
        )
    )
    return row.map(lambda values: np.array(values, dtype=np.float32))


def split(logits: NDArray[np.float32], cut: int) -> list[tuple[NDArray[np.float32], int]]:
    return [(np.ascontiguousarray(logits[:, :cut]), 0), (np.ascontiguousarray(logits[:, cut:]), cut)]


def unsharded(logits: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], int]]:
    """The whole row on one shard, with a lawful shard of one masked token beside it."""
    return [(logits, 0), (np.full((len(logits), 1), -np.inf, dtype=np.float32), logits.shape[1])]


def words_for(seed: int, purpose: Purpose, rows: int) -> list[Words]:
    return [draw_words(seed, 11, position, purpose) for position in range(rows)]


def verify(
    shards: list[tuple[NDArray[np.float32], int]], drafted: list[int], laws: list[DraftCounts], seed: int, temp: int
) -> tuple[RowNormaliser, list[ShardMasses], RoundOutcome]:
    rows = len(drafted) + 1
    ids = np.array([*drafted, -1], dtype=np.int64)
    statistics = [ShardStatistics.unpack(shard_statistics(part, first, ids).pack()) for part, first in shards]
    normaliser = combine_statistics(*statistics)
    residual, target = words_for(seed, Purpose.RESIDUAL, rows), words_for(seed, Purpose.TARGET_ONLY, rows)
    masses = [
        ShardMasses.unpack(shard_masses(part, first, normaliser, [*laws, None], residual, target).pack())
        for part, first in shards
    ]
    accept = words_for(seed, Purpose.ACCEPTANCE, rows)
    depth = len(drafted)
    outcome = decide_round(
        depth, depth, temp, drafted, laws, normaliser, masses[0], masses[1], accept, residual, target
    )
    return normaliser, masses, outcome


def drafts_for(width: int, seed: int) -> tuple[list[int], list[DraftCounts]]:
    rng = np.random.default_rng(seed)
    laws = [draft_law(rng.normal(size=width).astype(np.float32)) for _ in range(DEPTH)]
    sound = [law for law in laws if isinstance(law, DraftCounts)]
    drafted = [
        draw_token(law, draw24(words))
        for law, words in zip(sound, words_for(seed, Purpose.PROPOSAL, DEPTH), strict=True)
    ]
    return drafted, sound


@given(batches(WILD), st.integers(0, 10**6), st.integers(0, 2**32))
@settings(deadline=None)
def test_validity_and_argmax_do_not_depend_on_the_cut(logits: NDArray[np.float32], cut: int, seed: int) -> None:
    width = logits.shape[1]
    drafted, laws = drafts_for(width, seed)
    halves = verify(split(logits, 1 + cut % (width - 1)), drafted, laws, seed, 0)
    whole = verify(unsharded(logits), drafted, laws, seed, 0)
    finite = np.isfinite(logits).any(axis=1) & ~(np.isnan(logits) | (logits == np.inf)).any(axis=1)
    assert halves[0].valid.tolist() == whole[0].valid.tolist() == finite.tolist()
    assert halves[0].argmax_id.tolist() == whole[0].argmax_id.tolist()
    assert halves[2] == whole[2]
    for row in np.flatnonzero(finite):
        assert halves[0].argmax_id[row] == np.argmax(logits[row])


@given(batches(WILD), st.integers(0, 10**6), st.integers(0, 2**32))
@settings(deadline=None)
def test_probabilities_and_masses_do_not_depend_on_the_cut(logits: NDArray[np.float32], cut: int, seed: int) -> None:
    width = logits.shape[1]
    drafted, laws = drafts_for(width, seed)
    normaliser, masses, outcome = verify(split(logits, 1 + cut % (width - 1)), drafted, laws, seed, 1)
    reference, whole, expected = verify(unsharded(logits), drafted, laws, seed, 1)
    valid = normaliser.valid
    assert np.isnan(normaliser.draft_probability[~valid]).all()
    np.testing.assert_allclose(normaliser.draft_probability, reference.draft_probability, rtol=1e-14)
    target = masses[0].target_mass + masses[1].target_mass
    np.testing.assert_allclose(target, np.where(valid, 1.0, 0.0), atol=1e-14)
    residual = masses[0].residual_mass + masses[1].residual_mass
    np.testing.assert_allclose(residual, whole[0].residual_mass, atol=1e-14)
    assert (outcome.accepted, outcome.invalid_row) == (expected.accepted, expected.invalid_row)


@given(batches(LOGITS), st.integers(0, 2**32), st.integers(0, DEPTH))
@settings(deadline=None)
def test_a_candidate_always_has_target_mass_and_a_residual_has_more_p_than_q(
    logits: NDArray[np.float32], seed: int, row: int
) -> None:
    width = logits.shape[1]
    drafted, laws = drafts_for(width, seed)
    normaliser, masses, _ = verify(split(logits, width // 2), drafted, laws, seed, 1)
    if not normaliser.valid[row]:
        return
    for shard in masses:
        if shard.target_mass[row] > 0:
            assert logits[row, shard.target_token[row]] > -np.inf
        if row < DEPTH and shard.residual_mass[row] > 0:
            token = int(shard.residual_token[row])
            target_prob = np.exp(np.float64(logits[row, token]) - normaliser.maximum[row]) / normaliser.sum_exp[row]
            assert target_prob > laws[row].count_of(token) / 2**24


def statistics_of(rows: NDArray[np.float32], first: int, ids: list[int]) -> ShardStatistics:
    return shard_statistics(rows, first, np.array(ids, dtype=np.int64))


def test_a_shard_that_is_all_masked_is_lawful() -> None:
    full = statistics_of(np.array([[1, 2]], dtype=np.float32), 0, [1])
    masked = statistics_of(np.full((1, 2), -np.inf, dtype=np.float32), 2, [1])
    for merged in (combine_statistics(full, masked), combine_statistics(masked, full)):
        assert merged.valid.tolist() == [True]
        assert merged.argmax_id.tolist() == [1]
        assert merged.draft_probability[0] == pytest.approx(1 / (1 + np.exp(-1)))


def test_judging_validity_before_the_merge_would_be_caught() -> None:
    masked = statistics_of(np.full((1, 2), -np.inf, dtype=np.float32), 2, [1])
    planted_valid = bool(np.isfinite(masked.maximum[0]))
    full = statistics_of(np.array([[1, 2]], dtype=np.float32), 0, [1])
    assert bool(combine_statistics(full, masked).valid[0]) != planted_valid


def test_greedy_ties_across_shards_go_to_the_lower_global_id_from_either_side() -> None:
    low = statistics_of(np.array([[0, 7, 7]], dtype=np.float32), 0, [-1])
    high = statistics_of(np.array([[7, 7, 0]], dtype=np.float32), 3, [-1])
    assert combine_statistics(low, high).argmax_id.tolist() == [1]
    assert combine_statistics(high, low).argmax_id.tolist() == [1]


def test_a_drafted_token_that_is_masked_has_probability_zero_and_one_that_is_absent_has_none() -> None:
    rows = np.array([[0, -np.inf], [0, 1]], dtype=np.float32)
    shard = statistics_of(rows, 0, [1, -1])
    empty = statistics_of(np.zeros((2, 2), dtype=np.float32), 2, [1, -1])
    merged = combine_statistics(shard, empty)
    assert merged.draft_probability[0] == 0.0
    assert np.isnan(merged.draft_probability[1])


def test_two_shards_that_claim_one_token_are_refused() -> None:
    shard = statistics_of(np.zeros((1, 2), dtype=np.float32), 0, [1])
    with pytest.raises(ValueError, match="row 0: both shards claim"):
        combine_statistics(shard, shard)


@given(batches(WILD), st.integers(0, 2**32))
@settings(deadline=None)
def test_packing_and_unpacking_gives_the_same_bytes(logits: NDArray[np.float32], seed: int) -> None:
    drafted, laws = drafts_for(logits.shape[1], seed)
    statistics = statistics_of(logits, 0, [*drafted, -1])
    assert ShardStatistics.unpack(statistics.pack()).pack().tobytes() == statistics.pack().tobytes()
    masses = verify(unsharded(logits), drafted, laws, seed, 1)[1][0]
    assert ShardMasses.unpack(masses.pack()).pack().tobytes() == masses.pack().tobytes()
    assert statistics.pack().shape == (DEPTH + 1, 5)
    assert masses.pack().shape == (DEPTH + 1, 4)


def test_packed_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be float64 \(rows, 5\)"):
        ShardStatistics.unpack(np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"must be float64 \(rows, 4\)"):
        ShardMasses.unpack(np.zeros((2, 5)))


@pytest.mark.parametrize("width", [1, 7, 64, 2048, 2051])
def test_a_row_has_the_same_bits_alone_and_at_any_place_of_a_batch(width: int) -> None:
    rng = np.random.default_rng(width)
    logits = rng.normal(scale=4, size=(24, width)).astype(np.float32)
    ids = rng.integers(0, width, size=24)
    batch = shard_statistics(logits, 0, ids).pack()
    for row in range(24):
        alone = shard_statistics(logits[row : row + 1].copy(), 0, ids[row : row + 1]).pack()
        assert alone.tobytes() == batch[row : row + 1].tobytes()
    mirrored = shard_statistics(np.asfortranarray(logits[::-1]), 0, ids[::-1]).pack()
    assert mirrored[::-1].tobytes() == batch.tobytes()


def test_rows_cuts_one_request_out_of_a_batch() -> None:
    logits = np.random.default_rng(1).normal(size=(8, 10)).astype(np.float32)
    drafted, laws = drafts_for(10, 1)
    ids = np.array([*drafted, -1, *drafted, -1], dtype=np.int64)
    both = [shard_statistics(part, first, ids) for part, first in split(logits, 5)]
    normaliser = combine_statistics(*both).rows(4, 8)
    second = verify(split(logits[4:], 5), drafted, laws, 9, 1)
    assert normaliser.draft_probability.tolist()[:3] == second[0].draft_probability.tolist()[:3]
    words = words_for(9, Purpose.RESIDUAL, 4), words_for(9, Purpose.TARGET_ONLY, 4)
    masses = shard_masses(
        logits[:, :5].copy(), 0, combine_statistics(*both), [*laws, None] * 2, words[0] * 2, words[1] * 2
    )
    assert masses.rows(4, 8).pack().tobytes() == second[1][0].pack().tobytes()


@pytest.mark.parametrize("width", [2, 255, 4097])
def test_a_permuted_vocabulary_gives_the_same_sum(width: int) -> None:
    rng = np.random.default_rng(width)
    row = rng.normal(scale=5, size=(1, width)).astype(np.float32)
    orders = [np.arange(width), *(rng.permutation(width) for _ in range(4))]
    sums = {float(statistics_of(row[:, order], 0, [-1]).sum_exp[0]) for order in orders}
    assert len(sums) == 1


def test_a_sum_of_floats_in_their_order_would_be_caught() -> None:
    rng = np.random.default_rng(4097)
    terms = exponential(-rng.exponential(5, size=4097))
    orders = [rng.permutation(4097) for _ in range(8)]
    assert len({float(np.cumsum(terms[order])[-1]) for order in orders}) > 1


@pytest.mark.parametrize("zeros", [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]])
def test_both_zeros_are_exchanged_as_the_same_bytes(zeros: list[float]) -> None:
    row = np.array([zeros], dtype=np.float32)
    plain = statistics_of(np.zeros((1, 2), dtype=np.float32), 0, [1])
    assert statistics_of(row, 0, [1]).pack().tobytes() == plain.pack().tobytes()


def test_a_drafted_token_outside_every_shard_has_no_probability() -> None:
    low, high = (statistics_of(np.zeros((1, 2), dtype=np.float32), first, [9]) for first in (0, 2))
    assert np.isnan(combine_statistics(low, high).draft_probability[0])


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows of logits came with 1"):
        shard_statistics(np.zeros((2, 3), np.float32), 0, np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="must be float32"):
        shard_statistics(np.zeros((2, 3)), 0, np.zeros(2, np.int64))  # type: ignore[arg-type]
    short, long = (statistics_of(np.zeros((rows, 2), np.float32), 0, [-1] * rows) for rows in (1, 2))
    with pytest.raises(ValueError, match="1 and 2 rows"):
        combine_statistics(short, long)
    with pytest.raises(ValueError, match="too wide"):
        shard_statistics(np.zeros((1, MOST_TERMS + 1), np.float32), 0, np.zeros(1, np.int64))
