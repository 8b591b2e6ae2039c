"""Shard select gives the numpy reference's words bit for bit, whatever tiles, strides, types and poison a row has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from selector.kernels import shard_select
from selector.kernels.kernel_cases import CASES, case_row, cut_to_bfloat16
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.shard_select import SPECS, TILES, SelectBuffers, ShardTile, select_shard_rows, tile_of_width
from selector.kernels.shard_select_reference import reference_words
from selector.logit_keys import MASKED_KEY

SMALL = ShardTile(slots=4, threads=32, lists=4)
CPU = torch.device("cpu")
GARBAGE = 0x0123456789ABCDEF


def poisoned_buffers(rows: int, width: int, tile: ShardTile | None = SMALL) -> SelectBuffers:
    buffers = SelectBuffers.allocate(rows, width, CPU, tile)
    buffers.words.fill_(GARBAGE)
    # Greater than any candidate's key: whatever is read unwritten would be seen.
    buffers.partials.fill_((1 << 63) - 1)
    return buffers


def difference(
    rows: NDArray[np.float32],
    dtype: torch.dtype = torch.float32,
    first_token_id: int = 0,
    tile: ShardTile | None = SMALL,
) -> str | None:
    """Return where the kernel's words leave the reference's, None when nowhere. rows: float32 (rows, width)."""
    if dtype == torch.bfloat16:
        rows = cut_to_bfloat16(rows)
    buffers = poisoned_buffers(len(rows), rows.shape[1], tile)
    words = select_shard_rows(as_tensor(rows, dtype), first_token_id, buffers).numpy()
    wrong = np.argwhere(words != reference_words(rows, first_token_id))
    if buffers.tickets.any():
        return f"tickets are {buffers.tickets.tolist()}"
    return f"row {wrong[0][0]} word {wrong[0][1]}" if len(wrong) else None


def as_tensor(rows: NDArray[np.float32], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float32:
        return torch.from_numpy(rows)
    # By bits: a conversion may change a NaN.
    return torch.from_numpy((rows.view(np.uint32) >> np.uint32(16)).astype(np.uint16)).view(torch.bfloat16)


def registry_rows(width: int) -> NDArray[np.float32]:
    return np.stack([case_row(case, width) for case in CASES])


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (1, torch.float32),
        (31, torch.float32),
        (129, torch.float32),
        (300, torch.float32),
        (33, torch.bfloat16),
        (300, torch.bfloat16),
    ],
)
def test_every_case_of_the_registry_gives_the_references_bits(width: int, dtype: torch.dtype) -> None:
    assert difference(registry_rows(width), dtype, first_token_id=1000) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("tile", "width"), [(TILES[0], 2_500), (TILES[1], 1_023), (TILES[2], 1_025), (TILES[3], 2_049)]
)
def test_the_tiles_that_are_launched_give_the_references_bits(tile: ShardTile, width: int, dtype: torch.dtype) -> None:
    rows = np.stack([case_row(case, width) for case in CASES if case.name in {"normal", "tie at the cut"}])
    assert difference(rows, dtype, tile=tile) is None


def test_a_shard_of_the_greatest_vocabulary_gives_the_references_bits() -> None:
    row = cut_to_bfloat16(case_row(CASES[0], 81_920))
    assert difference(row[np.newaxis], torch.bfloat16, first_token_id=81_920, tile=None) is None


VALUES = [-np.inf, -3.0e38, -2.5, -1e-45, -0.0, 0.0, 1e-45, 1.0, 1.0000001, 3.0e38]


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([*VALUES, *VALUES, *VALUES, np.inf, np.nan, -np.nan]), min_size=1, max_size=260),
    st.integers(0, 2**31 - 300),
    st.booleans(),
)
def test_any_row_of_special_values_gives_the_references_bits(values: list[float], first: int, brain: bool) -> None:
    rows = np.array([values], dtype=np.float32)
    assert difference(rows, torch.bfloat16 if brain else torch.float32, first) is None


def test_rows_may_lie_apart_at_any_stride_and_offset() -> None:
    store = np.stack([case_row(CASES[0], 461), case_row(CASES[1], 461), case_row(CASES[8], 461)])
    logits = torch.from_numpy(store)[::2, 7:208]
    buffers = poisoned_buffers(2, 201)
    words = select_shard_rows(logits, 5, buffers).numpy()
    assert (words == reference_words(np.ascontiguousarray(store[::2, 7:208]), 5)).all()


def test_the_greatest_token_id_survives() -> None:
    rows = registry_rows(200)[:1]
    assert difference(rows, first_token_id=2**31 - 200) is None


def test_a_replay_reads_new_logits_and_finds_no_ticket_left() -> None:
    logits = torch.from_numpy(registry_rows(300)[:2].copy())
    buffers = poisoned_buffers(2, 300)
    for name in ("few values", "negative NaN", "normal"):
        case = next(case for case in CASES if case.name == name)
        logits[:] = torch.from_numpy(case_row(case, 300))
        words = select_shard_rows(logits, 0, buffers).numpy()
        assert (words == reference_words(logits.numpy(), 0)).all(), name
        assert buffers.tickets.tolist() == [0, 0]


def test_a_ticket_left_behind_would_be_seen() -> None:
    rows = registry_rows(300)[:1]
    buffers = poisoned_buffers(1, 300)
    buffers.tickets.fill_(1)
    planted = select_shard_rows(torch.from_numpy(rows), 0, buffers).numpy()
    assert (planted != reference_words(rows, 0)).any()


def test_all_rows_and_tiles_are_one_launch() -> None:
    log = LaunchLog()
    select_shard_rows(torch.from_numpy(registry_rows(300)[:2].copy()), 0, poisoned_buffers(2, 300), log)
    assert log.count() == log.count("shard_select/") == 1
    assert log.count("merge_draw") == 0


@triton.jit
def keys_with_ties_to_the_higher_id(ordered, token_ids):  # type: ignore[no-untyped-def]
    keys = (ordered.to(tl.int64) << 32) | token_ids.to(tl.int64)
    return tl.where(ordered <= -0x7F800001, -(1 << 63), keys)


@triton.jit
def bits_that_tell_zeros_apart(logits):  # type: ignore[no-untyped-def]
    bits = logits.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def place_as_it_is(place):  # type: ignore[no-untyped-def]
    return place


@pytest.mark.parametrize(
    ("name", "planted", "case_name"),
    [
        ("candidate_keys", keys_with_ties_to_the_higher_id, "few values"),
        ("ordered_bits", bits_that_tell_zeros_apart, "signed zeros"),
        ("stored_place", place_as_it_is, "normal"),
        # Nothing is below the least integer: a negative NaN is then the least candidate, and lost.
        ("MASKED_ORDERED", tl.constexpr(-(1 << 31)), "negative NaN"),
        ("POISON_ORDERED", tl.constexpr(0x7F800001), "positive infinity"),
    ],
)
def test_a_planted_bug_in_the_kernel_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object, case_name: str
) -> None:
    rows = np.stack([case_row(case, 300) for case in CASES if case.name == case_name])
    assert difference(rows) is None
    monkeypatch.setattr(shard_select, name, planted)
    assert difference(rows) is not None


def test_a_row_of_nothing_has_no_candidate_and_is_not_poisoned() -> None:
    row = np.full((1, 40), -np.inf, dtype=np.float32)
    words = select_shard_rows(torch.from_numpy(row), 0, poisoned_buffers(1, 40))
    assert words.tolist() == [[MASKED_KEY] * 32 + [0]]


@pytest.mark.parametrize(
    ("width", "lists"),
    [(1, 16), (16_384, 16), (16_385, 64), (65_536, 64), (65_537, 128), (131_072, 128), (163_840, 128)],
)
def test_the_narrowest_tile_that_holds_a_row_is_taken(width: int, lists: int) -> None:
    tile = tile_of_width(width)
    assert tile.lists == lists
    assert tile.size == (2048 if width > 131_072 else 1024)


@pytest.mark.parametrize("width", [0, 163_841])
def test_a_width_beyond_the_greatest_vocabulary_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"width is {width}, must be in 1 .. 163840"):
        tile_of_width(width)


@pytest.mark.parametrize(
    ("logits", "first", "message"),
    [
        (torch.zeros(2, 40, dtype=torch.float64), 0, "must be float32 or bfloat16"),
        (torch.zeros(3, 40), 0, "must be float32 or bfloat16 \\(2, 1 .. 512\\)"),
        (torch.zeros(2, 513), 0, "\\(2, 513\\)"),
        (torch.zeros(40, 2).T, 0, "columns next to each other"),
        (torch.zeros(2, 40), -1, "first_token_id is -1"),
        (torch.zeros(2, 40), 2**31 - 39, "must be in 0 .. 2\\^31 - 40"),
    ],
)
def test_logits_of_another_form_are_refused(logits: torch.Tensor, first: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_shard_rows(logits, first, poisoned_buffers(2, 40))


@pytest.mark.parametrize("rows", [0, 65_536])
def test_rows_that_no_launch_holds_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"rows is {rows}"):
        SelectBuffers.allocate(rows, 40, CPU)


def test_a_launch_with_an_argument_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 arguments, needs 8"):
        launch(SPECS[0], (1,), [1])


def test_every_launched_specialisation_is_listed() -> None:
    assert len({spec.name for spec in SPECS}) == len(SPECS) == 2 * len(TILES)
    for spec in SPECS:
        assert set(spec.signature) | set(spec.constants) == set(spec.kernel.arg_names)
