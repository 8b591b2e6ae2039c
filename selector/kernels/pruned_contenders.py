"""Our pruned walk on a device, for one rank of a round: one select for all depths, then one walk.

The rank selects in its own half; the peer's words were made beforehand, so the one exchange of a round is not timed. It
drafts under its own law, never under the exact one's name, and is compared with the numpy reference like the rest.
Must never be timed before its words and laws were compared. Source: DESIGN section 3.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from selector.kernels.device_contenders import Contender, DeviceRound, PreparedRound
from selector.kernels.launch_count import LaunchLog
from selector.kernels.merge_draw import DrawNames
from selector.kernels.pruned_cases import (
    WalkCase,
    difference_of_walks,
    exchanged_words,
    head_on,
    names_on,
    random_head,
    reference_walks,
)
from selector.kernels.pruned_round import draft_pruned_round
from selector.kernels.pruned_walk import DeviceHead, WalkBuffers, walk_requests
from selector.kernels.shard_select import SelectBuffers
from selector.pruned_law import PrunedLaw

__all__ = ["BENCH_LAW", "BENCH_RANK", "PRUNED", "pruned_contenders"]

BENCH_LAW: Final = PrunedLaw(width=32, grid_bits=10)
BENCH_RANK: Final = 64
PRUNED: Final = f"ours: shard select + pruned walk (another law: M={BENCH_LAW.width}, rank {BENCH_RANK}, int8)"
_POISON = 0x5A5A5A


def _case(logits: DeviceRound) -> WalkCase:
    generator = np.random.default_rng([logits.vocabulary, logits.batch, logits.depth])
    requests = range(logits.batch)
    return WalkCase(
        words=exchanged_words(logits.on_host.transpose(1, 0, 2), logits.width),
        head=random_head(generator, logits.vocabulary, BENCH_RANK, np.int8),
        prefix_tokens=generator.integers(0, logits.vocabulary, logits.batch).astype(np.int32),
        names=tuple((request, request, 0) for request in requests),
        law=BENCH_LAW,
    )


class _Walk:
    """One round's tensors on the device, and how they are run, poisoned and compared."""

    def __init__(self, logits: DeviceRound) -> None:
        device = logits.whole.device
        self.case = _case(logits)
        self.words = torch.from_numpy(self.case.words).to(device)
        self.logits = logits.halves[0].transpose(0, 1).contiguous()
        rows = logits.batch * logits.depth
        room = SelectBuffers.allocate(rows, logits.width, device)
        # This rank's words are written where the walk reads them; the peer's half of the tensor is there already.
        self.select = SelectBuffers(room.tile, room.partials, room.tickets, self.words[0].view(rows, -1))
        self.head: DeviceHead = head_on(self.case.head, device)
        self.prefix_tokens = torch.from_numpy(self.case.prefix_tokens).to(device)
        self.names: DrawNames = names_on(self.case.names, device)
        self.drawn = WalkBuffers.allocate(logits.batch, logits.depth, device)

    def run(self, log: LaunchLog | None = None) -> None:
        draft_pruned_round(self.logits, 0, self.select, lambda: self.words, lambda words: self._walk(words, log), log)

    def _walk(self, words: torch.Tensor, log: LaunchLog | None) -> WalkBuffers:
        return walk_requests(words, self.head, self.prefix_tokens, self.names, self.case.law, self.drawn, log)

    def poison(self) -> None:
        drawn = self.drawn
        for output in (
            *(self.words[0], drawn.token_ids, drawn.counts, drawn.numbers),
            *(drawn.tokens, drawn.digests, drawn.statuses),
        ):
            output.fill_(_POISON)

    def difference(self) -> str | None:
        if not np.array_equal(self.words.cpu().numpy(), self.case.words):
            return "the exchanged words differ from the reference's"
        found = difference_of_walks(self.drawn, reference_walks(self.case))
        return None if found is None else f"{found} differs from the reference's"


def _prepare(logits: DeviceRound) -> PreparedRound:
    walk = _Walk(logits)
    return PreparedRound(walk.run, walk.difference, walk.poison)


def pruned_contenders() -> tuple[Contender, ...]:
    """Return our pruned walk, a law of its own, gated like the exact ones."""
    return (Contender(PRUNED, _prepare),)
