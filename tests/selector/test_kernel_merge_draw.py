"""Merge and draw gives the law, token and digest of the pure references, bit for bit, and anew in every replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.kernels import merge_draw
from selector.kernels.kernel_cases import CASES, case_row
from selector.kernels.launch_count import LaunchLog
from selector.kernels.merge_draw import (
    SPECS,
    DrawNames,
    MergeBuffers,
    law_number_as_int64,
    merge_and_draw,
)
from selector.kernels.merge_draw_reference import DrawName, ReferenceRows, reference_rows
from selector.kernels.shard_select_reference import reference_words
from selector.law_ids import EXACT_LAW_ID, GREEDY_LAW_ID, law_number, pruned_law_id
from selector.logit_keys import MASKED_KEY, candidate_keys
from selector.row_status import RowStatus

CPU = torch.device("cpu")
Words = NDArray[np.int64]
WIDTH = 300


def poisoned_buffers(rows: int) -> MergeBuffers:
    buffers = MergeBuffers.allocate(rows, CPU)
    for field in fields(buffers):
        if field.name != "weight_table":
            getattr(buffers, field.name).fill_(0x5A5A5A5A)
    return buffers


def names_on_device(names: Sequence[DrawName]) -> DrawNames:
    columns = np.array(names, dtype=np.uint64).reshape(-1, 3).view(np.int64)
    return DrawNames(*(torch.from_numpy(np.ascontiguousarray(columns[:, place])) for place in range(3)))


def some_names(rows: int) -> list[DrawName]:
    generator = np.random.default_rng(rows)
    seeds, requests = generator.integers(0, 2**64, (2, rows), dtype=np.uint64).tolist()
    positions = generator.integers(0, 2**32, rows).tolist()
    return list(zip(seeds, requests, positions, strict=True))


def first_difference(buffers: MergeBuffers, expected: ReferenceRows) -> str | None:
    for field in fields(expected):
        mine, theirs = getattr(buffers, field.name).numpy(), getattr(expected, field.name)
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return f"{field.name} is {mine.dtype} {mine.shape}"
        if (mine != theirs).any():
            return f"{field.name} of row {np.argwhere(mine != theirs)[0][0]}"
    return None


def difference(first: Words, second: Words, names: Sequence[DrawName], law_id: str = EXACT_LAW_ID) -> str | None:
    """Return where the kernel leaves the reference, None when nowhere. first, second: int64 (rows, 33)."""
    buffers = poisoned_buffers(len(names))
    mine, peers = torch.from_numpy(first.copy()), torch.from_numpy(second.copy())
    merge_and_draw(mine, peers, names_on_device(names), buffers, law_id)
    return first_difference(buffers, reference_rows([first, second], names, law_id))


def registry_words(cut: int = WIDTH // 2) -> tuple[Words, Words]:
    rows = np.stack([case_row(case, WIDTH) for case in CASES])
    return reference_words(rows[:, :cut], 0), reference_words(rows[:, cut:], cut)


def words_of(keys: list[int], poisoned: int = 0) -> Words:
    return np.array([[*keys, *[MASKED_KEY] * (32 - len(keys)), poisoned]], dtype=np.int64)


def key(logit: float, token_id: int) -> int:
    return int(candidate_keys(np.array([logit], dtype=np.float32), np.array([token_id], dtype=np.int64))[0])


@pytest.mark.parametrize("cut", [150, 7])
def test_every_case_of_the_registry_gives_the_references_bits(cut: int) -> None:
    first, second = registry_words(cut)
    assert difference(first, second, some_names(len(first))) is None


LOGITS = st.one_of(
    st.sampled_from([-3.0e38, -8.1, -1e-45, 0.0, 1e-45, 2.0, 2.0000002, 3.0e38]), st.floats(-30, 30, width=32)
)
NAMES = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))


@settings(max_examples=40)
@given(st.lists(LOGITS, min_size=1, max_size=64), NAMES, st.integers(0, 2**31 - 65), st.randoms(use_true_random=False))
def test_any_candidates_in_any_order_give_the_references_bits(
    logits: list[float], name: DrawName, first_id: int, shuffler: st.DataObject
) -> None:
    keys = [key(logit, first_id + place) for place, logit in enumerate(logits)]
    shuffler.shuffle(keys)  # type: ignore[attr-defined]
    assert difference(words_of(keys[:32]), words_of(keys[32:]), [name]) is None


def test_a_token_that_both_shards_list_with_one_logit_counts_once() -> None:
    row = case_row(CASES[0], WIDTH)[np.newaxis]
    first, second = reference_words(row[:, :200], 0), reference_words(row[:, 100:], 100)
    assert len(set(first[0, :32]) & set(second[0, :32])) > 3
    assert difference(first, second, some_names(1)) is None
    assert difference(first, first, some_names(1)) is None


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (words_of([key(1.0, 3)]), words_of([]), RowStatus.VALID),
        (words_of([]), words_of([key(1.0, 3)]), RowStatus.VALID),
        (words_of([]), words_of([]), RowStatus.NONE_FINITE),
        (words_of([key(1.0, 3)]), words_of([], poisoned=1), RowStatus.NAN_OR_POSITIVE_INFINITY),
        (words_of([], poisoned=1), words_of([]), RowStatus.NAN_OR_POSITIVE_INFINITY),
        (words_of([key(1.0, 3)]), words_of([key(2.0, 3)]), RowStatus.ONE_TOKEN_TWO_LOGITS),
        # Poison is named before a conflict, and a conflict beyond the 32 greatest is one all the same.
        (words_of([key(1.0, 3)]), words_of([key(2.0, 3)], poisoned=1), RowStatus.NAN_OR_POSITIVE_INFINITY),
        (
            words_of([key(9.0, 100 + place) for place in range(32)]),
            words_of([key(1.0, 3), key(0.5, 3)]),
            RowStatus.ONE_TOKEN_TWO_LOGITS,
        ),
        (words_of([0x7F800000 << 32]), words_of([]), RowStatus.NAN_OR_POSITIVE_INFINITY),
        (words_of([-0x7F800001 << 32 | 5]), words_of([key(1.0, 3)]), RowStatus.NAN_OR_POSITIVE_INFINITY),
    ],
)
def test_a_row_has_the_status_of_the_reference(first: Words, second: Words, status: RowStatus) -> None:
    names = some_names(1)
    assert reference_rows([first, second], names).statuses.tolist() == [status]
    assert difference(first, second, names) is None


def test_a_replay_with_advanced_positions_draws_anew_from_the_same_buffers() -> None:
    first, second = registry_words()
    names = some_names(len(first))
    on_device, buffers = names_on_device(names), poisoned_buffers(len(first))
    tensors = torch.from_numpy(first), torch.from_numpy(second)
    drawn = []
    for step in range(3):
        merge_and_draw(*tensors, on_device, buffers)
        moved = [(seed, request, position + step) for seed, request, position in names]
        assert first_difference(buffers, reference_rows([first, second], moved)) is None
        drawn.append(buffers.tokens.tolist())
        on_device.positions.add_(1)
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_a_permuted_batch_draws_the_same_rows() -> None:
    first, second = registry_words()
    order = np.random.default_rng(3).permutation(len(first))
    names = some_names(len(first))
    moved = [names[place] for place in order]
    assert difference(first[order], second[order], moved) is None
    assert difference(second, first, names) is None


@pytest.mark.parametrize("law_id", [EXACT_LAW_ID, GREEDY_LAW_ID, pruned_law_id(16, 5)])
def test_the_digest_is_that_of_the_law_it_is_given(law_id: str) -> None:
    first, second = registry_words()
    assert difference(first[:2], second[:2], some_names(2), law_id) is None
    assert law_number_as_int64(law_id) % 2**64 == law_number(law_id)
    assert -(2**63) <= law_number_as_int64(law_id) < 2**63


def test_all_rows_are_one_launch() -> None:
    log = LaunchLog()
    first, second = (torch.from_numpy(words[:3].copy()) for words in registry_words())
    merge_and_draw(first, second, names_on_device(some_names(3)), poisoned_buffers(3), log=log)
    assert log.names == ["merge_draw"]


@triton.jit
def words_that_ignore_the_position(seed, request, position, purpose):  # type: ignore[no-untyped-def]
    return (request ^ seed).to(tl.uint32), position, position, purpose


@triton.jit
def counts_without_what_is_missing(weights):  # type: ignore[no-untyped-def]
    return ((weights.to(tl.uint64) << 24) // tl.sum(weights, 0).to(tl.uint64)).to(tl.int64)


@triton.jit
def place_of_the_greatest(counts, draw24):  # type: ignore[no-untyped-def]
    return draw24.to(tl.int32) * 0


@triton.jit
def digest_without_the_token(token_ids, counts, number, token, law_number):  # type: ignore[no-untyped-def]
    return tl.sum(counts.to(tl.uint64), 0) + law_number.to(tl.uint64)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("philox_words", words_that_ignore_the_position),
        ("counts_of_weights", counts_without_what_is_missing),
        ("pick_place", place_of_the_greatest),
        ("digest_of", digest_without_the_token),
        ("MASKED_ORDERED", tl.constexpr(-(1 << 31))),
        ("POISON_ORDERED", tl.constexpr(0x7FFFFFFF)),
    ],
)
def test_a_planted_bug_in_the_kernel_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    first, second = (words[:4] for words in registry_words())
    first[1, 0] = -0x7F800001 << 32 | 5
    first[2, 0] = 0x7F800000 << 32
    names = some_names(4)
    assert difference(first, second, names) is None
    monkeypatch.setattr(merge_draw, name, planted)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert difference(first, second, names) is not None


@pytest.mark.parametrize(
    ("place", "tensor", "message"),
    [
        (0, torch.zeros(2, 32, dtype=torch.int64), "first_words is torch.int64 \\(2, 32\\)"),
        (1, torch.zeros(2, 33, dtype=torch.int32), "second_words is torch.int32"),
        (1, torch.zeros(33, 2, dtype=torch.int64).T, "must be contiguous int64 \\(2, 33\\)"),
        (2, torch.zeros(3, dtype=torch.int64), "seeds is"),
        (3, torch.zeros(2), "requests is torch.float32"),
        (4, torch.zeros(2, 1, dtype=torch.int64), "positions is"),
    ],
)
def test_words_and_names_of_another_form_are_refused(place: int, tensor: torch.Tensor, message: str) -> None:
    arguments = [torch.zeros(2, 33, dtype=torch.int64)] * 2 + [torch.zeros(2, dtype=torch.int64)] * 3
    arguments[place] = tensor
    with pytest.raises(ValueError, match=message):
        merge_and_draw(arguments[0], arguments[1], DrawNames(*arguments[2:]), poisoned_buffers(2))


def test_room_for_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rows is 0"):
        MergeBuffers.allocate(0, CPU)


def test_the_launched_specialisation_is_listed() -> None:
    (spec,) = SPECS
    assert set(spec.signature) | set(spec.constants) == set(spec.kernel.arg_names)
