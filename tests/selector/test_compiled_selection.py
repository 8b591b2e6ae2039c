"""The compiled selection gives the numpy reference's bits: keys, order, counts, token, digest and status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.candidates import ShardCandidates, merge_candidates
from selector.candidates import shard_candidates_rows as reference_candidates
from selector.compiled.merged_draw import DrawnRows, draw_names, draw_rows, draw_rows_at
from selector.compiled.reference_comparison import reference_drawn, selection_difference, widened
from selector.compiled.row_selection import empty_candidates, select_rows, shard_candidates_rows
from selector.compiled.warm_up import warm_up
from selector.draft_law import GRID, DraftCounts, InvalidReason, InvalidRow, counts_of, draw_token
from selector.fixed_point import WEIGHT_TABLE
from selector.kernels.kernel_cases import CASES, LARGE_WIDTHS, SMALL_WIDTHS, case_row
from selector.kernels.shard_select_reference import reference_words
from selector.logit_keys import MASKED_KEY, candidate_keys
from selector.row_status import RowStatus

WIDTHS = (
    1,
    2,
    31,
    32,
    33,
    127,
    511,
    512,
    513,
    1023,
    1024,
    1025,
    2047,
    4096,
    5119,
    16_000,
    64_640,
    81_920,
    81_921,
    163_839,
    163_840,
)
SPECIAL_BITS = (0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0xFF7FFFFF, 0x7F7FFFFF, 0xFF800000)
POISON_BITS = (0x7F800000, 0x7F800001, 0x7FC00000, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)


def from_bits(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    return bits.astype(np.uint32).view(np.float32)


def cut_to_brain(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (logits.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def special_rows(width: int, seed: int) -> NDArray[np.float32]:
    """One row of each kind: normal, tied, masked, all masked, of special values only, ascending, one in each 64."""
    generator = np.random.default_rng([seed, width])
    rows = (generator.standard_normal((7, width)) * 3).astype(np.float32)
    rows[1] = np.round(rows[1])
    rows[2, generator.random(width) < 0.97] = -np.inf
    rows[3] = -np.inf
    rows[4] = from_bits(generator.choice(np.array(SPECIAL_BITS, dtype=np.uint32), width))
    rows[5] = np.sort(rows[5])
    rows[6, ::64] += 100
    return rows


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_kind_give_the_references_bits(width: int) -> None:
    rows = special_rows(width, 1)
    assert selection_difference([rows]) is None
    assert selection_difference([cut_to_brain(rows)]) is None


@pytest.mark.parametrize("widths", [(81_920, 81_920), (16_001, 15_999), (1, 5000), (700, 1, 40)])
def test_parts_of_a_vocabulary_give_the_references_bits(widths: tuple[int, ...]) -> None:
    parts = [special_rows(width, seed) for seed, width in enumerate(widths)]
    assert selection_difference(parts, seed=2**63 + 5) is None
    assert selection_difference([cut_to_brain(part) for part in parts]) is None


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200), st.integers(1, 40))
@example([0x80000000] * 40 + [0x00000000] * 40, 32)
@example([0xFF7FFFFF, 0xFF800000], 1)
def test_any_bits_whatever_give_the_references_bits(bits: list[int], repeats: int) -> None:
    with np.errstate(invalid="ignore"):
        row = np.tile(from_bits(np.array(bits, dtype=np.uint32)), repeats)[np.newaxis]
        assert selection_difference([row]) is None
        assert selection_difference([cut_to_brain(row), cut_to_brain(row[:, ::-1].copy())]) is None


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6000), st.sampled_from([1e-42, 0.01, 1.0, 40.0]))
def test_random_rows_of_any_scale_give_the_references_bits(seed: int, width: int, scale: float) -> None:
    row = (np.random.default_rng(seed).standard_normal((1, width)) * scale).astype(np.float32)
    assert selection_difference([row], seed) is None


@pytest.mark.parametrize("bits", POISON_BITS)
@pytest.mark.parametrize("width", [1, 40, 1024, 5000])
def test_a_poisoned_logit_anywhere_poisons_the_row_and_only_it(bits: int, width: int) -> None:
    for place in {0, width // 2, width - 1}:
        rows = special_rows(width, 3)[:2]
        rows.view(np.uint32)[1, place] = bits
        words = empty_candidates(2)
        select_rows(rows, 0, words)
        assert words[1].tolist() == [MASKED_KEY] * 32 + [1]
        assert words[0, 32] == 0
        assert selection_difference([rows]) is None


def test_a_negative_nan_in_bfloat16_poisons_the_row() -> None:
    rows = cut_to_brain(special_rows(3000, 3)[:1])
    rows[0, 1500] = 0xFFC0
    words = empty_candidates(1)
    select_rows(rows, 0, words)
    assert words[0, 32] == 1


def test_denormals_are_told_apart_when_the_processor_flushes_them() -> None:
    # The switch is the thread's; a process of its own keeps it from the other tests.
    code = (
        "import numpy, torch; assert torch.set_flush_denormal(True)\n"
        "from selector.compiled.row_selection import shard_candidates_rows\n"
        "row = numpy.arange(3000, dtype=numpy.uint32).view(numpy.float32)[numpy.newaxis]\n"
        "assert not (row > 0).any(), 'the switch has no effect here'\n"
        "ids = shard_candidates_rows(row, 0)[0].token_ids.tolist()\n"
        "assert ids == list(range(2999, 2967, -1)), ids\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_dataclasses_are_the_references() -> None:
    rows = special_rows(5000, 4)
    rows[5, 7] = np.nan
    wanted, found = reference_candidates(rows, 11), shard_candidates_rows(rows, 11)
    for expected, candidates in zip(wanted, found, strict=True):
        assert candidates.token_ids.dtype == np.int32
        assert candidates.token_ids.tobytes() == expected.token_ids.tobytes()
        assert candidates.logits.tobytes() == expected.logits.tobytes()
        assert candidates.poisoned is expected.poisoned


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    rows = special_rows(4321, 5)
    together = empty_candidates(len(rows))
    select_rows(rows, 0, together)
    for index in range(len(rows)):
        alone = empty_candidates(1)
        select_rows(rows[index : index + 1], 0, alone)
        assert alone.tobytes() == together[index].tobytes()


def test_rows_that_are_not_contiguous_are_selected_as_they_read() -> None:
    rows = special_rows(4000, 6)
    left = empty_candidates(len(rows))
    select_rows(rows[:, :2000], 0, left)
    assert left.tolist() == reference_words(rows[:, :2000].copy(), 0).tolist()


@pytest.mark.parametrize(
    ("logits", "first", "words"),
    [
        (np.zeros((1, 0), np.float32), 0, np.zeros((1, 33), np.int64)),
        (np.zeros((1, 4), np.float64), 0, np.zeros((1, 33), np.int64)),
        (np.zeros((1, 4), ">f4"), 0, np.zeros((1, 33), np.int64)),
        (np.zeros(4, np.float32), 0, np.zeros((1, 33), np.int64)),
        (np.zeros((1, 4), np.float32), -1, np.zeros((1, 33), np.int64)),
        (np.zeros((1, 4), np.float32), 2**31 - 3, np.zeros((1, 33), np.int64)),
        (np.zeros((1, 4), np.float32), 0, np.zeros((2, 33), np.int64)),
        (np.zeros((1, 4), np.float32), 0, np.zeros((1, 32), np.int64)),
        (np.zeros((1, 4), np.float32), 0, np.zeros((1, 33), np.int32)),
    ],
)
def test_a_wrong_shape_or_range_is_refused_in_a_sentence(
    logits: NDArray[np.float32], first: int, words: NDArray[np.int64]
) -> None:
    with pytest.raises(ValueError, match="must be"):
        select_rows(logits, first, words)


def merged(parts: list[list[tuple[int, float]]]) -> DrawnRows:
    """Merge hand-made shards, each a list of (id, logit), in the order that they stand in."""
    words = np.full((len(parts), 1, 33), MASKED_KEY, dtype=np.int64)
    words[:, :, 32] = 0
    for shard, part in zip(words, parts, strict=True):
        for place, (token_id, logit) in enumerate(part):
            shard[0, place] = candidate_keys(np.array([logit], np.float32), np.array([token_id]))[0]
    drawn = DrawnRows.allocate(1)
    draw_rows_at(words, np.array([0]), drawn)
    return drawn


def test_a_token_listed_twice_with_one_logit_counts_once() -> None:
    drawn = merged([[(5, 2.0), (3, 1.0)], [(5, 2.0)]])
    assert drawn.token_ids[0, :3].tolist() == [5, 3, -1]


@pytest.mark.parametrize("between", [[], [(9, 2.5)]])
def test_a_token_listed_with_two_logits_makes_the_row_invalid(between: list[tuple[int, float]]) -> None:
    drawn = merged([[(5, 3.0), *between], [(5, 2.0)]])
    assert drawn.law(0) == InvalidRow(InvalidReason.ONE_TOKEN_TWO_LOGITS)


def test_words_that_are_not_sorted_are_merged_all_the_same() -> None:
    shuffled = merged([[(1, 1.0), (2, 7.0), (3, 4.0)], [(9, -1.0), (8, 5.0)]])
    assert shuffled.token_ids[0, :5].tolist() == [2, 8, 3, 1, 9]


@pytest.mark.parametrize("logit", [np.inf, np.nan])
def test_an_exchanged_key_that_is_no_finite_logit_makes_the_row_invalid(logit: float) -> None:
    drawn = merged([[(5, logit)], [(6, 1.0)]])
    assert drawn.law(0) == InvalidRow(InvalidReason.NAN_OR_POSITIVE_INFINITY)


@pytest.mark.parametrize("status", [RowStatus.NAN_OR_POSITIVE_INFINITY, RowStatus.NONE_FINITE])
def test_an_invalid_row_holds_no_token_no_count_and_no_digest(status: RowStatus) -> None:
    words = np.full((2, 1, 33), MASKED_KEY, dtype=np.int64)
    words[:, :, 32] = 0
    words[1, 0, 32] = status is RowStatus.NAN_OR_POSITIVE_INFINITY
    drawn = DrawnRows(np.full((1, 68), 77, dtype=np.int64))
    draw_rows(words, draw_names(np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.int64)), drawn)
    assert drawn.statuses.tolist() == [status]
    assert drawn.tokens.tolist() == [-1]
    assert drawn.digests.tolist() == [0]
    assert drawn.numbers.tolist() == [0]
    assert not drawn.counts.any()
    assert (drawn.token_ids == -1).all()


def test_draws_at_both_sides_of_every_step_pick_the_references_token() -> None:
    logits = special_rows(3000, 8)[:1]
    words = empty_candidates(1)[np.newaxis]
    select_rows(logits, 0, words[0])
    merged_row = merge_candidates(reference_candidates(logits, 0))
    assert isinstance(merged_row, ShardCandidates)
    law = counts_of(merged_row)
    steps = np.cumsum(law.counts)
    draws = np.unique(np.clip(np.concatenate([[0, GRID - 1], steps - 1, steps]), 0, GRID - 1))
    drawn = DrawnRows.allocate(len(draws))
    draw_rows_at(np.ascontiguousarray(np.repeat(words, len(draws), axis=1)), draws, drawn)
    assert drawn.tokens.tolist() == [draw_token(law, int(draw)) for draw in draws]


def test_the_law_reads_back_as_counts_that_sum_to_the_grid() -> None:
    drawn = merged([[(5, 2.0), (3, 1.0)], []])
    law = drawn.law(0)
    assert isinstance(law, DraftCounts)
    assert law.token_ids.tolist() == [5, 3]
    assert int(law.counts.sum()) == GRID


@pytest.mark.parametrize("position", [-1, 2**32])
def test_a_position_out_of_range_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match="position"):
        draw_names(np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.array([position]))


def test_names_of_another_number_of_rows_are_refused() -> None:
    words = np.full((2, 3, 33), MASKED_KEY, dtype=np.int64)
    with pytest.raises(ValueError, match="must be"):
        draw_rows(words, np.zeros((2, 3), np.int64), DrawnRows.allocate(3))


def test_the_comparison_finds_a_planted_bug_in_selection_and_in_the_draw() -> None:
    rows = special_rows(3000, 9)

    def greater_ids_first(logits: NDArray[np.float32], first: int, words: NDArray[np.int64]) -> None:
        select_rows(np.ascontiguousarray(logits[:, ::-1]), first, words)

    def next_position(words: NDArray[np.int64], names: NDArray[np.int64], drawn: DrawnRows) -> None:
        draw_rows(words, names + np.array([0, 0, 1]), drawn)

    assert "exchanged word" in (selection_difference([rows], select=greater_ids_first) or "")
    assert "token[0]" in (selection_difference([rows], draw=next_position) or "")


def test_brain_floats_widen_exactly() -> None:
    assert widened(np.array([0x3F80, 0x8001, 0xFF80], dtype=np.uint16)).view(np.uint32).tolist() == [
        0x3F800000,
        0x80010000,
        0xFF800000,
    ]


def test_warming_up_refuses_machine_code_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warm_up().seconds >= 0
    changed = WEIGHT_TABLE.copy()
    changed[1:] -= 1 << 16
    # The machine code holds the table as it was when it was built, so a new one must be noticed.
    monkeypatch.setattr("selector.fixed_point.WEIGHT_TABLE", changed)
    with pytest.raises(RuntimeError, match="delete numba's cache"):
        warm_up()


def test_a_machine_without_any_writable_cache_folder_compiles_all_the_same(tmp_path: Path) -> None:
    source = tmp_path / "doubled.py"
    source.write_text(
        "from selector.compiled.jit import compiled\n\n@compiled\ndef doubled(x):\n    return 2 * x\n\n"
        "assert doubled(21) == 42\n",
        encoding="utf-8",
    )
    # Only the folder that the user named is tried, and nothing can be made there.
    environment = {
        **os.environ,
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        "NUMBA_CACHE_DIR": "/proc/nowhere",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, str(source)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_reference_of_an_invalid_row_is_the_contracts() -> None:
    empty = np.full((1, 1, 33), MASKED_KEY, dtype=np.int64)
    empty[:, :, 32] = 0
    assert reference_drawn(empty, 0).tolist() == [[-1] * 32 + [0] * 33 + [-1, 0, RowStatus.NONE_FINITE]]


@pytest.mark.parametrize("width", [*SMALL_WIDTHS, *LARGE_WIDTHS])
def test_every_case_of_the_kernels_gives_the_references_bits(width: int) -> None:
    rows = np.stack([case_row(case, width) for case in CASES])
    half = max(1, width // 2)
    halves = [rows[:, :half].copy(), rows[:, half:].copy()] if width > 1 else [rows]
    assert selection_difference([rows]) is None
    assert selection_difference(halves) is None
    assert selection_difference([cut_to_brain(part) for part in halves]) is None
