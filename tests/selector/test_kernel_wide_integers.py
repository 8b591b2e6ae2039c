"""The verify kernels' device functions give the bits of numpy and plain integers, at the boundaries too."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from selector.acceptance import accepts
from selector.draft_law import GRID
from selector.kernels import device_exponential, wide_integers
from selector.kernels.verify_round import power_table
from selector.target_exponential import (
    EXPONENT_LIMIT,
    LIMB_BITS,
    MOST_TERMS,
    exponential,
    limbs_of,
    orderless_sum,
    sum_of_limbs,
)
from selector.target_masses import pick_shard_token

CPU = "cpu"
GARBAGE = 7.25


@triton.jit
def write_exponentials(exponents, table, values, high, low):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 1024)
    found = device_exponential.exponential(tl.load(exponents + place), table)
    upper = device_exponential.high_limb(found)
    tl.store(values + place, found)
    tl.store(high + place, upper)
    tl.store(low + place, device_exponential.low_limb(found, upper))


@triton.jit
def write_sums(high, low, sums):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 64)
    tl.store(sums + place, device_exponential.sum_of_limbs(tl.load(high + place), tl.load(low + place)))


@triton.jit
def write_stands(draws, counts, probabilities, stands):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 1024)
    draw, count = tl.load(draws + place).to(tl.uint64), tl.load(counts + place).to(tl.uint64)
    found = wide_integers.product_below_probability(draw, count, tl.load(probabilities + place))
    tl.store(stands + place, found.to(tl.int32))


@triton.jit
def write_picks(draws, masses0, masses1, first):  # type: ignore[no-untyped-def]
    place = tl.arange(0, 256)
    units0 = (tl.load(masses0 + place) * 9223372036854775808.0).to(tl.uint64)
    units1 = (tl.load(masses1 + place) * 9223372036854775808.0).to(tl.uint64)
    draw = tl.load(draws + place).to(tl.uint64, bitcast=True)
    tl.store(first + place, wide_integers.first_shard_picked(draw, units0, units1).to(tl.int32))


def test_the_exponential_and_its_limbs_have_the_bits_of_numpy() -> None:
    rng = np.random.default_rng(1024)
    points = np.concatenate([-rng.exponential(9, 600), -rng.random(300) * 720, -(10.0 ** rng.uniform(-300, 0, 118))])
    points = np.concatenate([points, [0.0, -0.0, -np.inf, EXPONENT_LIMIT, np.nextafter(EXPONENT_LIMIT, 0.0), -1e300]])
    values, high, low = np.full(1024, GARBAGE), np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    outputs = [torch.from_numpy(array) for array in (values, high, low)]
    write_exponentials[(1,)](torch.from_numpy(points), power_table(CPU), *outputs, enable_fp_fusion=False)
    assert values.tobytes() == exponential(points).tobytes()
    assert [high.tolist(), low.tolist()] == [limb.tolist() for limb in limbs_of(values)]


def test_a_limb_sum_has_the_bits_of_numpy() -> None:
    rng = np.random.default_rng(64)
    high = rng.integers(0, MOST_TERMS << LIMB_BITS, size=64)
    low = rng.integers(0, MOST_TERMS << LIMB_BITS, size=64)
    high[:3], low[:3] = (0, MOST_TERMS << LIMB_BITS, (1 << 53) + 1), (0, 0, (1 << LIMB_BITS) - 1)
    sums = np.full(64, GARBAGE)
    write_sums[(1,)](*(torch.from_numpy(array) for array in (high, low, sums)), enable_fp_fusion=False)
    assert sums.tolist() == [sum_of_limbs(*pair) for pair in zip(high.tolist(), low.tolist(), strict=True)]


def boundary_draws() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return 1024 draws just below, at and just above p / q, and probabilities at both ends of their range."""
    rng = np.random.default_rng(53)
    counts = rng.integers(1, GRID + 1, size=1024)
    chances = np.minimum(rng.random(1024) ** rng.integers(1, 40, size=1024), 1.0)
    chances[:64] = counts[:64] / GRID
    chances[64:76] = (0.0, 1.0, 5e-324, 2.0**-1022, 2.0**-77, 2.0**-78, 2.0**-53, 2.0**-30, 1 - 2.0**-53, 0.5, 1.0, 0.0)
    draws = []
    for index, (count, chance) in enumerate(zip(counts.tolist(), chances.tolist(), strict=True)):
        numerator, denominator = chance.as_integer_ratio()
        boundary = -(-(numerator << 77) // (denominator * count))
        draws.append(min(max(boundary + index % 3 - 1, 0), (1 << 53) - 1))
    return np.array(draws, dtype=np.int64), counts, chances


def test_acceptance_is_exact_at_the_boundary_of_every_chance() -> None:
    draws, counts, chances = boundary_draws()
    stands = np.full(1024, 7, dtype=np.int32)
    write_stands[(1,)](*(torch.from_numpy(array) for array in (draws, counts, chances, stands)))
    rows = zip(draws.tolist(), counts.tolist(), chances.tolist(), strict=True)
    expected = [accepts(draw, 53, count, chance) for draw, count, chance in rows]
    assert stands.tolist() == [int(stood) for stood in expected]
    # The draws are close enough that a comparison of rounded products would differ.
    planted = draws.astype(np.float64) * counts * 2.0**-77 < chances
    assert planted.tolist() != expected


def test_a_shard_is_picked_as_in_plain_integers() -> None:
    rng = np.random.default_rng(64)
    masses = rng.random((2, 256)) ** rng.integers(1, 60, size=(2, 256))
    masses[:, :4] = [[0.0, 1.0, 0.5, 1.9375], [1.0, 0.0, 0.5, 1.9375]]
    draws = rng.integers(0, 1 << 64, size=256, dtype=np.uint64)
    draws[:4] = (0, (1 << 64) - 1, 1 << 63, (1 << 63) - 1)
    first = np.full(256, 7, dtype=np.int32)
    inputs = (draws.view(np.int64), masses[0].copy(), masses[1].copy(), first)
    write_picks[(1,)](*(torch.from_numpy(array) for array in inputs))
    expected = []
    for draw, mass0, mass1 in zip(draws.tolist(), *masses.tolist(), strict=True):
        token = pick_shard_token(mass0, 1, mass1, 0, (draw >> 32, draw & 0xFFFFFFFF, 0, 0))
        expected.append(0 if token is None else token)
    assert first.tolist() == expected


def test_a_sum_of_floats_would_not_have_the_same_bits_in_every_grouping() -> None:
    terms = exponential(-np.random.default_rng(3).exponential(4, size=4096))
    grouped = [float(sum(float(np.cumsum(part)[-1]) for part in np.split(terms, blocks))) for blocks in (1, 2, 8, 64)]
    assert len(set(grouped)) > 1
    assert orderless_sum(terms) == orderless_sum(terms[::-1])
