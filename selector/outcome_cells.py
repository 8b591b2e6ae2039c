"""Counts of outcomes against known cell probabilities, with a bound that holds for every finite sample.

Two-sided Chernoff on each cell, union over all cells of a command: a sound sampler is refused with a chance of at
most `false_alarm` in all. A red is final: the bound knows no second try. Must never pool or drop a cell after looking
at the counts. Source: Chernoff 1952 (relative-entropy form); DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import TypeVar

__all__ = ["Deviation", "bernoulli_divergence", "find_deviations", "log_bound", "pool_cells", "smallest_caught_shift"]

_BISECTIONS = 60
Cell = TypeVar("Cell", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Deviation:
    """A cell whose count no sound sampler would give within the registered false-alarm rate."""

    cell: Hashable
    count: int
    samples: int
    probability: float


def bernoulli_divergence(observed: float, probability: float) -> float:
    """Return the relative entropy in nats of a Bernoulli(observed) from a Bernoulli(probability), both in 0..1."""
    total = 0.0
    for share, law in ((observed, probability), (1.0 - observed, 1.0 - probability)):
        if share > 0.0:
            if law <= 0.0:
                return inf
            total += share * log(share / law)
    return max(total, 0.0)


def log_bound(false_alarm: float, cells: int) -> float:
    """Return the threshold on samples * divergence for `cells` two-sided cells and a family-wise false_alarm."""
    return log(2.0 * cells / false_alarm)


def pool_cells(probabilities: Mapping[Cell, float], least: float) -> dict[Cell, float]:
    """Return the cells of probability >= least; all others are one rest cell for whoever counts.

    Fixed by the probabilities alone, before any count is seen.
    """
    return {cell: share for cell, share in probabilities.items() if share >= least}


def find_deviations(
    probabilities: Mapping[Hashable, float], counts: Mapping[Hashable, int], samples: int, threshold: float
) -> list[Deviation]:
    """Return every cell, in the order of `probabilities`, that breaks the bound. A cell absent from counts has 0."""
    found = []
    for cell, probability in probabilities.items():
        count = counts.get(cell, 0)
        if samples * bernoulli_divergence(count / samples, min(1.0, max(0.0, probability))) > threshold:
            found.append(Deviation(cell, count, samples, probability))
    return found


def smallest_caught_shift(probability: float, samples: int, threshold: float, miss: float = 0.01) -> float:
    """Return the smallest rise of one cell's probability that is caught with a chance of at least 1 - miss.

    1.0 when no rise is. A total variation of that size put into this cell is therefore caught.
    """
    highest = _edge(probability, samples, threshold)
    if highest >= 1.0:
        return 1.0
    wanted = log(1.0 / miss) / samples
    low, high = highest, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if bernoulli_divergence(highest, middle) >= wanted:
            high = middle
        else:
            low = middle
    return high - probability


def _edge(probability: float, samples: int, threshold: float) -> float:
    """Return the highest observed share that still passes."""
    low, high = probability, 1.0
    if samples * bernoulli_divergence(high, probability) <= threshold:
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if samples * bernoulli_divergence(middle, probability) <= threshold:
            low = middle
        else:
            high = middle
    return low
