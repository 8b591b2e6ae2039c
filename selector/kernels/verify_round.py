"""What a verify on the device is given: drafts, their laws and the names of their draws, all in device tensors.

The tensors keep their addresses, so a captured graph reads what the host or an earlier kernel wrote into them, and a
replay draws anew when `position` advances.
Must never read a device value on the host. Source: DESIGN section 3, "Randomness" and "Acceptance".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton

from selector.target_exponential import MOST_TERMS, POWER_TABLE

__all__ = [
    "CANDIDATES",
    "LOGIT_TYPES",
    "TILES",
    "LaunchShape",
    "VerifyRound",
    "VerifyTile",
    "launch_shape",
    "power_table",
    "tile_of",
]

CANDIDATES: Final = 32
LOGIT_TYPES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_DEEPEST: Final = 15


@dataclass(frozen=True, slots=True)
class VerifyTile:
    """How a row is cut: `columns` logits a program of `warps` warps, at most `places` programs a row; powers of two."""

    columns: int
    warps: int
    places: int


TILES: Final = (VerifyTile(1024, 8, 128), VerifyTile(2048, 16, 128))
"""Four logits a thread: rows of up to 131,072 and 262,144 logits."""


@dataclass(frozen=True, slots=True)
class VerifyRound:
    """One round of B requests; target rows are request by request, depth+1 a request.

    drafted int32 [B, depth]: global ids; usable_depth int32 [B]: drafts to verify, 0 .. depth; temperature int32 [B]:
    0 or 1. ids int32 [rows, 32] (-1 padded), counts int64 [rows, 32] (0 padded), number int32 [rows]: the draft law of
    row j of a request, 0 for a row that verifies nothing. seed, request int64 [B]: 64 unsigned bits; position
    int64 [B]: the absolute index of the token that row 0 decides.
    """

    depth: int
    drafted: torch.Tensor
    usable_depth: torch.Tensor
    temperature: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor
    number: torch.Tensor
    seed: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor

    @property
    def requests(self) -> int:
        """Return B."""
        return int(self.usable_depth.shape[0])

    @property
    def rows(self) -> int:
        """Return B * (depth + 1)."""
        return self.requests * (self.depth + 1)

    def check(self) -> None:
        """Hold shapes, dtypes, layout and depth 0 .. 15. Raises ValueError."""
        if not 0 <= self.depth <= _DEEPEST:
            raise ValueError(f"depth is {self.depth}, must be in 0 .. {_DEEPEST}")
        batch = self.requests
        expected: tuple[tuple[str, tuple[int, ...], torch.dtype], ...] = (
            ("drafted", (batch, self.depth), torch.int32),
            ("usable_depth", (batch,), torch.int32),
            ("temperature", (batch,), torch.int32),
            ("ids", (self.rows, CANDIDATES), torch.int32),
            ("counts", (self.rows, CANDIDATES), torch.int64),
            ("number", (self.rows,), torch.int32),
            ("seed", (batch,), torch.int64),
            ("request", (batch,), torch.int64),
            ("position", (batch,), torch.int64),
        )
        for name, shape, dtype in expected:
            tensor: torch.Tensor = getattr(self, name)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, must be contiguous {dtype} {shape} for "
                    f"{batch} requests of depth {self.depth}"
                )


def tile_of(width: int) -> VerifyTile:
    """Return the narrowest tile for a shard of `width` columns, 1 .. 2^18-1. Raises ValueError for another width."""
    if not 1 <= width <= MOST_TERMS:
        raise ValueError(f"a shard has {width} columns, must have 1 .. {MOST_TERMS}")
    return next(tile for tile in TILES if triton.cdiv(width, tile.columns) <= tile.places)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The grid (blocks, rows) of a launch over a shard, the shard's width, and Triton's name of its logits."""

    grid: tuple[int, int]
    width: int
    logit_type: str


def launch_shape(
    logits: torch.Tensor, verify_round: VerifyRound, scratch_shape: Sequence[int], tile: VerifyTile
) -> LaunchShape:
    """Return the launch shape for a shard's logits and scratch of (rows, blocks, ...). Raises ValueError."""
    verify_round.check()
    rows, width = logits.shape if logits.ndim == 2 else (-1, 0)
    if rows != verify_round.rows or logits.stride(1) != 1 or logits.dtype not in LOGIT_TYPES:
        raise ValueError(
            f"logits are {logits.dtype} {tuple(logits.shape)}, must be float32 or bfloat16 "
            f"({verify_round.rows}, n) with contiguous columns"
        )
    blocks = triton.cdiv(width, tile.columns)
    if tuple(scratch_shape[:2]) != (rows, blocks):
        raise ValueError(f"buffers hold {tuple(scratch_shape[:2])} (rows, blocks), this launch has {(rows, blocks)}")
    return LaunchShape((blocks, rows), width, LOGIT_TYPES[logits.dtype])


def power_table(device: torch.device | str) -> torch.Tensor:
    """Return POWER_TABLE on a device, float64 (512,)."""
    return torch.from_numpy(POWER_TABLE.copy()).reshape(-1).to(device)
