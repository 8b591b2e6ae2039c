"""The comparison that a GPU is judged by, run in the interpreter: it counts its cases, and it is able to fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from selector.kernels import device_identity
from selector.kernels.device_identity import Identity, compare_draft_kernels, compare_verify_kernels
from selector.kernels.shard_select import ShardTile, select_shard_rows
from selector.kernels.verify_cases import SMALL_CASES
from selector.kernels.verify_round import VerifyTile

TILE = ShardTile(slots=4, threads=32, lists=4)
VERIFY_TILE = VerifyTile(columns=64, warps=1, places=8)


def test_draft_kernels_equal_their_references_in_both_types_and_every_comparison_is_counted() -> None:
    identity = Identity()
    compare_draft_kernels(identity, "cpu", (33, 129), (torch.float32, torch.bfloat16), TILE)
    assert identity.differences == []
    assert identity.compared == 2 * 2 * 3


def test_verify_kernels_equal_their_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_identity, "SMALL_CASES", SMALL_CASES[:2])
    identity = Identity()
    compare_verify_kernels(identity, "cpu", VERIFY_TILE)
    assert (identity.differences, identity.compared) == ([], 4)


def test_a_kernel_that_leaves_the_reference_is_named_with_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., torch.Tensor] = select_shard_rows

    def planted(logits: torch.Tensor, first_token_id: int, buffers: object) -> torch.Tensor:
        words = right(logits, first_token_id, buffers)
        words[3, 5] += 1
        return words

    monkeypatch.setattr(device_identity, "select_shard_rows", planted)
    identity = Identity()
    compare_draft_kernels(identity, "cpu", (33,), (torch.float32,), TILE)
    assert len(identity.differences) == 3
    assert identity.differences[0] == "select, width 33, torch.float32, shard 0: row 3 (signed zeros), word 5"
    assert identity.differences[2].startswith("merge and draw, width 33")
