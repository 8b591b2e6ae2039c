"""Named small walks that tests and the GPU script read, and what the walk computes for them in numpy.

A case is made from its name alone, so every reader sees the same bytes. The reference turns exchanged words into the
pure law's candidates and calls the pure law, nothing else.
Must never share code with the kernel beyond the pure laws. Source: DESIGN section 3; selector/pruned_law.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from selector.candidates import TOP_K, ShardCandidates
from selector.kernels.kernel_cases import CASES, case_row
from selector.kernels.merge_draw import DrawNames
from selector.kernels.pruned_walk import DeviceHead, WalkBuffers
from selector.kernels.shard_select_reference import reference_words
from selector.logit_keys import candidate_keys, keys_to_candidates
from selector.pruned_law import DraftName, MarkovHead, PrunedLaw, pruned_walk

__all__ = [
    "WALK_CASES",
    "ReferenceWalks",
    "WalkCase",
    "difference_of_walks",
    "exchanged_words",
    "head_on",
    "names_on",
    "random_head",
    "reference_walks",
    "walk_case",
    "walk_of_case",
]

VOCABULARY: Final = 300


@dataclass(frozen=True, slots=True)
class WalkCase:
    """One batch of walks. words: int64 (2, requests, depth, 33); prefix_tokens: int32 (requests,); names: one each."""

    words: NDArray[np.int64]
    head: MarkovHead
    prefix_tokens: NDArray[np.int32]
    names: tuple[DraftName, ...]
    law: PrunedLaw


@dataclass(frozen=True, slots=True)
class ReferenceWalks:
    """The outputs of WalkBuffers as numpy arrays of the same shapes and dtypes."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    numbers: NDArray[np.int32]
    tokens: NDArray[np.int32]
    digests: NDArray[np.int64]
    statuses: NDArray[np.int32]


def random_head(
    generator: np.random.Generator,
    vocabulary: int,
    rank: int,
    dtype: type[np.int8] | type[np.int16],
    bias_shift: int = 0,
    mild: bool = True,
) -> MarkovHead:
    """Return a head of entries -20 .. 20, or, unless mild, over its whole type; V and r as MarkovHead's.

    The first token's rows are the least integers, which make the greatest dots there are.
    """
    limits = (-20, 20) if mild else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    tables = generator.integers(limits[0], limits[1] + 1, (2, vocabulary, rank), dtype=np.int64)
    tables[:, 0] = limits[0]
    if dtype is np.int8:
        return MarkovHead(tables[0].astype(np.int8), tables[1].astype(np.int8), bias_shift)
    return MarkovHead(tables[0].astype(np.int16), tables[1].astype(np.int16), bias_shift)


def exchanged_words(logits: NDArray[np.float32], cut: int) -> NDArray[np.int64]:
    """Return both shards' words int64 (2, requests, depth, 33) of logits float32 (requests, depth, vocabulary).

    cut: the first token id of the second shard.
    """
    requests, depth, vocabulary = logits.shape
    rows = logits.reshape(-1, vocabulary)
    shards = [reference_words(rows[:, :cut].copy(), 0), reference_words(rows[:, cut:].copy(), cut)]
    return np.stack(shards).reshape(2, requests, depth, TOP_K + 1)


def _names(generator: np.random.Generator, requests: int) -> tuple[DraftName, ...]:
    seeds, keys = generator.integers(0, 2**64, (2, requests), dtype=np.uint64).tolist()
    positions = generator.integers(0, 2**32 - 8, requests).tolist()
    return tuple(zip(seeds, keys, positions, strict=True))


def walk_case(
    name: str,
    requests: int = 2,
    depth: int = 3,
    law: PrunedLaw | None = None,
    rank: int = 8,
    dtype: type[np.int8] | type[np.int16] = np.int8,
    bias_shift: int = 0,
    mild: bool = True,
) -> WalkCase:
    """Return a batch of normal logits over 300 tokens; the name alone seeds it."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    logits = generator.normal(0.0, 3.0, (requests, depth, VOCABULARY)).astype(np.float32)
    return WalkCase(
        exchanged_words(logits, VOCABULARY // 2),
        random_head(generator, VOCABULARY, rank, dtype, bias_shift, mild),
        generator.integers(0, VOCABULARY, requests).astype(np.int32),
        _names(generator, requests),
        law or PrunedLaw(16, 10),
    )


def _registry_rows() -> WalkCase:
    # Every named row at depth 2, between two sound ones; so what a bad row does to the next depth is seen as well.
    case = walk_case("registry", requests=len(CASES), depth=3, law=PrunedLaw(32, 16), rank=5)
    logits = np.stack([case_row(each, VOCABULARY) for each in CASES])[:, np.newaxis]
    case.words[:, :, 1:2] = exchanged_words(logits, 7)
    return case


def _all_masked_shard() -> WalkCase:
    case = walk_case("one shard all masked")
    case.words[0, :, 1] = exchanged_words(np.full((1, 1, 4), -np.inf, dtype=np.float32), 2)[0, 0, 0]
    return case


def _both_list_the_same() -> WalkCase:
    case = walk_case("the union is a set", law=PrunedLaw(32, 8))
    case.words[1, :, :, 5:25] = case.words[0, :, :, 3:23]
    return case


def _foreign_prefixes() -> WalkCase:
    case = walk_case("prefix outside the vocabulary", requests=3, depth=2)
    return replace(case, prefix_tokens=np.array([-1, VOCABULARY, VOCABULARY - 1], dtype=np.int32))


def _foreign_candidate() -> WalkCase:
    case = walk_case("candidate outside the vocabulary", depth=4)
    case.words[1, 0, 1, 3] -= 1 << 20
    case.words[0, 1, 2, 0] -= 1 << 31
    # Beyond the width nothing is read.
    case.words[0, 0, 0, 20] -= 1 << 20
    return case


def _two_logits() -> WalkCase:
    case = walk_case("one token, two logits", depth=4)
    case.words[1, 1, 1, 9] = case.words[0, 1, 1, 2] + (1 << 32)
    return case


def _steep() -> WalkCase:
    # Prefix and one candidate are the first token, whose dot is 17 * 2^30.
    case = walk_case("bias far beyond the clamp", dtype=np.int16, rank=17, bias_shift=16, mild=False)
    case.words[0, :, :, 0] = candidate_keys(np.array([3.0], dtype=np.float32), np.array([0]))[0]
    return replace(case, prefix_tokens=np.zeros(2, dtype=np.int32))


def _saturated() -> WalkCase:
    case = walk_case("saturated logits", law=PrunedLaw(32, 16))
    generator = np.random.default_rng(5)
    logits = (generator.uniform(-1.0, 1.0, (2, 3, VOCABULARY)) * 3.0e38).astype(np.float32)
    return replace(case, words=exchanged_words(logits, 100))


def _half_grid_ties() -> WalkCase:
    case = walk_case("ties of half a unit", law=PrunedLaw(32, 2))
    generator = np.random.default_rng(6)
    logits = (generator.integers(-20, 20, (2, 3, VOCABULARY)) / 8.0).astype(np.float32)
    no_bias = MarkovHead(np.zeros_like(case.head.previous), case.head.following, 0)
    return replace(case, words=exchanged_words(logits, 100), head=no_bias)


def _of_depth(depth: int) -> Callable[[], WalkCase]:
    return lambda: walk_case(f"depth {depth}", depth=depth)


_MAKERS: Final[dict[str, Callable[[], WalkCase]]] = {
    "every named row": _registry_rows,
    "one shard all masked": _all_masked_shard,
    "the union is a set": _both_list_the_same,
    "prefix outside the vocabulary": _foreign_prefixes,
    "candidate outside the vocabulary": _foreign_candidate,
    "one token, two logits": _two_logits,
    "bias far beyond the clamp": _steep,
    "saturated logits": _saturated,
    "ties of half a unit": _half_grid_ties,
    "one candidate a shard": lambda: walk_case("narrow", law=PrunedLaw(1, 4), rank=1),
    "int16, shifted": lambda: walk_case("int16", dtype=np.int16, rank=33, bias_shift=3, mild=False),
    "int8, greatest rank": lambda: walk_case("greatest rank", rank=256, mild=False),
    "int16, greatest rank": lambda: walk_case("greatest rank, wide", dtype=np.int16, rank=256, mild=False),
    "int16, mild": lambda: walk_case("int16, mild", dtype=np.int16, rank=100),
    **{f"depth {depth}": _of_depth(depth) for depth in range(1, 9)},
}
WALK_CASES: Final = tuple(_MAKERS)


def walk_of_case(name: str) -> WalkCase:
    """Return the walks of a case, always the same ones. Raises KeyError for another name."""
    return _MAKERS[name]()


def reference_walks(case: WalkCase) -> ReferenceWalks:
    """Return laws and draws of all requests and depths by the pure law. Source: DESIGN section 3."""
    requests, depth = case.words.shape[1:3]
    shape = (requests, depth)
    result = ReferenceWalks(
        token_ids=np.full((*shape, TOP_K), -1, dtype=np.int32),
        counts=np.zeros((*shape, TOP_K), dtype=np.int64),
        numbers=np.zeros(shape, dtype=np.int32),
        tokens=np.full(shape, -1, dtype=np.int32),
        digests=np.zeros(shape, dtype=np.int64),
        statuses=np.zeros(shape, dtype=np.int32),
    )
    for request, (prefix, name) in enumerate(zip(case.prefix_tokens.tolist(), case.names, strict=True)):
        depths = [_candidates(case.words[:, request, step], case.law.width) for step in range(depth)]
        for step, draft in enumerate(pruned_walk(depths, case.head, prefix, case.law, name)):
            result.statuses[request, step] = draft.status
            if draft.counts is None:
                continue
            number = len(draft.counts.token_ids)
            result.token_ids[request, step, :number] = draft.counts.token_ids
            result.counts[request, step, :number] = draft.counts.counts
            result.numbers[request, step] = number
            result.tokens[request, step] = draft.token
            result.digests[request, step] = np.array(draft.digest, dtype=np.uint64).view(np.int64)
    return result


def _candidates(words: NDArray[np.int64], width: int) -> list[ShardCandidates]:
    return [ShardCandidates(*keys_to_candidates(shard[:width]), poisoned=bool(shard[TOP_K])) for shard in words]


def names_on(names: Sequence[DraftName], device: torch.device) -> DrawNames:
    """Return draw names as device tensors."""
    columns = np.array(names, dtype=np.uint64).reshape(-1, 3).view(np.int64).T.copy()
    return DrawNames(*(torch.from_numpy(column.copy()).to(device) for column in columns))


def head_on(head: MarkovHead, device: torch.device) -> DeviceHead:
    """Return a head's tables on a device."""
    previous, following = (torch.from_numpy(table) for table in (head.previous, head.following))
    return DeviceHead.of_tables(previous, following, head.bias_shift, device)


def difference_of_walks(found: WalkBuffers, expected: ReferenceWalks) -> str | None:
    """Return the first output that differs and where, None when none does."""
    for name in ReferenceWalks.__slots__:
        mine, theirs = getattr(found, name).cpu().numpy(), getattr(expected, name)
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return f"{name} is {mine.dtype} {mine.shape}"
        if (mine != theirs).any():
            request, step = np.argwhere(mine != theirs)[0][:2]
            return f"{name} of request {request} at depth {step + 1}"
    return None
