"""Checks, on the machine at hand, that the kernels under the model give a row the same bits wherever it stands.

A rank runs it at start and attests the answer: another CPU or library build may break what holds here.
Must never use a collective: each rank checks its own kernels. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ranks.kv_slots import BLOCK_KEYS
from ranks.row_tiles import TILE_ROWS, root_mean_square_scaled, tiled_linear
from ranks.tile_attention import QUERY_ROWS

__all__ = ["kernels_are_row_invariant", "products_are_row_invariant"]

CHECKED_TILES = 8
SEED = 4103
ACTIONS: tuple[Callable[[Tensor], Tensor], ...] = (functional.silu, torch.sigmoid, torch.exp)


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))


def _alone(row: Tensor, place: int) -> Tensor:
    """Return a single tile [1, 24, K] that holds `row` [K] at `place` and zeros elsewhere."""
    tile = row.new_zeros((1, TILE_ROWS, len(row)))
    tile[0, place] = row
    return tile


def products_are_row_invariant(weight: Tensor, generator: torch.Generator) -> bool:
    """Return whether rows of several full tiles, and the same rows alone at another place, multiply to equal bits.

    `weight` fp32 [K, N].
    """
    rows = torch.randn((CHECKED_TILES, TILE_ROWS, weight.shape[0]), generator=generator)
    together = tiled_linear(rows, weight).flatten(0, 1)
    flat = rows.flatten(0, 1)
    for number in range(0, len(flat), 13):
        place = (number * 7 + 5) % TILE_ROWS
        if not _same_bits(tiled_linear(_alone(flat[number], place), weight)[0, place], together[number]):
            return False
    return True


def _attention_is_row_invariant(key_width: int, generator: torch.Generator) -> bool:
    """Return whether both attention products give a row equal bits at any place of any entry of a batch."""
    pairs = torch.randn((54, BLOCK_KEYS, 2 * key_width), generator=generator)
    queries = torch.randn((54, QUERY_ROWS, key_width), generator=generator)
    weights = torch.rand((54, QUERY_ROWS, BLOCK_KEYS), generator=generator)
    for left, right in ((queries, pairs[:, :, :key_width].transpose(1, 2)), (weights, pairs[:, :, key_width:])):
        whole = torch.bmm(left, right)
        for turn in (1, 3, 7):
            rolled = torch.bmm(left.roll(turn, dims=1), right).roll(-turn, dims=1)
            if not (_same_bits(rolled, whole) and _same_bits(torch.bmm(left[:turn], right[:turn]), whole[:turn])):
                return False
    return True


def _elementwise_is_row_invariant(width: int, inner: int, generator: torch.Generator) -> bool:
    """Return whether norm, SiLU, sigmoid and exp give a row equal bits in any tile."""
    rows = torch.randn((CHECKED_TILES, TILE_ROWS, width), generator=generator)
    columns = torch.randn((CHECKED_TILES, TILE_ROWS, 2 * inner), generator=generator)
    normed = root_mean_square_scaled(rows, 1e-5)
    activated = [action(columns[..., :inner]) for action in ACTIONS]
    for tile in range(CHECKED_TILES):
        for place in (0, 11, TILE_ROWS - 1):
            moved = (place + 5) % TILE_ROWS
            if not _same_bits(
                root_mean_square_scaled(_alone(rows[tile, place], moved), 1e-5)[0, moved], normed[tile, place]
            ):
                return False
            alone = _alone(columns[tile, place], moved)[..., :inner]
            for action, whole in zip(ACTIONS, activated, strict=True):
                if not _same_bits(action(alone)[0, moved], whole[tile, place]):
                    return False
    return True


def kernels_are_row_invariant(weights: Sequence[Tensor], key_width: int, width: int, inner: int) -> bool:
    """Return whether all kernels of a shard hold: products with `weights` fp32 [K, N], attention, elementwise.

    `key_width`: one attention head; `width`: the model; `inner`: this rank's part of the MLP.
    """
    generator = torch.Generator().manual_seed(SEED)
    return (
        all(products_are_row_invariant(weight, generator) for weight in weights)
        and _attention_is_row_invariant(key_width, generator)
        and _elementwise_is_row_invariant(width, inner, generator)
    )
