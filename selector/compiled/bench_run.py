"""`specbed selector bench`: gate first, then paired times on the CPU, then the device where there is one.

No number is given unless compiled code and reference agree, bit for bit, on every row that is timed.
Must never report a missing baseline as a number or as a pass. Source: DESIGN sections 7 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import torch

from selector.compiled.bench_contenders import (
    FLOOR,
    NUMPY,
    OURS,
    TORCH,
    RoundLogits,
    cpu_contenders,
    round_difference,
    round_logits,
)
from selector.compiled.bench_environment import load_average, read_environment
from selector.compiled.bench_result import Aim, AimOutcome, BenchResult, NotMeasured, Quartiles, ShapeTimes
from selector.compiled.bench_shapes import AIM_SHAPE, FULL_SHAPES, BenchShape
from selector.compiled.bench_timing import paired_samples, quartiles
from selector.compiled.merged_draw import draw_rows
from selector.compiled.reference_comparison import DrawRows, SelectRows
from selector.compiled.row_selection import select_rows
from selector.compiled.warm_up import WarmUp, warm_up
from selector.kernels.device_bench import measure_device
from selector.kernels.device_records import DeviceBench

__all__ = ["BenchOptions", "run_bench"]

Progress = Callable[[int, int, str], None]

FLOOR_BOUND: Final = 4.0
TORCH_BOUND: Final = 5.0
LEAST_SAMPLES: Final = 7
REFERENCE_SAMPLES: Final = 3
_OURS_TO_FLOOR = f"{OURS} / {FLOOR}"
_TORCH_TO_OURS = f"{TORCH} / {OURS}"
_NUMPY_TO_OURS = f"{NUMPY} / {OURS}"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """date: shown and stored as it is; seconds_a_shape: of timing, without the gate; device: whether to try one."""

    date: str
    shapes: Sequence[BenchShape] = FULL_SHAPES
    seconds_a_shape: float = 2.0
    seed: int = 1
    device: bool = True
    select: SelectRows = select_rows
    draw: DrawRows = draw_rows


@contextmanager
def _torch_borrowed() -> Iterator[None]:
    # One thread, and the caller's random state given back: torch is faster with its own generator than with ours.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def _ratio(samples: dict[str, list[float]], above: str, below: str) -> Quartiles:
    pairs = zip(samples[above], samples[below], strict=True)
    return _quartiles([first / second for first, second in pairs])


def _quartiles(values: list[float]) -> Quartiles:
    lower, median, upper = quartiles(values)
    return Quartiles(lower=lower, median=median, upper=upper)


def time_round(logits: RoundLogits, budget_seconds: float) -> ShapeTimes:
    """Return the times of every contender on one round; numpy gets three samples of its own, paired with ours."""
    contenders = cpu_contenders(logits)
    main = paired_samples({name: contenders[name] for name in (FLOOR, OURS, TORCH)}, budget_seconds, LEAST_SAMPLES)
    slow = paired_samples({name: contenders[name] for name in (OURS, NUMPY)}, 0.0, REFERENCE_SAMPLES)
    times = {**main, NUMPY: slow[NUMPY]}
    shape = logits.shape
    return ShapeTimes(
        name=shape.name,
        batch=shape.batch,
        depth=shape.depth,
        vocabulary=shape.vocabulary,
        shards=shape.shards,
        samples=len(main[OURS]),
        microseconds={name: _quartiles([value * 1e6 for value in values]) for name, values in times.items()},
        ratios={
            _OURS_TO_FLOOR: _ratio(main, OURS, FLOOR),
            _TORCH_TO_OURS: _ratio(main, TORCH, OURS),
            _NUMPY_TO_OURS: _ratio(slow, NUMPY, OURS),
        },
    )


def judge_aims(shapes: Sequence[ShapeTimes]) -> tuple[Aim, ...]:
    """Return both aims with the median ratio measured on one row of 81,920, or as not measured without that shape."""
    ratios = {shape.name: shape.ratios for shape in shapes}.get(AIM_SHAPE.name, {})
    row = f"one row of {AIM_SHAPE.vocabulary:,} float32 logits"
    floor = ratios[_OURS_TO_FLOOR].median if ratios else None
    faster = ratios[_TORCH_TO_OURS].median if ratios else None
    return (
        _aim(f"select, count, draw and digest {row} within {FLOOR_BOUND:g} x reading it once", FLOOR_BOUND, floor, -1),
        _aim(
            f"at least {TORCH_BOUND:g} x faster than torch topk + softmax + multinomial on {row}",
            TORCH_BOUND,
            faster,
            1,
        ),
    )


def _aim(text: str, bound: float, ratio: float | None, direction: int) -> Aim:
    if ratio is None:
        return Aim(aim=text, bound=bound, ratio=None, outcome=AimOutcome.NOT_MEASURED)
    met = (ratio - bound) * direction >= 0
    return Aim(aim=text, bound=bound, ratio=ratio, outcome=AimOutcome.MET if met else AimOutcome.NOT_MET)


def missing_baselines(device: DeviceBench) -> tuple[NotMeasured, ...]:
    """Return every baseline of the plan that has no number here, each with its reason."""
    missing = [NotMeasured(name=each.contender, reason=each.reason) for each in device.missing]
    if device.times:
        return tuple(missing)
    for name, module in (("FlashInfer", "flashinfer"), ("vLLM", "vllm")):
        reason = "not installed" if find_spec(module) is None else "it is installed and needs a CUDA device"
        missing.append(NotMeasured(name=name, reason=reason))
    missing.append(NotMeasured(name="the plan's two launches a depth", reason="they need a CUDA device"))
    return tuple(missing)


def run_bench(options: BenchOptions, on_progress: Progress = lambda _done, _total, _what: None) -> BenchResult:
    """Return the benchmark's result; with a difference in the gate it holds no time at all and its exit code is 1.

    on_progress: called with steps done, steps in all and what comes next. Takes about (seconds_a_shape + 1) a shape.
    Raises RuntimeError when machine code from the cache differs from the reference. Source: DESIGN section 7.
    """
    before = load_average()
    warmed = warm_up()
    rounds = len(options.shapes)
    total = 2 * rounds + 1
    for number, shape in enumerate(options.shapes):
        on_progress(number, total, f"comparing with the reference: {shape.name}")
        difference = round_difference(round_logits(shape, options.seed), options.select, options.draw)
        if difference is not None:
            return _result(options, before, warmed, difference, (), _no_device("the gate found a difference"))
    times = []
    with _torch_borrowed():
        for number, shape in enumerate(options.shapes):
            on_progress(rounds + number, total, f"timing: {shape.name}")
            times.append(time_round(round_logits(shape, options.seed), options.seconds_a_shape))
    on_progress(2 * rounds, total, "timing on the device")
    device = measure_device() if options.device else _no_device("not asked for")
    on_progress(total, total, "done")
    return _result(options, before, warmed, None, tuple(times), device)


def _no_device(reason: str) -> DeviceBench:
    return measure_device(refused=reason)


def _result(
    options: BenchOptions,
    load_before: float | None,
    warmed: WarmUp,
    difference: str | None,
    times: tuple[ShapeTimes, ...],
    device: DeviceBench,
) -> BenchResult:
    return BenchResult(
        difference=difference,
        environment=read_environment(options.date, 1, load_before, load_average()),
        warm_up_seconds=warmed.seconds,
        functions_built=warmed.built,
        functions_loaded=warmed.loaded,
        shapes=times,
        aims=judge_aims(times),
        not_measured=missing_baselines(device),
        device=device,
    )
