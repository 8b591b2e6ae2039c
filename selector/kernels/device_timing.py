"""Timing on a CUDA device: eager and as a graph, with a warm and a flushed L2 cache, and the bandwidth of reading.

Each sample lies between two events on the stream, whose own cost is timed as a contender of its own.
Must never time a first call, which compiles. Source: torch.cuda documentation, events and graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

__all__ = ["BACK_TO_BACK", "TimedMode", "captured", "eager_modes", "graph_modes", "read_bandwidth_gb_s"]

BACK_TO_BACK: Final = 20
FLUSH_BYTES: Final = 256 << 20
BANDWIDTH_BYTES: Final = 2 << 30
WARM_UP_RUNS: Final = 3

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class TimedMode:
    """Microseconds a run in one mode: lower quartile, median, upper quartile."""

    mode: str
    cache: str
    samples: int
    lower: float
    median: float
    upper: float


def _event_times_us(work: Work, samples: int, before: Work | None) -> list[float]:
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(samples)]
    for start, stop in pairs:
        if before is not None:
            before()
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) * 1000.0 for start, stop in pairs]


def _mode(mode: str, cache: str, times_us: list[float], runs: int = 1) -> TimedMode:
    lower, median, upper = (np.percentile(np.array(times_us), [25, 50, 75]) / runs).tolist()
    return TimedMode(mode, cache, len(times_us), lower, median, upper)


def captured(work: Work) -> torch.cuda.CUDAGraph:
    """Return work as a CUDA graph, after runs on a side stream that compile what has to be compiled.

    Raises RuntimeError when the work can't be captured (it allocates on the host, or waits for the device).
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def eager_modes(work: Work, samples: int) -> list[TimedMode]:
    """Return the times of work launched one by one, warm and cold. samples: >= 1 runs a mode."""
    for _ in range(WARM_UP_RUNS):
        work()
    return [_mode("eager", cache, _event_times_us(work, samples, before)) for cache, before in _caches()]


def graph_modes(graph: torch.cuda.CUDAGraph, samples: int) -> list[TimedMode]:
    """Return the times of a graph: warm, cold, and warm with 20 replays between two events. samples: >= 1 a mode."""
    modes = [_mode("graph", cache, _event_times_us(graph.replay, samples, before)) for cache, before in _caches()]

    def many() -> None:
        for _ in range(BACK_TO_BACK):
            graph.replay()

    times = _event_times_us(many, max(1, samples // BACK_TO_BACK), None)
    return [*modes, _mode(f"graph x{BACK_TO_BACK}", "warm", times, BACK_TO_BACK)]


def _caches() -> list[tuple[str, Work | None]]:
    flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    return [("warm", None), ("cold", flushed.zero_)]


def read_bandwidth_gb_s(samples: int = 20) -> float:
    """Return the median bandwidth, in 10^9 bytes a second, of torch's maximum over 2 GiB of int32.

    A maximum reads everything and writes next to nothing, as the floor of a selection would.
    """
    words = torch.ones(BANDWIDTH_BYTES // 4, dtype=torch.int32, device="cuda")
    for _ in range(WARM_UP_RUNS):
        words.amax()
    times_us = _event_times_us(words.amax, samples, None)
    return BANDWIDTH_BYTES / (float(np.median(np.array(times_us))) * 1e3)
