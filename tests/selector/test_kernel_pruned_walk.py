"""The pruned walk gives the pure law's bits on its registry, draws anew with positions, and is its own law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from selector.draft_law import GRID, DraftCounts, draft_law
from selector.kernels.launch_count import LaunchLog
from selector.kernels.pruned_cases import (
    WALK_CASES,
    WalkCase,
    difference_of_walks,
    head_on,
    names_on,
    reference_walks,
    walk_case,
    walk_of_case,
)
from selector.kernels.pruned_walk import WalkBuffers, walk_requests
from selector.law_ids import EXACT_LAW_ID
from selector.pruned_law import PrunedLaw, grid_logits, pruned_counts

CPU = torch.device("cpu")
GARBAGE = 77


def run(case: WalkCase, log: LaunchLog | None = None) -> WalkBuffers:
    requests, depth = case.words.shape[1:3]
    buffers = WalkBuffers.allocate(requests, depth, CPU)
    for output in (buffers.token_ids, buffers.counts, buffers.numbers, buffers.tokens, buffers.digests):
        output.fill_(GARBAGE)
    buffers.statuses.fill_(GARBAGE)
    prefix = torch.from_numpy(case.prefix_tokens)
    head, names = head_on(case.head, CPU), names_on(case.names, CPU)
    return walk_requests(torch.from_numpy(case.words), head, prefix, names, case.law, buffers, log)


@pytest.mark.parametrize("name", WALK_CASES)
def test_every_walk_of_the_registry_gives_the_pure_laws_bits_in_one_launch(name: str) -> None:
    case, log = walk_of_case(name), LaunchLog()
    assert difference_of_walks(run(case, log), reference_walks(case)) is None
    assert log.count() == log.count("pruned_walk/") == 1


def test_draws_advance_with_positions_and_another_prefix_token_is_another_walk() -> None:
    case = walk_case("advanced")
    moved = replace(case, names=tuple((seed, key, position + 1) for seed, key, position in case.names))
    other = replace(case, prefix_tokens=(case.prefix_tokens + 1) % 300)
    tokens = [run(each).tokens.tolist() for each in (case, moved, other)]
    assert tokens[0] != tokens[1]
    assert difference_of_walks(run(case), reference_walks(moved)) is not None
    assert difference_of_walks(run(case), reference_walks(other)) is not None


def test_a_union_counted_twice_is_caught() -> None:
    case = walk_of_case("the union is a set")
    sound = reference_walks(case)
    ids, found = sound.token_ids[0, 0], sound.numbers[0, 0]
    assert len(set(ids[:found].tolist())) == found
    twice = replace(sound, token_ids=np.where(sound.token_ids == ids[1], ids[0], sound.token_ids))
    assert difference_of_walks(run(case), twice) is not None


def test_on_the_grid_without_bias_the_counts_are_the_exact_laws_and_off_it_they_are_another_law() -> None:
    logits = (np.arange(32, 0, -1) / 8.0).astype(np.float32)
    exact = draft_law(logits)
    assert isinstance(exact, DraftCounts)
    ids = np.arange(32, dtype=np.int32)
    on_grid = pruned_counts(ids, grid_logits(logits, 3), 3)
    assert np.abs(on_grid.counts - exact.counts)[1:].max() <= 1
    assert on_grid.counts.sum() == GRID
    coarse = pruned_counts(ids, grid_logits(logits, 0), 0)
    assert coarse.counts.tolist() != exact.counts.tolist()
    assert PrunedLaw(32, 3).law_id != EXACT_LAW_ID
