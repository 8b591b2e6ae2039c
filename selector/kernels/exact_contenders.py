"""Our exact walk on a device, and the plain two-launch one that it is measured against, for one rank of a round.

A rank selects in its own half and merges with the peer's words, which were made beforehand: two launches a depth.
Must never be timed before its words and laws were compared with the numpy reference. Source: DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from selector.kernels.device_contenders import Contender, DeviceRound, PreparedRound
from selector.kernels.merge_draw import DrawNames, MergeBuffers, merge_and_draw
from selector.kernels.merge_draw_reference import reference_rows
from selector.kernels.plain_row_select import select_rows_plainly
from selector.kernels.shard_select import SelectBuffers, select_shard_rows
from selector.kernels.shard_select_reference import reference_words

__all__ = ["EXACT", "PLAIN", "exact_contenders"]

EXACT = "ours: shard select + merge and draw"
PLAIN = "stand-in for two launches: one program a row + our merge and draw"
_POISON = 0x5A5A5A

# Makes, for float32 logits (rows, width) and words int64 (rows, 33), what writes the words in one launch.
SelectMaker = Callable[[torch.Tensor, torch.Tensor], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class _Depth:
    """One depth's tensors: logits and words of the own half, words of the peer's, the draws' names, the outputs."""

    logits: torch.Tensor
    own: torch.Tensor
    peer: torch.Tensor
    names: DrawNames
    drawn: MergeBuffers

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Everything that a round writes."""
        drawn = self.drawn
        return (
            self.own,
            drawn.token_ids,
            drawn.counts,
            drawn.numbers,
            drawn.tokens,
            drawn.digests,
            drawn.statuses,
        )


def _depths(logits: DeviceRound) -> list[_Depth]:
    device = logits.whole.device
    keys = torch.arange(logits.batch, dtype=torch.int64, device=device)
    found = []
    for depth in range(logits.depth):
        peer = reference_words(logits.on_host[depth, :, logits.width :].copy(), logits.width)
        found.append(
            _Depth(
                logits=logits.halves[0][depth],
                own=torch.empty((logits.batch, 33), dtype=torch.int64, device=device),
                peer=torch.from_numpy(peer).to(device),
                names=DrawNames(keys, keys, torch.full_like(keys, depth)),
                drawn=MergeBuffers.allocate(logits.batch, device),
            )
        )
    return found


def _shard_select(logits: torch.Tensor, words: torch.Tensor) -> Callable[[], object]:
    room = SelectBuffers.allocate(len(logits), logits.shape[1], logits.device)
    buffers = SelectBuffers(room.tile, room.partials, room.tickets, words)
    return lambda: select_shard_rows(logits, 0, buffers)


def _plain_select(logits: torch.Tensor, words: torch.Tensor) -> Callable[[], object]:
    return lambda: select_rows_plainly(logits, 0, words)


def _prepare(make: SelectMaker) -> Callable[[DeviceRound], PreparedRound]:
    def prepare(logits: DeviceRound) -> PreparedRound:
        depths = _depths(logits)
        steps = [(make(each.logits, each.own), each) for each in depths]

        def run() -> None:
            for select, each in steps:
                select()
                merge_and_draw(each.own, each.peer, each.names, each.drawn)

        def poison() -> None:
            for _, each in steps:
                for output in each.outputs():
                    output.fill_(_POISON)

        def difference() -> str | None:
            for depth, each in enumerate(depths):
                found = _difference(logits.on_host[depth], depth, each)
                if found is not None:
                    return f"depth {depth + 1}, {found}"
            return None

        return PreparedRound(run, difference, poison)

    return prepare


def _difference(logits: NDArray[np.float32], depth: int, found: _Depth) -> str | None:
    width, rows = found.logits.shape[1], len(logits)
    own = reference_words(logits[:, :width].copy(), 0)
    if not np.array_equal(found.own.cpu().numpy(), own):
        return "the exchanged words differ from the reference's"
    wanted = reference_rows([own, found.peer.cpu().numpy()], [(row, row, depth) for row in range(rows)])
    for name in ("token_ids", "counts", "numbers", "tokens", "digests", "statuses"):
        if not np.array_equal(getattr(found.drawn, name).cpu().numpy(), getattr(wanted, name)):
            return f"{name} differ from the reference's"
    return None


def exact_contenders() -> tuple[Contender, ...]:
    """Return our exact walk and its stand-in for two plain launches, both with the exact law and both gated."""
    return (Contender(EXACT, _prepare(_shard_select)), Contender(PLAIN, _prepare(_plain_select)))
