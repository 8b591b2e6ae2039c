"""Every kernel on one device against its numpy reference, over the registries: the sentences of what differs.

Runs in the interpreter (device cpu) and on a GPU alike, and needs only numpy, torch and triton.
Must never count a case that was not run: the number of compared cases stands beside the differences.
Source: DESIGN section 3, "Counts are bit-identical on every backend".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from selector.kernels.kernel_cases import CASES, case_row, cut_to_bfloat16
from selector.kernels.merge_draw import DrawNames, MergeBuffers, merge_and_draw
from selector.kernels.merge_draw_reference import reference_rows
from selector.kernels.shard_select import SelectBuffers, ShardTile, select_shard_rows
from selector.kernels.shard_select_reference import reference_words
from selector.kernels.verify_cases import SMALL_CASES, in_bfloat16, shaped_case
from selector.kernels.verify_reference import VerifyCase
from selector.kernels.verify_round import VerifyTile
from selector.kernels.verify_trial import VerifyTrial

__all__ = ["Identity", "compare_draft_kernels", "compare_replayed_graph", "compare_verify_kernels", "on_device"]

_GARBAGE = 0x5A5A5A5A
_SEED = 7
LARGE_VOCABULARIES = (32_000, 129_280, 163_840)
_FIELDS = ("token_ids", "counts", "numbers", "tokens", "digests", "statuses")


@dataclass(slots=True)
class Identity:
    """compared: cases run so far; differences: one sentence for each that did not give the reference's bits."""

    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def take(self, what: str, difference: str | None) -> None:
        """Count one case, and keep its difference when there is one."""
        self.compared += 1
        if difference is not None:
            self.differences.append(f"{what}: {difference}")


def on_device(rows: NDArray[np.float32], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return logits on the device, bfloat16 by their bits: a conversion may change a NaN.

    rows: float32 (rows, n), for bfloat16 already cut to 16 bits.
    """
    if dtype == torch.float32:
        return torch.from_numpy(rows).to(device)
    halves = (rows.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return torch.from_numpy(halves.view(np.int16)).to(device).view(torch.bfloat16)


def compare_draft_kernels(
    identity: Identity, device: str, widths: Sequence[int], dtypes: Sequence[torch.dtype], tile: ShardTile | None = None
) -> None:
    """Compare shard select, then merge and draw, on every case of the registry at those shard widths.

    Each registry row is shard 0; the row of the next case is shard 1. tile: None for the one that a width asks for.
    """
    for width in widths:
        plain = np.stack([case_row(case, width) for case in CASES])
        for dtype in dtypes:
            rows = plain if dtype == torch.float32 else cut_to_bfloat16(plain)
            shards = [rows, np.roll(rows, 1, axis=0).copy()]
            words = []
            for shard, part in enumerate(shards):
                buffers = SelectBuffers.allocate(len(part), width, torch.device(device), tile)
                buffers.words.fill_(_GARBAGE)
                buffers.partials.fill_((1 << 63) - 1)
                words.append(select_shard_rows(on_device(part, dtype, device), shard * width, buffers))
            wanted = [reference_words(part, shard * width) for shard, part in enumerate(shards)]
            name = f"width {width}, {dtype}"
            for shard in range(2):
                identity.take(f"select, {name}, shard {shard}", _first_word(words[shard].cpu().numpy(), wanted[shard]))
            identity.take(f"merge and draw, {name}", _merged_difference(words, wanted, device))


def _first_word(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> str | None:
    wrong = np.argwhere(found != wanted)
    return f"row {wrong[0][0]} ({CASES[wrong[0][0]].name}), word {wrong[0][1]}" if len(wrong) else None


def _merged_difference(words: Sequence[torch.Tensor], wanted: Sequence[NDArray[np.int64]], device: str) -> str | None:
    rows = len(wanted[0])
    keys = torch.arange(rows, dtype=torch.int64, device=device)
    merged = MergeBuffers.allocate(rows, torch.device(device))
    for name in _FIELDS:
        getattr(merged, name).fill_(_GARBAGE)
    merge_and_draw(words[0], words[1], DrawNames(torch.full_like(keys, _SEED), keys, keys + 3), merged)
    reference = reference_rows(list(wanted), [(_SEED, row, row + 3) for row in range(rows)])
    for name in _FIELDS:
        if not np.array_equal(getattr(merged, name).cpu().numpy(), getattr(reference, name)):
            return f"{name} differ"
    return None


def compare_replayed_graph(identity: Identity, width: int) -> None:
    """Capture one depth as a CUDA graph; replays must equal the reference, and advanced positions draw anew.

    Needs a CUDA device. width: of a shard.
    """
    rows = [case_row(CASES[0], width + offset)[:width].copy() for offset in range(4)]
    shards = [np.stack(rows), np.stack(rows[::-1])]
    keys = torch.arange(4, dtype=torch.int64, device="cuda")
    names = DrawNames(torch.full_like(keys, _SEED), keys, torch.zeros_like(keys))
    selects = [SelectBuffers.allocate(4, width, torch.device("cuda")) for _ in shards]
    merged = MergeBuffers.allocate(4, torch.device("cuda"))
    logits = [torch.from_numpy(part).cuda() for part in shards]

    def run() -> None:
        words = [select_shard_rows(part, index * width, selects[index]) for index, part in enumerate(logits)]
        merge_and_draw(words[0], words[1], names, merged)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
        names.positions.add_(1)
    names.positions.zero_()
    wanted = [reference_words(part, index * width) for index, part in enumerate(shards)]
    drawn = set()
    for replay in range(8):
        for name in _FIELDS:
            getattr(merged, name).fill_(_GARBAGE)
        graph.replay()
        reference = reference_rows(wanted, [(_SEED, row, replay) for row in range(4)])
        same = all(np.array_equal(getattr(merged, name).cpu().numpy(), getattr(reference, name)) for name in _FIELDS)
        identity.take(f"replay {replay}, width {width}", None if same else "differs from the reference")
        drawn.add(tuple(merged.tokens.tolist()))
    identity.take("draws of eight replays", None if len(drawn) > 1 else "never advanced")


def compare_verify_kernels(
    identity: Identity, device: str, tile: VerifyTile | None = None, large: bool = False
) -> None:
    """Compare all steps of a verify on its registry, in bfloat16 too; large: also whole vocabularies at depth 5."""
    makers: list[Callable[[], VerifyCase]] = list(SMALL_CASES)
    makers += [partial(shaped_case, 2, 5, vocabulary) for vocabulary in LARGE_VOCABULARIES] if large else []
    for make in makers:
        case = make()
        for dtype, cut in ((torch.float32, case), (torch.bfloat16, in_bfloat16(case))):
            wrong = VerifyTrial(cut, device, dtype, tile).differences()
            identity.take(f"verify, {case.name}, {dtype}", f"{', '.join(wrong)} differ" if wrong else None)
