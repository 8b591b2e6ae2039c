"""The benchmark times nothing that is not bit-identical, pairs its samples, and names what has no number."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console

from selector.compiled.bench_contenders import FLOOR, NUMPY, OURS, TORCH, cpu_contenders, round_logits
from selector.compiled.bench_result import AimOutcome, BenchResult, Quartiles, ShapeTimes
from selector.compiled.bench_run import BenchOptions, judge_aims, missing_baselines, run_bench
from selector.compiled.bench_shapes import AIM_SHAPE, FULL_SHAPES, QUICK_SHAPES, BenchShape
from selector.compiled.bench_timing import paired_samples, quartiles
from selector.compiled.bench_view import bench_data, bench_lines, bench_tables
from selector.compiled.merged_draw import DrawnRows, draw_rows
from selector.compiled.row_selection import select_rows
from selector.kernels.device_records import DeviceBench, DeviceMissing, DeviceTime
from selector.kernels.exact_contenders import EXACT

SMALL = BenchShape(batch=2, depth=2, vocabulary=2600)


def options(**changes: Any) -> BenchOptions:
    return BenchOptions(
        **{"date": "2000-01-01", "shapes": (SMALL,), "seconds_a_shape": 0.0, "device": False, **changes}
    )


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return run_bench(options(shapes=(AIM_SHAPE, SMALL)))


def rendered(result: BenchResult) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        for table in bench_tables(result):
            console.print(table)
        for line in bench_lines(result):
            console.print(line, soft_wrap=True)
    return captured.get()


def test_the_full_benchmark_has_every_shape_of_the_plan_and_the_row_of_the_aims() -> None:
    assert len(FULL_SHAPES) == 1 + 4 * 2 * 3
    assert {(each.batch, each.depth) for each in FULL_SHAPES[1:]} == {(b, d) for b in (1, 2, 3, 4) for d in (4, 5)}
    assert {each.vocabulary for each in FULL_SHAPES[1:]} == {32_000, 129_280, 163_840}
    assert {each.shards for each in FULL_SHAPES[1:]} == {2}
    assert AIM_SHAPE in QUICK_SHAPES


def test_a_run_yields_complete_data_for_json(result: BenchResult) -> None:
    data = json.loads(json.dumps(bench_data(result)))
    assert data["gate_passed"] is True
    assert data["exit_code"] == 0
    assert [shape["name"] for shape in data["shapes"]] == [AIM_SHAPE.name, SMALL.name]
    for shape in data["shapes"]:
        assert set(shape["microseconds"]) == {FLOOR, OURS, TORCH, NUMPY}
        assert shape["samples"] >= 7
        for times in [*shape["microseconds"].values(), *shape["ratios"].values()]:
            assert 0 < times["lower"] <= times["median"] <= times["upper"]
    environment = data["environment"]
    assert environment["date"] == "2000-01-01"
    assert environment["packages"]["numba"].startswith("0.")
    assert environment["cores"] >= 1


def test_every_aim_is_said_to_be_met_or_not_with_its_ratio(result: BenchResult) -> None:
    text = rendered(result)
    for aim in result.aims:
        assert aim.ratio is not None
        assert aim.outcome is not AimOutcome.NOT_MEASURED
        assert f"{aim.ratio:.2f} x" in text
    assert SMALL.name.replace("depth ", "d") in text


def test_a_baseline_without_a_number_is_named_with_its_reason(result: BenchResult) -> None:
    reasons = {each.name: each.reason for each in result.not_measured}
    assert "not asked for" in reasons["CUDA device"]
    assert {"FlashInfer", "vLLM"} <= set(reasons)
    assert "Not measured: FlashInfer" in rendered(result)
    assert result.device.times == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_the_device_part_says_so() -> None:
    found = run_bench(options(device=True))
    assert {each.name: each.reason for each in found.not_measured}["CUDA device"] == "no CUDA device"


def last_key_dropped(logits: NDArray[np.float32], first: int, words: NDArray[np.int64]) -> None:
    select_rows(logits, first, words)
    words[:, 31] = words[:, 30]


def counts_one_off(words: NDArray[np.int64], names: NDArray[np.int64], drawn: DrawnRows) -> None:
    draw_rows(words, names, drawn)
    drawn.counts[:, 0] -= 1
    drawn.counts[:, 1] += 1


@pytest.mark.parametrize(
    ("planted", "part"), [({"select": last_key_dropped}, "exchanged word 31"), ({"draw": counts_one_off}, "counts[0]")]
)
def test_the_gate_catches_a_planted_bug_and_then_gives_no_number(planted: dict[str, Any], part: str) -> None:
    found = run_bench(options(**planted))
    assert found.exit_code == 1
    assert found.shapes == ()
    assert part in (found.difference or "")
    assert bench_tables(found) == []
    assert [aim.outcome for aim in found.aims] == [AimOutcome.NOT_MEASURED] * 2
    assert rendered(found).startswith("NOT BIT-IDENTICAL")


def on_a_device(result: BenchResult, microseconds: float) -> BenchResult:
    time = DeviceTime(EXACT, 1, 5, 163_840, 2, "graph", "warm", 100, microseconds, microseconds, microseconds)
    missing = (DeviceMissing("vLLM", "not installed"),)
    return result.model_copy(update={"device": DeviceBench("a card", 4000.0, None, (time,), missing)})


@pytest.mark.parametrize(("microseconds", "word"), [(22.0, "within"), (51.0, "ABOVE")])
def test_a_device_round_stands_beside_the_plans_objective(result: BenchResult, microseconds: float, word: str) -> None:
    found = on_a_device(result, microseconds)
    text = rendered(found)
    assert f"{word} the plan's objective of 50 us" in text
    assert "155-209 us" in text
    assert json.loads(json.dumps(bench_data(found)))["device"]["times"][0]["median"] == microseconds
    assert [each.name for each in missing_baselines(found.device)] == ["vLLM"]


def test_a_difference_on_the_device_is_told_instead_of_times(result: BenchResult) -> None:
    found = result.model_copy(update={"device": DeviceBench("a card", 4000.0, "row 3", (), ())})
    assert "DEVICE NOT BIT-IDENTICAL" in rendered(found)
    assert found.exit_code == 1


def shape_times(ours_to_floor: float, torch_to_ours: float) -> ShapeTimes:
    def flat(value: float) -> Quartiles:
        return Quartiles(lower=value, median=value, upper=value)

    return ShapeTimes(
        name=AIM_SHAPE.name,
        batch=1,
        depth=1,
        vocabulary=AIM_SHAPE.vocabulary,
        shards=1,
        samples=7,
        microseconds={},
        ratios={f"{OURS} / {FLOOR}": flat(ours_to_floor), f"{TORCH} / {OURS}": flat(torch_to_ours)},
    )


@pytest.mark.parametrize(
    ("ours_to_floor", "torch_to_ours", "outcomes"),
    [(3.9, 5.1, ["met", "met"]), (4.1, 5.1, ["not met", "met"]), (3.9, 4.9, ["met", "not met"])],
)
def test_an_aim_is_met_on_its_own_side_of_the_bound(
    ours_to_floor: float, torch_to_ours: float, outcomes: list[str]
) -> None:
    assert [aim.outcome for aim in judge_aims([shape_times(ours_to_floor, torch_to_ours)])] == outcomes


def test_without_its_row_an_aim_is_not_measured() -> None:
    assert [aim.outcome for aim in judge_aims([])] == ["not measured", "not measured"]


def test_samples_are_paired_and_run_in_both_orders() -> None:
    ran: list[str] = []
    ticks = iter(range(10_000))
    samples = paired_samples(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 0.0, 4, lambda: float(next(ticks))
    )
    assert [len(values) for values in samples.values()] == [4, 4]
    assert "".join(ran)[-8:] == "abbaabba"


def test_a_slow_spell_leaves_a_paired_ratio_alone() -> None:
    runs, now = 0, 0.0

    def work(cost: float) -> None:
        nonlocal runs, now
        # Every other sample, both contenders run nine times slower.
        now += cost * (9.0 if runs // 2 % 2 else 1.0)
        runs += 1

    samples = paired_samples({"a": lambda: work(1.0), "b": lambda: work(2.0)}, 0.0, 8, lambda: now)
    assert set(samples["a"]) == {1.0, 9.0}
    assert {second / first for first, second in zip(samples["a"], samples["b"], strict=True)} == {2.0}


def test_quartiles_ignore_one_stolen_time_slice() -> None:
    assert quartiles([2.0, 2.0, 2.0, 2.0, 900.0]) == (2.0, 2.0, 2.0)


def test_all_contenders_work_on_the_logits_that_the_gate_saw() -> None:
    logits = round_logits(SMALL, 3)
    again = round_logits(SMALL, 3)
    assert logits.whole.tobytes() == again.whole.tobytes()
    assert np.concatenate(logits.shards, axis=-1).tobytes() == logits.whole.tobytes()
    before = logits.whole.tobytes(), [part.tobytes() for part in logits.shards]
    for work in cpu_contenders(logits).values():
        work()
    assert (logits.whole.tobytes(), [part.tobytes() for part in logits.shards]) == before


def test_torch_gets_its_threads_and_its_random_state_back() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    run_bench(options())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_progress_counts_up_to_its_total() -> None:
    seen: list[tuple[int, int, str]] = []
    run_bench(options(), lambda done, total, what: seen.append((done, total, what)))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][:2] == (3, 3)
    assert "comparing" in seen[0][2]
