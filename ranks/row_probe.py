"""Does this machine's matmul keep a row's bits wherever the row stands in a tile, and whoever stands beside it?

Asked once when a rank starts, on the shapes that the model uses; the answer is attested, never assumed. Must never
compare by tolerance. Source: DESIGN section 4, "Row invariance".
"""

from __future__ import annotations

import torch

from ranks.row_tiles import TILE_ROWS, tiled_linear

__all__ = ["products_are_row_invariant"]


def products_are_row_invariant(shapes: tuple[tuple[int, int], ...], device: str) -> bool:
    """Return whether every (K, N) product gives one row the same bits at every row position and in every tile."""
    generator = torch.Generator().manual_seed(0)
    for inner, outer in shapes:
        weight = torch.randn((inner, outer), generator=generator).to(device)
        probe = torch.randn((inner,), generator=generator).to(device)
        alone = torch.zeros((1, TILE_ROWS, inner), device=device)
        alone[0, 0] = probe
        expected = tiled_linear(alone, weight)[0, 0]
        crowded = torch.randn((TILE_ROWS, TILE_ROWS, inner), generator=generator).to(device)
        for position in range(TILE_ROWS):
            crowded[position, position] = probe
        found = tiled_linear(crowded, weight)
        if not all(torch.equal(found[position, position], expected) for position in range(TILE_ROWS)):
            return False
    return True
