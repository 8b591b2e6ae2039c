"""The decision of a round on the device: which drafts stand, and the one token that follows them; a program a request.

All rows of a request are judged side by side from the exchanged numbers, and the first row at which something ends the
round decides. Every comparison is in exact integers, so the outcome is that of decide_round, bit for bit. Where
decide_round raises, the status says so and no token is given: Q_X_MISMATCH is proof of an earlier failure, UNFIT means
that the numbers are none that a verify can have sent.
Must never release a token under a status other than DECIDED, and never judge a row by its drafted token.
Source: DESIGN sections 3 and 4; the reference is selector/acceptance.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from selector.kernels.device_exponential import MASS_SCALE, exponential
from selector.kernels.device_words import philox_words
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch
from selector.kernels.verify_masses import check_exchanged, merged_row
from selector.kernels.verify_round import CANDIDATES, VerifyRound, power_table
from selector.kernels.wide_integers import draw64, first_shard_picked, product_below_probability
from selector.philox import Purpose

__all__ = ["DECIDED", "Q_X_MISMATCH_STATUS", "SPECS", "UNFIT", "DecisionBuffers", "decide_spec", "launch_decision"]

DECIDED: Final = 0
Q_X_MISMATCH_STATUS: Final = 1
"""A verified draft has count 0 in the law that it was drawn from."""
UNFIT: Final = 2
"""Exchanged numbers, depth, temperature or a missing law that decide_round refuses with ValueError."""

_ACCEPTANCE: Final = tl.constexpr(int(Purpose.ACCEPTANCE))
_RESIDUAL: Final = tl.constexpr(int(Purpose.RESIDUAL))
_TARGET_ONLY: Final = tl.constexpr(int(Purpose.TARGET_ONLY))
_BEYOND: Final = tl.constexpr(1 << 30)


@triton.jit
def counts_of_drafted(ids_ptr, counts_ptr, number_ptr, rows, drafted, verified, CANDIDATES: tl.constexpr):  # noqa: N803
    """Return every row's number of candidates and the int64 count of its drafted token, 0 for one outside them."""
    number = tl.load(number_ptr + rows, mask=verified, other=0)
    lanes = tl.arange(0, CANDIDATES)
    inside = lanes[None, :] < number[:, None]
    places = rows[:, None] * 32 + lanes[None, :]
    ids = tl.load(ids_ptr + places, mask=inside, other=-1)
    counts = tl.load(counts_ptr + places, mask=inside, other=0)
    return number, tl.sum(tl.where(inside & (ids == drafted[:, None]), counts, 0), 1)


@triton.jit
def draft_chances(statistics_ptr, shard_stride, rows, inside, maximum, sum_exp, valid, table_ptr):
    """Return (p of every row's drafted token, whether both shards claim that token)."""
    logit0 = tl.load(statistics_ptr + rows * 5 + 4, mask=inside, other=0.0)
    logit1 = tl.load(statistics_ptr + shard_stride + rows * 5 + 4, mask=inside, other=0.0)
    absent0, absent1 = logit0 != logit0, logit1 != logit1
    logit = tl.where(absent0, logit1, logit0)
    told = valid & (logit == logit)
    distance = tl.where(told, logit - maximum, 0.0)
    chance = exponential(tl.where(distance < 0.0, distance, 0.0), table_ptr) / sum_exp
    # A row without p compares false with every number, as NaN does in the reference.
    return tl.where(told, chance, 2.0), inside & ~absent0 & ~absent1


@triton.jit
def greatest_ids(statistics_ptr, shard_stride, rows, inside):
    """Return every row's argmax by (logit, lower global id) from both shards' statistics."""
    shard0 = statistics_ptr + rows * 5
    shard1 = shard0 + shard_stride
    maximum0 = tl.load(shard0, mask=inside, other=0.0)
    maximum1 = tl.load(shard1, mask=inside, other=0.0)
    id0 = tl.load(shard0 + 3, mask=inside, other=0.0).to(tl.int32)
    id1 = tl.load(shard1 + 3, mask=inside, other=0.0).to(tl.int32)
    return tl.where(maximum0 == maximum1, tl.minimum(id0, id1), tl.where(maximum0 > maximum1, id0, id1))


@triton.jit
def shard_picks(masses_ptr, shard_stride, rows, inside, upper_word, lower_word):
    """Return (token, whether there is mass, whether masses are in range) of every row; masses_ptr: at the column."""
    shard0 = masses_ptr + rows * 4
    shard1 = shard0 + shard_stride
    mass0 = tl.load(shard0, mask=inside, other=0.0)
    mass1 = tl.load(shard1, mask=inside, other=0.0)
    fits = (mass0 >= 0.0) & (mass0 < 2.0) & (mass1 >= 0.0) & (mass1 < 2.0)
    units0 = (tl.where(fits, mass0, 0.0) * MASS_SCALE).to(tl.uint64)
    units1 = (tl.where(fits, mass1, 0.0) * MASS_SCALE).to(tl.uint64)
    first = first_shard_picked(draw64(upper_word, lower_word), units0, units1)
    token0 = tl.load(shard0 + 1, mask=inside, other=-1.0).to(tl.int32)
    token1 = tl.load(shard1 + 1, mask=inside, other=-1.0).to(tl.int32)
    return tl.where(first, token0, token1), (units0 | units1) != 0, fits


@triton.jit
def at_lane(values, lanes, lane):
    """Return the value at one lane as int32."""
    return tl.sum(tl.where(lanes == lane, values.to(tl.int32), 0), 0)


@triton.jit
def judge_rows(
    statistics_ptr, masses_ptr, every_row, rows, inside, drafted, count, greedy, last, seed, name, positions, table_ptr
):
    """Return (valid, unfit, falls, replacement, claimed_twice) of every row, each judged as if the round reached it.

    unfit: numbers that no verify can have sent; falls: a draft that does not stand; replacement: the token that then,
    or at the last row, is emitted. every_row: rows of the whole batch.
    """
    maximum, sum_exp, valid = merged_row(statistics_ptr, every_row * 5, rows, inside, table_ptr)
    chance, claimed_twice = draft_chances(
        statistics_ptr, every_row * 5, rows, inside, maximum, sum_exp, valid, table_ptr
    )
    greatest = greatest_ids(statistics_ptr, every_row * 5, rows, inside)
    upper, lower, _, _ = philox_words(seed, name, positions, _ACCEPTANCE)
    accepted = product_below_probability(draw64(upper, lower) >> 11, count.to(tl.uint64), chance)
    upper, lower, _, _ = philox_words(seed, name, positions, _RESIDUAL)
    residual, has_residual, residual_fits = shard_picks(masses_ptr + 2, every_row * 4, rows, inside, upper, lower)
    upper, lower, _, _ = philox_words(seed, name, positions, _TARGET_ONLY)
    target, has_target, target_fits = shard_picks(masses_ptr, every_row * 4, rows, inside, upper, lower)
    draft_fits = (chance >= 0.0) & (chance <= 1.0) & (accepted | residual_fits)
    unfit = valid & ~greedy & ~tl.where(last, target_fits & has_target, draft_fits)
    # Without residual mass p and q are equal to the last bit: the rejection is pure rounding, and the draft stands.
    falls = tl.where(greedy, greatest != drafted, ~accepted & has_residual)
    replacement = tl.where(greedy, greatest, tl.where(last, target, residual))
    return valid, unfit, falls, replacement, claimed_twice


@triton.jit(do_not_specialize=["depth"])
def decide_requests(
    statistics_ptr,
    masses_ptr,
    drafted_ptr,
    usable_ptr,
    temperature_ptr,
    ids_ptr,
    counts_ptr,
    number_ptr,
    seed_ptr,
    request_ptr,
    position_ptr,
    depth: tl.int32,
    table_ptr,
    accepted_ptr,
    tokens_ptr,
    forced_ptr,
    invalid_ptr,
    status_ptr,
    LANES: tl.constexpr,  # noqa: N803 - Triton writes constants so
    CANDIDATES: tl.constexpr,  # noqa: N803
):
    """Decide one request; grid (requests,)."""
    request, every_row = tl.program_id(0), tl.num_programs(0) * (depth + 1)
    lanes = tl.arange(0, LANES)
    inside = lanes <= depth
    rows = request * (depth + 1) + lanes
    usable, temperature = tl.load(usable_ptr + request), tl.load(temperature_ptr + request)
    verified, last, greedy = (lanes < usable) & (lanes < depth), lanes == usable, temperature == 0
    drafted = tl.load(drafted_ptr + request * depth + lanes, mask=lanes < depth, other=-1)
    number, count = counts_of_drafted(ids_ptr, counts_ptr, number_ptr, rows, drafted, verified, CANDIDATES)
    seed, name = tl.load(seed_ptr + request), tl.load(request_ptr + request)
    positions = tl.load(position_ptr + request) + lanes
    valid, unfit, falls, replacement, claimed_twice = judge_rows(
        statistics_ptr, masses_ptr, every_row, rows, inside, drafted, count, greedy, last, seed, name, positions,
        table_ptr,
    )  # fmt: skip
    stop = tl.min(tl.where(inside & (~valid | unfit | last | (verified & falls)), lanes, _BEYOND), 0)
    # The first verified draft without a count: one of a row with a law proves a failure, a missing law fits no round.
    barred = tl.min(tl.where(verified & (count == 0), lanes, _BEYOND), 0)
    proof = tl.where(at_lane(number > 0, lanes, barred) == 1, 1, 2)
    asked = (usable >= 0) & (usable <= depth) & (greedy | (temperature == 1))
    sent = asked & (tl.sum(claimed_twice.to(tl.int32), 0) == 0)
    status = tl.where(at_lane(unfit, lanes, stop) == 1, 2, 0)
    status = tl.where(sent, tl.where(barred < _BEYOND, proof, status), 2)
    decided, lawful = status == 0, at_lane(valid, lanes, stop) == 1
    tokens = tl.where(lanes < stop, drafted, tl.where((lanes == stop) & lawful, replacement, -1))
    tl.store(tokens_ptr + rows, tl.where(decided, tokens, -1), mask=inside)
    tl.store(accepted_ptr + request, tl.where(decided, stop, 0))
    tl.store(forced_ptr + request, (decided & lawful & (stop == usable) & (usable < depth)).to(tl.int32))
    tl.store(invalid_ptr + request, tl.where(decided & ~lawful, stop, -1))
    tl.store(status_ptr + request, status)


def decide_spec(lanes: int) -> KernelSpec:
    """Return the specialisation for rounds of up to `lanes` rows, a power of two."""
    floats = ("statistics_ptr", "masses_ptr", "table_ptr")
    wide = ("counts_ptr", "seed_ptr", "request_ptr", "position_ptr")
    order = (
        *("statistics_ptr", "masses_ptr", "drafted_ptr", "usable_ptr", "temperature_ptr", "ids_ptr", "counts_ptr"),
        *("number_ptr", "seed_ptr", "request_ptr", "position_ptr", "depth", "table_ptr", "accepted_ptr", "tokens_ptr"),
        *("forced_ptr", "invalid_ptr", "status_ptr"),
    )
    types = {name: "*fp64" if name in floats else "*i64" if name in wide else "*i32" for name in order}
    types["depth"] = "i32"
    return KernelSpec(
        name=f"verify_decide/lanes{lanes}",
        kernel=decide_requests,
        signature=types,
        constants={"LANES": lanes, "CANDIDATES": CANDIDATES},
        warps=1,
        stages=1,
        aligned=tuple(name for name in order if name != "depth"),
    )


SPECS: Final = tuple(decide_spec(lanes) for lanes in (1, 2, 4, 8, 16))


@dataclass(frozen=True, slots=True)
class DecisionBuffers:
    """Output of launch_decision, kept between replays; all int32.

    accepted [B]: drafts that stand; token_ids [B, depth+1]: the accepted drafts and one token more, then -1;
    forced [B]: 1 for a forced rejection; invalid_row [B]: the row without a law at which the request ends, else -1;
    status [B]: DECIDED, Q_X_MISMATCH_STATUS or UNFIT; the last two come with no token. table float64 [512].
    """

    accepted: torch.Tensor
    token_ids: torch.Tensor
    forced: torch.Tensor
    invalid_row: torch.Tensor
    status: torch.Tensor
    table: torch.Tensor

    @classmethod
    def allocate(cls, requests: int, depth: int, device: torch.device | str) -> DecisionBuffers:
        """Return buffers for that many requests of one depth."""
        accepted, forced, invalid_row, status = (
            torch.full((requests,), UNFIT, dtype=torch.int32, device=device) for _ in range(4)
        )
        token_ids = torch.full((requests, depth + 1), -1, dtype=torch.int32, device=device)
        return cls(accepted, token_ids, forced, invalid_row, status, power_table(device))


def launch_decision(
    exchanged_statistics: torch.Tensor,
    exchanged_masses: torch.Tensor,
    verify_round: VerifyRound,
    buffers: DecisionBuffers,
    log: LaunchLog | None = None,
) -> DecisionBuffers:
    """Write what every request emits into buffers, in one launch, and return them.

    exchanged_statistics: float64 [2, rows, 5]; exchanged_masses: float64 [2, rows, 4]; both contiguous, in shard order.
    Nothing is allocated or waited for. Raises ValueError for other shapes. Source: selector/acceptance.py.
    """
    verify_round.check()
    check_exchanged("statistics", exchanged_statistics, (2, verify_round.rows, 5))
    check_exchanged("masses", exchanged_masses, (2, verify_round.rows, 4))
    if tuple(buffers.token_ids.shape) != (verify_round.requests, verify_round.depth + 1):
        raise ValueError(
            f"buffers hold tokens {tuple(buffers.token_ids.shape)}, this round has "
            f"{(verify_round.requests, verify_round.depth + 1)}"
        )
    launch(
        decide_spec(triton.next_power_of_2(verify_round.depth + 1)),
        (verify_round.requests,),
        (
            exchanged_statistics,
            exchanged_masses,
            verify_round.drafted,
            verify_round.usable_depth,
            verify_round.temperature,
            verify_round.ids,
            verify_round.counts,
            verify_round.number,
            verify_round.seed,
            verify_round.request,
            verify_round.position,
            verify_round.depth,
            buffers.table,
            buffers.accepted,
            buffers.token_ids,
            buffers.forced,
            buffers.invalid_row,
            buffers.status,
        ),
        log,
    )
    return buffers
