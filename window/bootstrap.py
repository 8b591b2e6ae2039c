"""Lower bounds by resampling clusters, exact in every comparison.

A resample is a multiset of clusters; its statistic is the product of the clusters' rate ratios,
which orders resamples as the mean log ratio does. Must never take a logarithm to compare.
Source: plan, "source-cluster paired 90% bootstrap lower bound"; registration, BootstrapRule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, lcm

import numpy as np
from numpy.typing import NDArray

from window.exact_numbers import quantile_rank

__all__ = ["BootstrapBound", "enumerated_counts", "lower_bound", "sampled_counts"]


@dataclass(frozen=True, slots=True)
class BootstrapBound:
    """One lower bound: `ratio_product` is the product of `factors` source ratios at the percentile.

    `outcomes` counts ordered resamples, `distinct_values` the values they take; `share_of_bound` is the
    share of resamples that sit exactly on the bound.
    """

    ratio_product: Fraction
    factors: int
    outcomes: int
    distinct_values: int
    share_of_bound: Fraction

    @property
    def above_zero(self) -> bool:
        """Return whether the bound on the log gain is above 0, which is a product above 1."""
        return self.ratio_product > 1

    @property
    def degenerate(self) -> bool:
        """Return whether every resample gave the same value, which is no certainty."""
        return self.distinct_values == 1


def sampled_counts(index_matrix: NDArray[np.int64]) -> Counter[tuple[int, ...]]:
    """Return how often each multiset of clusters was drawn; keys are sorted index tuples."""
    rows, counts = np.unique(np.sort(index_matrix, axis=1), axis=0, return_counts=True)
    return Counter({tuple(int(index) for index in row): int(count) for row, count in zip(rows, counts, strict=True)})


def enumerated_counts(cluster_count: int) -> Counter[tuple[int, ...]]:
    """Return every multiset with its number of orderings: cluster_count ** cluster_count resamples in all."""
    everything: Counter[tuple[int, ...]] = Counter()
    for multiset in combinations_with_replacement(range(cluster_count), cluster_count):
        orderings = factorial(cluster_count)
        for repeats in Counter(multiset).values():
            orderings //= factorial(repeats)
        everything[multiset] = orderings
    return everything


def lower_bound(
    cluster_ratios: Sequence[Fraction], sources_per_cluster: int, counts: Mapping[tuple[int, ...], int], level: Fraction
) -> BootstrapBound:
    """Return the inverted-CDF percentile of the resampled product.

    `cluster_ratios[i]` is the product of rate ratios (B over A) of cluster i's sources, each > 0; `counts` maps
    multisets of cluster indices to how often they occur. Raises ValueError on a ratio that is not positive.
    """
    if any(ratio <= 0 for ratio in cluster_ratios):
        raise ValueError("every cluster needs a positive rate ratio")
    # One common denominator turns every comparison into one of integers.
    common = lcm(*(ratio.denominator for ratio in cluster_ratios))
    scaled = [int(ratio * common) for ratio in cluster_ratios]
    weights: Counter[int] = Counter()
    for multiset, count in counts.items():
        value = 1
        for index in multiset:
            value *= scaled[index]
        weights[value] += count
    total = sum(weights.values())
    rank, passed = quantile_rank(total, level), 0
    for value in sorted(weights):
        passed += weights[value]
        if passed >= rank:
            break
    size = len(cluster_ratios)
    return BootstrapBound(
        ratio_product=Fraction(value, common**size),
        factors=size * sources_per_cluster,
        outcomes=total,
        distinct_values=len(weights),
        share_of_bound=Fraction(weights[value], total),
    )
