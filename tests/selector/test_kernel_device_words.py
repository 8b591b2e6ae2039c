"""The device functions give the bits of their numpy namesakes; each comparison is shown to notice a wrong bit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.draft_law import GRID, DraftCounts, draw_indices
from selector.fixed_point import WEIGHT_TABLE
from selector.kernels import device_words
from selector.law_digest import counts_digest, mix64
from selector.law_ids import EXACT_LAW_ID, law_number
from selector.logit_keys import candidate_keys, ordered_bits, poisoned_bits
from selector.philox import Purpose, draw_words

SIZE = 64
EDGE_BITS = [0, 1 << 31, 1, (1 << 31) | 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000]
NAN_BITS = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF]
WORD = st.integers(0, 2**64 - 1)


@triton.jit
def write_ordered(logits, ordered, keys, poisoned):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 64)
    bits = device_words.ordered_bits(tl.load(logits + place))
    tl.store(ordered + place, bits)
    tl.store(keys + place, device_words.candidate_keys(bits, place + 7))
    tl.store(poisoned + place, device_words.poisoned_bits(bits).to(tl.int32))


@triton.jit
def write_words(name, words, purpose):  # type: ignore[no-untyped-def]
    drawn = device_words.philox_words(tl.load(name), tl.load(name + 1), tl.load(name + 2), purpose)
    for lane in tl.static_range(4):
        tl.store(words + lane, drawn[lane].to(tl.int64))


@triton.jit
def write_place_and_digest(ids, counts, draws, number, law, places, digest):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 32)
    row_ids, row_counts = tl.load(ids + place), tl.load(counts + place)
    for draw in tl.static_range(4):
        tl.store(places + draw, device_words.pick_place(row_counts, tl.load(draws + draw)))
    candidates = tl.load(number)
    token = tl.sum(tl.where(place == tl.load(places), row_ids, 0), 0)
    row_digest = device_words.digest_of(row_ids, row_counts, candidates, token, tl.load(law))
    tl.store(digest, row_digest.to(tl.int64, bitcast=True))


@triton.jit
def write_mixed(words, mixed):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 64)
    scrambled = device_words.mix64(tl.load(words + place).to(tl.uint64, bitcast=True))
    tl.store(mixed + place, scrambled.to(tl.int64, bitcast=True))


@triton.jit
def write_exponents_and_weights(distances, table, exponents, weights):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 64)
    fixed = device_words.exponents_of(tl.load(distances + place))
    tl.store(exponents + place, fixed)
    tl.store(weights + place, device_words.weight_of_exponent(fixed, table))


def signed(values: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.uint64).view(np.int64))


def written_ordered(bits: NDArray[np.uint32], brain: bool) -> tuple[NDArray[np.int32], NDArray[np.int64], list[int]]:
    logits = torch.from_numpy(bits.view(np.float32))
    if brain:
        logits = torch.from_numpy((bits >> np.uint32(16)).astype(np.uint16)).view(torch.bfloat16)
    ordered, poisoned = torch.full((2, SIZE), 99, dtype=torch.int32)
    keys = torch.full((SIZE,), 99, dtype=torch.int64)
    write_ordered[(1,)](logits, ordered, keys, poisoned)
    return ordered.numpy(), keys.numpy(), poisoned.tolist()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=50, max_size=50), st.booleans())
def test_ordered_bits_and_keys_are_the_references_for_every_number_and_poison_for_every_nan(
    drawn: list[int], brain: bool
) -> None:
    bits = np.array([*EDGE_BITS, *NAN_BITS, *drawn], dtype=np.uint32)
    if brain:
        bits &= np.uint32(0xFFFF0000)
    ordered, keys, poisoned = written_ordered(bits, brain)
    with np.errstate(invalid="ignore"):
        expected = ordered_bits(bits.view(np.float32))
        expected_keys = candidate_keys(bits.view(np.float32), np.arange(SIZE) + 7)
    bad = poisoned_bits(expected)
    assert poisoned == bad.tolist()
    assert (ordered[~bad] == expected[~bad]).all()
    assert (keys[~bad] == expected_keys[~bad]).all()


@settings(max_examples=30)
@given(WORD, WORD, st.integers(0, 2**32 - 1), st.sampled_from(Purpose))
def test_the_words_of_any_draw_are_those_of_its_name(seed: int, request: int, position: int, purpose: Purpose) -> None:
    words = torch.full((4,), 99, dtype=torch.int64)
    write_words[(1,)](signed([seed, request, position]), words, int(purpose))
    assert tuple(words.tolist()) == draw_words(seed, request, position, purpose)


def test_the_words_of_one_draw_are_those_of_its_name() -> None:
    words = torch.full((4,), 99, dtype=torch.int64)
    write_words[(1,)](signed([2**63 + 5, 2**40 + 1, 2**32 - 1]), words, int(Purpose.PROPOSAL))
    assert tuple(words.tolist()) == draw_words(2**63 + 5, 2**40 + 1, 2**32 - 1, Purpose.PROPOSAL)


@settings(max_examples=20)
@given(st.lists(WORD, min_size=SIZE, max_size=SIZE))
def test_words_are_scrambled_as_the_reference_scrambles_them(words: list[int]) -> None:
    mixed = torch.full((SIZE,), 99, dtype=torch.int64)
    write_mixed[(1,)](signed(words), mixed)
    assert (mixed.numpy().view(np.uint64) == mix64(np.array(words, dtype=np.uint64))).all()


@settings(max_examples=30)
@given(st.lists(st.integers(0, GRID), min_size=31, max_size=31), st.integers(1, 32), st.integers(0, GRID - 1))
def test_a_draw_picks_the_first_cumulative_count_that_exceeds_it(cuts: list[int], number: int, draw: int) -> None:
    edges = np.sort(np.array([0, *cuts[: number - 1], GRID], dtype=np.int64))
    law = DraftCounts(np.arange(number, dtype=np.int32) * 3 + 1, np.diff(edges))
    ids, counts = np.full(32, -1, dtype=np.int32), np.zeros(32, dtype=np.int64)
    ids[:number], counts[:number] = law.token_ids, law.counts
    # At an edge, one below it, and at both ends.
    edge = int(edges[number // 2])
    draws = [draw, min(edge, GRID - 1), max(edge - 1, 0), GRID - 1]
    places, digest = torch.full((4,), 99, dtype=torch.int32), torch.full((1,), 99, dtype=torch.int64)
    arguments = (torch.from_numpy(ids), torch.from_numpy(counts), torch.tensor(draws))
    candidates = torch.tensor([number], dtype=torch.int32)
    write_place_and_digest[(1,)](*arguments, candidates, signed([law_number(EXACT_LAW_ID)]), places, digest)
    assert places.tolist() == draw_indices(law, np.array(draws)).tolist()
    token = int(law.token_ids[int(places[0])])
    assert int(digest.numpy().view(np.uint64)[0]) == counts_digest(law, token, EXACT_LAW_ID)


def written_exponents(distances: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    exponents, weights = torch.full((2, SIZE), 99, dtype=torch.int64)
    table = torch.from_numpy(WEIGHT_TABLE.copy())
    write_exponents_and_weights[(1,)](torch.from_numpy(distances), table, exponents, weights)
    return exponents.tolist(), weights.tolist()


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 40.0), min_size=60, max_size=60))
def test_exponents_are_rounded_to_the_nearest_integer_ties_to_even(drawn: list[float]) -> None:
    distances = np.array([*drawn, 0.0, 5e-324, 1e30, 3.4e38], dtype=np.float64)
    expected = np.rint(np.minimum(distances * 2.060992915555662, 63.0) * 2.0**32).astype(np.int64)
    exponents, weights = written_exponents(distances)
    assert exponents == expected.tolist()
    # The real power, from the very exponent that was rounded.
    for exponent, weight in zip(exponents, weights, strict=True):
        real = 2.0 ** (38 - exponent / 2.0**32)
        assert abs(weight - real) <= 1.0 + real * 2.0**-31


def test_ties_of_rounding_go_to_even_in_both_directions() -> None:
    # Distances whose scaled value lies exactly between two integers are found by search, not assumed.
    candidates = np.arange(1, 2_000_000, dtype=np.float64) * 2.0**-33 / 2.060992915555662
    scaled = candidates * 2.060992915555662 * 2.0**32
    ties = candidates[(scaled - np.floor(scaled)) == 0.5][:SIZE]
    assert len(ties) == SIZE
    exponents, _ = written_exponents(ties)
    halves = [Fraction(float(distance * 2.060992915555662)) * 2**32 for distance in ties]
    assert exponents == [round(half) for half in halves]
    assert {int(half) % 2 for half in halves} == {0, 1}


@triton.jit
def exponents_cut_to_integers(distances):  # type: ignore[no-untyped-def]
    return (tl.minimum(distances * 2.060992915555662, 63.0) * 4294967296.0).to(tl.int64)


@triton.jit
def words_of_no_rounds(seed, request, position, purpose):  # type: ignore[no-untyped-def]
    return request.to(tl.uint32), seed.to(tl.uint32), position.to(tl.uint32), position.to(tl.uint32) * 0 + purpose


@pytest.mark.parametrize(
    ("name", "planted", "test"),
    [
        ("exponents_of", exponents_cut_to_integers, test_ties_of_rounding_go_to_even_in_both_directions),
        ("philox_words", words_of_no_rounds, test_the_words_of_one_draw_are_those_of_its_name),
    ],
)
def test_a_planted_wrong_bit_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object, test: Callable[[], None]
) -> None:
    monkeypatch.setattr(device_words, name, planted)
    with pytest.raises(AssertionError):
        test()
