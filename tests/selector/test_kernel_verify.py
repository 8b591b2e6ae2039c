"""The verify kernels give numpy's bytes on the registry and on small random rounds, and a planted bug changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.kernels import verify_decide, verify_masses, verify_statistics, wide_integers
from selector.kernels.verify_cases import SMALL_CASES, in_bfloat16, random_case
from selector.kernels.verify_decide import DecisionBuffers, launch_decision
from selector.kernels.verify_masses import launch_masses
from selector.kernels.verify_reference import (
    VerifyCase,
    decision_reference,
    masses_reference,
    statistics_reference,
)
from selector.kernels.verify_round import TILES, VerifyTile, tile_of
from selector.kernels.verify_statistics import launch_statistics
from selector.kernels.verify_trial import VerifyTrial
from selector.target_exponential import MOST_TERMS

CPU = "cpu"
TILE = VerifyTile(columns=64, warps=1, places=8)
CASES = {make().name: make for make in SMALL_CASES}
DECISION_ONLY = {"depth 3", "depth 4", "depth 6", "depth 7"}
"""The first two steps see rows, not depths; the interpreter is slow."""


def trial(case: VerifyCase, dtype: torch.dtype = torch.float32, tile: VerifyTile = TILE) -> VerifyTrial:
    """Return a trial in the interpreter with a tile small enough for several blocks."""
    return VerifyTrial(case, CPU, dtype, tile)


@pytest.mark.parametrize("name", list(CASES))
def test_every_step_gives_the_bytes_of_numpy(name: str) -> None:
    assert trial(CASES[name]()).differences(name in DECISION_ONLY) == []


@pytest.mark.parametrize("name", ["ties and both zeros", "masks, a masked draft and a shard without any"])
def test_bfloat16_logits_give_the_bytes_of_numpy(name: str) -> None:
    assert trial(in_bfloat16(CASES[name]()), torch.bfloat16).differences() == []


def test_the_registry_exercises_every_way_in_which_a_round_ends() -> None:
    seen: set[tuple[str, int]] = set()
    for make in SMALL_CASES:
        case = make()
        statistics = statistics_reference(case)
        for decision in decision_reference(case, statistics, masses_reference(case, statistics)):
            seen |= {("status", decision.status), ("forced", decision.forced), ("accepted", decision.accepted)}
            seen.add(("invalid", min(decision.invalid_row, 2)))
    assert {("status", status) for status in range(3)} <= seen
    assert {("forced", 0), ("forced", 1), ("invalid", -1), ("invalid", 0), ("invalid", 1), ("invalid", 2)} <= seen
    assert {("accepted", accepted) for accepted in range(9)} <= seen


def test_a_replay_draws_anew_and_leaves_no_counter_raised() -> None:
    case = random_case("replayed", 2, 1, 70, 33, 12, closeness=0.9)
    bench = trial(case)
    for step in range(2):
        moved = replace(case, position=tuple(position + step for position in case.position))
        bench.round.position.copy_(torch.tensor(moved.position))
        bench.case = moved
        bench.poison()
        assert bench.differences() == []
        assert not any(int(buffers.arrivals.abs().sum()) for buffers in bench.statistics_buffers)
    first, second = (
        masses_reference(item, statistics_reference(item))[:, :, 1::2].tolist() for item in (case, bench.case)
    )
    assert first != second


def test_a_verify_is_four_launches_a_shard_and_one_decision() -> None:
    bench = trial(random_case("counted", 1, 1, 20, 10, 13))
    statistics = bench.statistics()
    bench.decisions(statistics, bench.masses(statistics))
    assert bench.log.count("verify_maxima/") == bench.log.count("verify_sums/") == 2
    assert bench.log.count("verify_weigh/") == bench.log.count("verify_pick/") == 2
    assert bench.log.count("verify_decide/") == 1
    assert bench.log.count() == 9


@given(st.integers(0, 2**32), st.integers(2, 40), st.data())
@settings(max_examples=8)
def test_small_random_rounds_give_the_bytes_of_numpy(seed: int, vocabulary: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, vocabulary - 1))
    case = random_case("random", 1, 1, vocabulary, cut, seed, closeness=data.draw(st.sampled_from([0.0, 0.9, 1.0])))
    special = st.sampled_from([-np.inf, np.inf, np.nan, 0.0, -0.0, 3.0, -3e38])
    for row, column, value in data.draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, vocabulary - 1), special), max_size=4)
    ):
        case.logits[row, column] = value
    case.usable_depth[0] = data.draw(st.integers(0, 1))
    case.temperature[0] = data.draw(st.integers(0, 1))
    assert trial(case).differences() == []


@triton.jit
def negative_nan_forgotten(ordered):  # type: ignore[no-untyped-def]
    return ordered >= 0x7F800000


@triton.jit
def without_the_low_limbs(high, low):  # type: ignore[no-untyped-def]
    return high.to(tl.float64) * 2.0**-45


@triton.jit
def law_forgotten(masses, columns, ids_ptr, counts_ptr, number, first_token_id):  # type: ignore[no-untyped-def]
    return masses


@triton.jit
def unscaled_sum(maximum0, sum0, maximum1, sum1, maximum, valid, table_ptr):  # type: ignore[no-untyped-def]
    return tl.where(valid, sum0 + sum1, 1.0)


@triton.jit
def block_forgotten(sums, draw):  # type: ignore[no-untyped-def]
    total = tl.sum(sums, 0)
    return total, 0, wide_integers.multiply_high(draw, total)


@triton.jit
def always_shard_0(draw, units0, units1):  # type: ignore[no-untyped-def]
    return units0 == units0


@triton.jit
def always_accepted(draw53, counts, probabilities):  # type: ignore[no-untyped-def]
    return probabilities == probabilities


@triton.jit
def shard_0_first(statistics_ptr, shard_stride, rows, inside):  # type: ignore[no-untyped-def]
    return tl.load(statistics_ptr + rows * 5 + 3, mask=inside, other=0.0).to(tl.int32)


def greedy_case() -> VerifyCase:
    case = random_case("greedy", 1, 1, 70, 30, 3)
    case.temperature[0] = 0
    case.logits[:, 60] = 50.0
    return case


def sampled_case() -> VerifyCase:
    return random_case("sampled", 2, 1, 150, 70, 1, closeness=0.0)


def negative_nan_case() -> VerifyCase:
    case = random_case("negative NaN", 1, 0, 20, 10, 2)
    case.logits[0, 15] = -np.nan
    return case


def wide_case() -> VerifyCase:
    return random_case("wide", 1, 1, 400, 190, 2)


def close_case() -> VerifyCase:
    return random_case("close", 2, 1, 150, 70, 1, closeness=1.0)


PLANTED: list[tuple[ModuleType, str, object, Callable[[], VerifyCase], str]] = [
    (
        verify_statistics,
        "poisoned_bits",
        negative_nan_forgotten,
        negative_nan_case,
        "statistics",
    ),
    (verify_statistics, "sum_of_limbs", without_the_low_limbs, sampled_case, "statistics"),
    (verify_masses, "without_draft_law", law_forgotten, close_case, "masses"),
    (verify_masses, "merged_sum", unscaled_sum, sampled_case, "masses"),
    (verify_masses, "aim_of", block_forgotten, wide_case, "masses"),
    (verify_decide, "first_shard_picked", always_shard_0, sampled_case, "decisions"),
    (verify_decide, "product_below_probability", always_accepted, sampled_case, "decisions"),
    (verify_decide, "greatest_ids", shard_0_first, greedy_case, "decisions"),
]


@pytest.mark.parametrize(("module", "name", "bug", "make", "step"), PLANTED, ids=[row[1] for row in PLANTED])
def test_a_planted_bug_changes_the_bytes(
    module: ModuleType,
    name: str,
    bug: object,
    make: Callable[[], VerifyCase],
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert step in trial(make()).differences()


def test_a_first_token_id_of_the_other_shard_changes_the_bytes() -> None:
    bench = trial(sampled_case())
    bench.shards = [(part, 70 - first) for part, first in bench.shards]
    assert bench.differences() == ["statistics", "masses"]


def test_every_width_has_a_tile_that_holds_it_and_wider_shards_are_refused() -> None:
    for width in (1, 81_920, 131_072, 131_073, 163_840, MOST_TERMS):
        tile = tile_of(width)
        assert triton.cdiv(width, tile.columns) <= tile.places
    assert tile_of(81_920) == TILES[0]
    for width in (0, MOST_TERMS + 1):
        with pytest.raises(ValueError, match=r"must have 1 \.\. 262143"):
            tile_of(width)


def test_tensors_that_fit_no_round_are_refused() -> None:
    case = random_case("refused", 1, 1, 20, 10, 13)
    bench = trial(case)
    (logits, first), buffers = bench.shards[0], bench.statistics_buffers[0]
    with pytest.raises(ValueError, match="must be float32 or bfloat16"):
        launch_statistics(logits.to(torch.float64), first, bench.round, buffers)
    with pytest.raises(ValueError, match="must be float32 or bfloat16"):
        launch_statistics(logits[:1], first, bench.round, buffers)
    with pytest.raises(ValueError, match="buffers hold"):
        launch_statistics(torch.zeros((2, 70)), first, bench.round, buffers)
    with pytest.raises(ValueError, match="exchanged statistics are"):
        launch_masses(logits, first, torch.zeros((2, 2, 4)), bench.round, bench.masses_buffers[0])
    with pytest.raises(ValueError, match="counts is"):
        replace(bench.round, counts=torch.zeros((2, 32))).check()
    with pytest.raises(ValueError, match="depth is 16"):
        replace(bench.round, depth=16).check()
    with pytest.raises(ValueError, match="buffers hold tokens"):
        launch_decision(
            torch.zeros((2, 2, 5), dtype=torch.float64),
            torch.zeros((2, 2, 4), dtype=torch.float64),
            bench.round,
            DecisionBuffers.allocate(2, 1, CPU),
        )
