"""Rows of logits through the Triton kernels, in the interpreter or on a GPU; the process of its own that does it.

Whether Triton interprets or compiles is settled when it is first imported, so the caller starts this file as a process:
rows as one JSON line on stdin, laws as one JSON line on stdout.
Must never fall back from one way of running to the other. Source: DESIGN section 3.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from selector.backends.law_rows import DRAW_SEED, LawRow, cut_in_two
from selector.kernels.merge_draw import DrawNames, MergeBuffers, merge_and_draw
from selector.kernels.shard_select import CANDIDATE_WORDS, SelectBuffers, select_shard_rows
from selector.logit_keys import MASKED_KEY

__all__ = ["kernel_rows"]

_POISON = -77


def kernel_rows(rows: Sequence[NDArray[np.float32]], shards: int, device: torch.device) -> list[LawRow]:
    """Return what the kernels make of each row. rows: float32 (n,), of any lengths; shards: 1 or 2."""
    return [_kernel_row(row, index, shards, device) for index, row in enumerate(rows)]


def _kernel_row(row: NDArray[np.float32], index: int, shards: int, device: torch.device) -> LawRow:
    words = torch.full((2, 1, CANDIDATE_WORDS), MASKED_KEY, dtype=torch.int64, device=device)
    words[:, :, -1] = 0
    start = 0
    for shard, part in enumerate([row] if shards == 1 else cut_in_two(row)):
        buffers = SelectBuffers.allocate(1, len(part), device)
        buffers.words.fill_(_POISON)
        logits = torch.from_numpy(part.copy()).to(device)[None, :]
        words[shard] = select_shard_rows(logits, start, buffers)
        start += len(part)
    merged = MergeBuffers.allocate(1, device)
    for output in (merged.token_ids, merged.counts, merged.numbers, merged.tokens, merged.digests, merged.statuses):
        output.fill_(_POISON)
    name = (torch.tensor([value], dtype=torch.int64, device=device) for value in (DRAW_SEED, index, index))
    merge_and_draw(words[0], words[1], DrawNames(*name), merged)
    number = int(merged.numbers[0])
    return LawRow(
        int(merged.statuses[0]),
        tuple(merged.token_ids[0, :number].tolist()),
        tuple(merged.counts[0, :number].tolist()),
        int(merged.tokens[0]),
        int(merged.digests[0]) % (1 << 64),
    )


def main() -> None:
    """Read {"device", "shards", "rows": [hexadecimal float32]} and write the laws."""
    asked = json.loads(sys.stdin.readline())
    rows = [np.frombuffer(bytes.fromhex(text), dtype="<f4").astype(np.float32) for text in asked["rows"]]
    laws = kernel_rows(rows, asked["shards"], torch.device(asked["device"]))
    with open(sys.argv[1], "w", encoding="utf-8") as answer:
        json.dump([asdict(law) for law in laws], answer)


if __name__ == "__main__":
    main()
