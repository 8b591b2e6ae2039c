"""KV bits do not depend on who wrote a position, and nothing past a row's causal limit is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ranks.kv_slots import RING_POSITIONS, KvSlots
from ranks.reference_pair import ReferencePair
from ranks.shard_engine import ShardEngine
from ranks.weights import EMBEDDED_WEIGHTS, load_weights

LENGTH = 330


@pytest.fixture(scope="module")
def pair() -> Iterator[ReferencePair]:
    with ReferencePair(load_weights(EMBEDDED_WEIGHTS), slot_count=3) as opened:
        yield opened


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 4096, count)]


def kv_bits(engine: ShardEngine, slot: int, stop: int) -> bytes:
    """Return the bits of the last 256 positions before `stop` in all layers and heads."""
    positions = np.arange(max(0, stop - 256), stop, dtype=np.int64)
    rows = torch.from_numpy(engine.slots.row_indices(slot, positions).reshape(-1))
    return engine.slots.rings[:, rows].numpy().tobytes()


def whole_state(pair: ReferencePair, slot: int) -> list[tuple[bytes, int]]:
    length = pair.engines[0].slot_length(slot)
    return [(kv_bits(engine, slot, length), engine.state_digest(slot)) for engine in pair.engines]


def write_by_rounds(pair: ReferencePair, slot: int, token_ids: list[int], seed: int) -> None:
    """Write tokens by verify rounds of 1 to 9 rows that keep a part and refuse wrong drafts."""
    generator = np.random.default_rng(seed)
    done = 0
    while done < len(token_ids):
        width = int(generator.integers(1, 10))
        kept = int(generator.integers(1, min(width, len(token_ids) - done) + 1))
        drafted = np.array([*token_ids[done : done + kept], *tokens(seed + done, width - kept)], dtype=np.int64)
        pair.verify([slot], drafted[None])
        pair.commit(slot, kept)
        done += kept


@pytest.fixture(scope="module")
def written_at_once(pair: ReferencePair) -> list[tuple[bytes, int]]:
    pair.clear(0)
    pair.prefill(0, tokens(1, LENGTH))
    return whole_state(pair, 0)


@pytest.mark.parametrize("chunk", [1, 7, 24, 64, 191, 192, 193])
def test_prefill_in_any_chunking_writes_the_same_bits(
    pair: ReferencePair, written_at_once: list[tuple[bytes, int]], chunk: int
) -> None:
    prompt = tokens(1, LENGTH)
    pair.clear(1)
    for start in range(0, LENGTH, chunk):
        pair.prefill(1, prompt[start : start + chunk])
    assert whole_state(pair, 1) == written_at_once


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds_with_refused_drafts_write_the_bits_of_prefill(
    pair: ReferencePair, written_at_once: list[tuple[bytes, int]], seed: int
) -> None:
    prompt = tokens(1, LENGTH)
    pair.clear(2)
    pair.prefill(2, prompt[: 100 * seed])
    write_by_rounds(pair, 2, prompt[100 * seed :], seed)
    assert whole_state(pair, 2) == written_at_once


def test_a_rebuild_into_a_used_slot_writes_the_same_bits(
    pair: ReferencePair, written_at_once: list[tuple[bytes, int]]
) -> None:
    pair.clear(1)
    pair.prefill(1, tokens(5, 900))
    pair.clear(1)
    pair.prefill(1, tokens(1, LENGTH))
    assert whole_state(pair, 1) == written_at_once


def test_a_restored_snapshot_is_the_slot_that_it_was_taken_of(
    pair: ReferencePair, written_at_once: list[tuple[bytes, int]]
) -> None:
    prompt = tokens(1, LENGTH)
    pair.clear(0)
    pair.prefill(0, prompt[:200])
    taken = pair.both(lambda engine: engine.snapshot(0))
    pair.prefill(0, tokens(8, 400))
    for slot in (0, 2):
        for engine, snapshot in zip(pair.engines, taken, strict=True):
            engine.restore(slot, snapshot)
        pair.prefill(slot, prompt[200:])
        assert whole_state(pair, slot) == written_at_once


def test_state_digests_tell_tokens_length_and_hidden_apart(pair: ReferencePair) -> None:
    seen = set()
    for prompt in ([1, 2, 3], [1, 2], [9, 2, 3], [2, 1, 3]):
        pair.clear(0)
        pair.prefill(0, prompt)
        first, second = pair.state_digests(0)
        assert first == second
        seen.add(first)
    assert len(seen) == 4


def poison(pair: ReferencePair, slot: int, readable: range) -> None:
    """Fill the whole cache with NaN except the readable positions of one slot and the row of zeros."""
    for engine in pair.engines:
        rings = engine.slots.rings
        keep = torch.zeros(rings.shape[1], dtype=torch.bool)
        positions = np.array(readable, dtype=np.int64)
        keep[torch.from_numpy(engine.slots.row_indices(slot, positions).reshape(-1))] = True
        keep[engine.slots.zero_row] = True
        rings[:, ~keep] = float("nan")


@pytest.mark.parametrize("length", [1, 60, 64, 256, 300, 513, 700])
def test_only_the_window_is_read(pair: ReferencePair, length: int) -> None:
    drafted = np.array([tokens(3, 9)], dtype=np.int64)
    pair.clear(1)
    pair.prefill(1, tokens(2, length))
    clean = pair.verify([1], drafted)
    poison(pair, 1, range(max(0, length - 255), length))
    poisoned = pair.verify([1], drafted)
    assert poisoned.tobytes() == clean.tobytes()
    poison(pair, 1, range(max(0, length - 254), length))
    inside = pair.verify([1], drafted)
    assert np.isnan(inside[0, 0]).all() == (length >= 255)
    for engine in pair.engines:
        engine.slots.rings.zero_()


def test_a_poisoned_row_stays_poisoned_and_touches_no_other(pair: ReferencePair) -> None:
    prompts, drafted = [tokens(4, 77), tokens(6, 140)], np.array([tokens(3, 6), tokens(7, 6)], dtype=np.int64)
    for slot, prompt in enumerate(prompts):
        pair.clear(slot)
        pair.prefill(slot, prompt)
    clean = pair.verify([0, 1], drafted)
    sick = int(drafted[0, 3])
    owner = pair.engines[sick // pair.engines[0].shard_size]
    table = owner.target.embedding
    healthy = table[sick - owner.first_token_id].clone()
    for value in (float("nan"), float("inf")):
        table[sick - owner.first_token_id] = value
        spoiled = pair.verify([0, 1], drafted)
        table[sick - owner.first_token_id] = healthy
        assert spoiled[1].tobytes() == clean[1].tobytes()
        assert spoiled[0, :3].tobytes() == clean[0, :3].tobytes()
        assert np.isnan(spoiled[0, 3:]).all()
    assert pair.verify([0, 1], drafted).tobytes() == clean.tobytes()


def test_without_sealing_a_poisoned_value_would_reach_earlier_rows(
    pair: ReferencePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_as_it_is(slots: KvSlots, layer: int, rows: torch.Tensor, keys_values: torch.Tensor) -> None:
        slots.rings[layer].index_copy_(0, rows, keys_values)

    pair.clear(0)
    pair.prefill(0, tokens(4, 77))
    drafted = np.array([tokens(3, 6)], dtype=np.int64)
    sick = int(drafted[0, 3])
    owner = pair.engines[sick // pair.engines[0].shard_size]
    table = owner.target.embedding
    healthy = table[sick - owner.first_token_id].clone()
    monkeypatch.setattr(KvSlots, "write", store_as_it_is)
    table[sick - owner.first_token_id] = float("nan")
    spoiled = pair.verify([0], drafted)
    table[sick - owner.first_token_id] = healthy
    for engine in pair.engines:
        engine.slots.rings.zero_()
    assert np.isnan(spoiled[0, 0]).any()


def run_near(pair: ReferencePair, slot: int, first_position: int, prompt: list[int]) -> NDArray[np.float32]:
    pair.clear(slot, first_position)
    pair.prefill(slot, prompt)
    return pair.verify([slot], np.array([tokens(12, 6)], dtype=np.int64))


def test_logits_do_not_depend_on_the_absolute_position(pair: ReferencePair) -> None:
    prompt = tokens(11, 400)
    low = run_near(pair, 0, 0, prompt)
    shifted = run_near(pair, 1, 318 * RING_POSITIONS, prompt)
    odd = run_near(pair, 2, 163_000 + 17, prompt)
    assert shifted.tobytes() == low.tobytes()
    assert np.abs(odd - low).max() < 1e-3


def test_many_rows_equal_one_row_at_the_last_positions(pair: ReferencePair) -> None:
    prompt, drafted = tokens(13, 300), tokens(14, 6)
    first = 163_840 - len(prompt) - len(drafted)
    many = np.empty((6, 4096), dtype=np.float32)
    pair.clear(0, first)
    pair.prefill(0, prompt)
    many[:] = pair.verify([0], np.array([drafted], dtype=np.int64))[0]
    for row, token in enumerate(drafted):
        one = pair.verify([0], np.array([[token]], dtype=np.int64))
        pair.commit(0, 1)
        assert one[0, 0].tobytes() == many[row].tobytes()
    assert pair.engines[0].slot_length(0) == 163_840


@pytest.mark.slow
def test_a_true_prefill_of_almost_all_positions_equals_a_window_of_its_end(pair: ReferencePair) -> None:
    """Four layers look back at most 4 * 255 positions, so a prefill of the last 1,100 must give the same logits."""
    prompt = tokens(15, 163_840 - 6)
    drafted = np.array([tokens(16, 6)], dtype=np.int64)
    pair.clear(0)
    pair.prefill(0, prompt)
    whole = pair.verify([0], drafted)
    pair.both(lambda engine: engine.clear(1, len(prompt) - 1100))
    pair.prefill(1, prompt[-1100:])
    assert pair.verify([1], drafted).tobytes() == whole.tobytes()
