"""The greatest 32 of a row the plain way, one program a row: the benchmark's stand-in for a two-launch selector.

Reads a row tile after tile, sorts each tile and keeps 32. With one program a row most of the device stands idle, which
is what `shard_select` is measured against; the second launch is our own merge and draw. It is nobody's product.
Must never be used to draft.
Source: plan, "the present two-launch selector"; selector/kernels/shard_select_reference.py says what is computed.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from selector.kernels.device_words import MASKED_KEY, MASKED_ORDERED, POISON_ORDERED, candidate_keys, ordered_bits
from selector.kernels.kernel_spec import KernelSpec
from selector.kernels.launch_count import LaunchLog, launch

__all__ = ["SPECS", "select_rows_plainly"]

TILE: Final = 1024
TOP_K: Final = 32


@triton.jit
def plain_select_kernel(
    logits,
    row_stride: tl.int64,
    width: tl.int32,
    first_token_id: tl.int32,
    words,
    SIZE: tl.constexpr,  # noqa: N803 - Triton writes constants so
    KEPT: tl.constexpr,  # noqa: N803
):
    """Grid (rows,). words: int64 (rows, KEPT + 1), overwritten."""
    row = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, SIZE)
    best = tl.full((KEPT,), MASKED_KEY, tl.int64)
    for start in range(0, width, SIZE):
        column = start + local
        values = tl.load(logits + row * row_stride + column, mask=column < width, other=float("-inf"))
        ordered = ordered_bits(values)
        # A negative NaN would sort below everything; as +inf it cannot be lost.
        ordered = tl.where(ordered < MASKED_ORDERED, POISON_ORDERED, ordered)
        tops = tl.topk(candidate_keys(ordered, first_token_id + column), KEPT)
        best = tl.topk(tl.reshape(tl.join(best, tops), (2 * KEPT,)), KEPT)
    poisoned = tl.max(best, 0) >= POISON_ORDERED * (1 << 32)
    place = words + row * (KEPT + 1)
    tl.store(place + tl.arange(0, KEPT), tl.where(poisoned, MASKED_KEY, best))
    tl.store(place + KEPT, poisoned.to(tl.int64))


def _spec(dtype: str) -> KernelSpec:
    return KernelSpec(
        name=f"plain_row_select/{dtype}",
        kernel=plain_select_kernel,
        signature={
            "logits": f"*{dtype}",
            "row_stride": "i64",
            "width": "i32",
            "first_token_id": "i32",
            "words": "*i64",
        },
        constants={"SIZE": TILE, "KEPT": TOP_K},
        warps=4,
        stages=1,
        aligned=(),
    )


SPECS: Final = (_spec("fp32"),)


def select_rows_plainly(
    logits: torch.Tensor, first_token_id: int, words: torch.Tensor, log: LaunchLog | None = None
) -> None:
    """Write the top 32 of one vocabulary shard for every row, as `shard_select` does, in one launch.

    logits: float32 (rows, width), columns next to each other; words: int64 (rows, 33), contiguous, overwritten.
    Raises ValueError for another dtype. Source: DESIGN section 3.
    """
    if logits.dtype != torch.float32:
        raise ValueError(f"logits are {logits.dtype}, must be float32")
    launch(SPECS[0], (len(logits),), (logits, logits.stride(0), logits.shape[1], first_token_id, words), log)
