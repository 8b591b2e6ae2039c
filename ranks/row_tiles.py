"""One fixed row tile for every matrix product, so that a row's bits depend on that row alone.

A matmul library picks its kernel by the number of rows, and kernels differ in the last bit. Here every product
sees [tiles, 24, K]: 24 rows always, whatever the batch, depth or chunk. Elementwise work runs on the same padded,
contiguous tiles, whose lengths are multiples of a vector, so that no row falls into a scalar remainder.
Must never multiply a matrix of any other row count. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TILE_ROWS", "padded_row_count", "root_mean_square_scaled", "tiled_linear"]

TILE_ROWS = 24


def padded_row_count(rows: int) -> int:
    """Return `rows` rounded up to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def tiled_linear(rows: Tensor, weight: Tensor) -> Tensor:
    """Return rows @ weight, fp32 [tiles, 24, N], of contiguous fp32 [tiles, 24, K] and fp32 [K, N]."""
    return torch.bmm(rows, weight.expand(rows.shape[0], -1, -1))


def root_mean_square_scaled(rows: Tensor, epsilon: float) -> Tensor:
    """Return fp32 [tiles, 24, K] scaled to a root mean square of one a row (norm weights are folded elsewhere)."""
    scale = (rows * rows).mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return rows * scale
