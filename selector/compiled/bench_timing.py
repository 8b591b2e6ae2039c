"""Interleaved, paired timing: every contender runs once in every sample, and ratios are taken within a sample.

Whatever slows the machine for a while slows a whole sample and leaves its ratios alone. Every other sample runs in the
opposite order, so that nobody always comes after the same neighbour.
Must never average: one stolen time slice would decide. Source: asv and flashinfer-bench, interleaved rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

__all__ = ["paired_samples", "quartiles"]

LEAST_SAMPLE_SECONDS: Final = 0.001
MOST_LOOPS: Final = 100_000
MOST_SAMPLES: Final = 400


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile. values: at least one."""
    lower, middle, upper = np.percentile(np.array(values), [25, 50, 75]).tolist()
    return lower, middle, upper


def _seconds(work: Callable[[], object], loops: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(loops):
        work()
    return clock() - start


def _loops_of(work: Callable[[], object], clock: Callable[[], float]) -> int:
    # The first run warms up and is not looked at.
    work()
    loops = 1
    while loops < MOST_LOOPS and _seconds(work, loops, clock) < LEAST_SAMPLE_SECONDS:
        loops *= 2
    return loops


def paired_samples(
    contenders: Mapping[str, Callable[[], object]],
    budget_seconds: float,
    least_samples: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return seconds a run of every contender, one entry a sample, all lists of one length.

    contenders: at least one; a sample loops each until it lasts a millisecond, a count found beforehand.
    budget_seconds: samples are taken until it is spent, least_samples (>= 1) at least and 400 at most.
    """
    loops = {name: _loops_of(work, clock) for name, work in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    give_up = clock() + budget_seconds
    for number in range(MOST_SAMPLES):
        if number >= least_samples and clock() >= give_up:
            break
        for name in names if number % 2 == 0 else reversed(names):
            samples[name].append(_seconds(contenders[name], loops[name], clock) / loops[name])
    return samples
