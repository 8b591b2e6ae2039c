"""Times of the selector on a CUDA device: ours and the baselines, eager and as a graph, L2 warm and cold.

Imports no more than numpy, torch, triton and pure modules of the selector, so it runs where only those are installed.
Gate first: a contender with our law is compared with the numpy reference on the very rows that are timed; one
difference, and no time is given at all. Must never report a contender that did not run as a number.
Source: DESIGN sections 3, 7 and 9.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

import torch
import triton

from selector.kernels.device_contenders import (
    Contender,
    ContenderMissing,
    DeviceRound,
    PreparedRound,
    baselines,
    device_round,
)
from selector.kernels.device_records import DeviceBench, DeviceMissing, DeviceTime
from selector.kernels.device_timing import TimedMode, captured, eager_modes, graph_modes, read_bandwidth_gb_s
from selector.kernels.exact_contenders import exact_contenders
from selector.kernels.pruned_contenders import pruned_contenders

__all__ = ["DEVICE_SHAPES", "contenders", "first_difference", "measure_device"]

Shape = tuple[int, int, int]

DEVICE_SHAPES: Final[tuple[Shape, ...]] = tuple(
    (batch, depth, vocabulary)
    for vocabulary in (32_000, 129_280, 163_840)
    for depth in (4, 5)
    for batch in (1, 2, 3, 4)
)
"""(B, depth, vocabulary)."""
FLOOR: Final = "floor: bytes of one half / measured read bandwidth"
NO_DEVICE: Final = "CUDA device"


def contenders() -> tuple[Contender, ...]:
    """Return all contenders, ours first."""
    return (*exact_contenders(), *pruned_contenders(), *baselines())


def _missing(reason: str) -> DeviceBench:
    return DeviceBench("", None, None, (), (DeviceMissing(NO_DEVICE, reason),))


def first_difference(name: str, prepared: PreparedRound, launch: Callable[[], object]) -> str | None:
    """Return how what `launch` writes into poisoned outputs differs from the reference, with the contender's name.

    launch: prepared.run, or the replay of a graph of it. None when there is no difference.
    """
    prepared.poison()
    launch()
    found = prepared.difference()
    return None if found is None else f"{name}: {found}"


def _prepared(logits: DeviceRound, missing: dict[str, str]) -> list[tuple[str, PreparedRound]]:
    built = []
    for contender in contenders():
        if contender.name in missing:
            continue
        try:
            built.append((contender.name, contender.prepare(logits)))
        except ContenderMissing as why:
            missing[contender.name] = str(why)
    return built


def _floor_time(logits: DeviceRound, gb_s: float) -> DeviceTime:
    microseconds = logits.depth * logits.batch * logits.width * 4 / gb_s / 1e3
    timed = TimedMode("computed", "cold", 1, microseconds, microseconds, microseconds)
    return _device_time(FLOOR, logits, timed)


def _device_time(name: str, logits: DeviceRound, timed: TimedMode) -> DeviceTime:
    return DeviceTime(
        contender=name,
        batch=logits.batch,
        depth=logits.depth,
        vocabulary=logits.vocabulary,
        shards=len(logits.halves),
        mode=timed.mode,
        cache=timed.cache,
        samples=timed.samples,
        lower=timed.lower,
        median=timed.median,
        upper=timed.upper,
    )


def _graph_of(name: str, prepared: PreparedRound, missing: dict[str, str]) -> torch.cuda.CUDAGraph | None:
    try:
        return captured(prepared.run)
    except RuntimeError as error:
        missing[f"{name}, as a graph"] = f"it can't be captured: {str(error).splitlines()[0]}"
        return None


def _round_times(logits: DeviceRound, samples: int, missing: dict[str, str]) -> tuple[list[DeviceTime], str | None]:
    # The second value is a difference; then the first is empty.
    ready = [(name, each, _graph_of(name, each, missing)) for name, each in _prepared(logits, missing)]
    for name, each, graph in ready:
        difference = first_difference(name, each, each.run)
        if difference is None and graph is not None:
            difference = first_difference(f"{name}, as a graph", each, graph.replay)
        if difference is not None:
            return [], difference
    times = []
    for name, each, graph in ready:
        modes = eager_modes(each.run, samples) + (graph_modes(graph, samples) if graph is not None else [])
        times += [_device_time(name, logits, timed) for timed in modes]
    return times, None


def measure_device(
    refused: str = "",
    shapes: Sequence[Shape] = DEVICE_SHAPES,
    samples: int = 100,
    seed: int = 1,
    on_progress: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> DeviceBench:
    """Return the device's times, or why there are none.

    refused: a reason not to try, "" to try. shapes: (B, depth, vocabulary), vocabulary even. samples: a mode, >= 1.
    Raises what torch raises when the device fails. Source: DESIGN section 7.
    """
    if refused:
        return _missing(refused)
    if not torch.cuda.is_available():
        return _missing("no CUDA device")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return _missing("Triton's interpreter is on (TRITON_INTERPRET=1); unset it to time kernels")
    properties = torch.cuda.get_device_properties(0)
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    device = f"{properties.name}, {properties.multi_processor_count} processors, {versions}"
    gb_s = read_bandwidth_gb_s()
    missing: dict[str, str] = {}
    times: list[DeviceTime] = []
    for number, (batch, depth, vocabulary) in enumerate(shapes):
        on_progress(number, len(shapes), f"device: B{batch} depth {depth} V {vocabulary:,}")
        logits = device_round(batch, depth, vocabulary, seed, "cuda")
        found, difference = _round_times(logits, samples, missing)
        if difference is not None:
            where = f"B{batch} depth {depth} V {vocabulary:,}: {difference}"
            return DeviceBench(device, gb_s, where, (), (DeviceMissing("all times", "the gate found a difference"),))
        times += [_floor_time(logits, gb_s), *found]
    return DeviceBench(
        device, gb_s, None, tuple(times), tuple(DeviceMissing(name, reason) for name, reason in missing.items())
    )
