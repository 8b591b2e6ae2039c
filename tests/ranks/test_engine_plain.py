"""Two shards together compute the plain model, and plain decoding is the reference that speculation must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from ranks.collective import CollectiveError
from ranks.model_config import embedded_v1_config
from ranks.ngram_memory import NgramHash
from ranks.plain_model import plain_draft_hidden, plain_hidden, plain_logits, position_bias, token_contexts
from ranks.reference_pair import ReferencePair, plain_decode
from ranks.shard_engine import EngineError, ShardEngine
from ranks.tokenizer import load_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER, EMBEDDED_WEIGHTS, LoadedWeights, load_weights, random_weights

TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def weights() -> LoadedWeights:
    return load_weights(EMBEDDED_WEIGHTS)


@pytest.fixture(scope="module")
def pair(weights: LoadedWeights) -> Iterator[ReferencePair]:
    with ReferencePair(weights, slot_count=2) as opened:
        yield opened


@pytest.fixture
def fresh() -> Iterator[ReferencePair]:
    with ReferencePair(random_weights(embedded_v1_config(), 2), slot_count=2, timeout_s=20.0) as opened:
        yield opened


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 4096, count)]


@pytest.mark.parametrize("made", ["trained", "random"])
def test_the_shards_agree_with_the_plain_model(weights: LoadedWeights, made: str) -> None:
    chosen = weights if made == "trained" else random_weights(weights.config, 5)
    named = {name: tensor.to(torch.float32) for name, tensor in chosen.tensors.items()}
    ids = tokens(1, 620)
    with torch.inference_mode():
        hidden = plain_hidden(named, chosen.config, torch.tensor([ids]), position_bias(chosen.config, len(ids)))[0]
        logits = plain_logits(named, hidden).numpy()
        drafted = plain_draft_hidden(named, chosen.config, hidden[610:611], torch.tensor(ids[611:612]), 8)
        draft_logits = plain_logits(named, drafted).numpy()
    with ReferencePair(chosen, slot_count=1) as opened:
        opened.both(lambda engine: engine.prefill(0, ids[:611]))
        verified = opened.verify([0], np.array([ids[611:620]], dtype=np.int64))
        base = opened.draft([0], [ids[611]], 8)
    assert np.abs(verified[0] - logits[611:]).max() < TOLERANCE
    assert np.abs(base - draft_logits).max() < TOLERANCE
    assert np.abs(logits).max() > 1


def test_memory_addresses_follow_only_the_last_tokens() -> None:
    memory = embedded_v1_config().memory
    heads = range(memory.head_count)
    contexts = token_contexts(torch.tensor([5, 6, 7, 9, 6, 7]), 0)
    assert contexts.tolist()[0] == [0, 0, 5]
    addresses = NgramHash(memory, heads, "cpu").addresses(contexts)
    assert int(addresses.min()) >= 0
    assert int(addresses.max()) < memory.head_count * memory.rows_per_head
    two, three = [h for h in heads if memory.order_of(h) == 2], [h for h in heads if memory.order_of(h) == 3]
    assert torch.equal(addresses[2][two], addresses[5][two])
    assert not bool((addresses[2][three] == addresses[5][three]).any())
    spread = NgramHash(memory, heads, "cpu").addresses(torch.randint(0, 4096, (4096, 3)))
    assert all(len(set(spread[:, head].tolist())) > 2500 for head in heads)


def test_greedy_decoding_does_not_depend_on_how_many_rows_a_forward_has(pair: ReferencePair) -> None:
    prompt = load_tokenizer(EMBEDDED_TOKENIZER).encode("def read_lines(path):\n    ")
    plain = plain_decode(pair, 0, prompt, 40)
    assert len(plain) == 40
    pair.clear(1)
    pair.prefill(1, prompt[:-1])
    sequence, drafts = prompt[-1:], np.random.default_rng(3)
    while len(sequence) < 41:
        guess = [token if drafts.random() < 0.7 else 77 for token in plain[len(sequence) - 1 :][:5]]
        logits = pair.verify([1], np.array([[sequence[-1], *guess]], dtype=np.int64))[0]
        best = [int(token) for token in logits.argmax(axis=-1)]
        kept = next((place for place, token in enumerate(guess) if token != best[place]), len(guess))
        pair.commit(1, kept + 1)
        sequence += best[: kept + 1]
    assert sequence[1:41] == plain


def test_plain_decoding_stops_after_a_stop_token_and_can_be_sampled(pair: ReferencePair) -> None:
    asked: list[int] = []

    def choose(logits: np.ndarray, position: int) -> int:
        asked.append(position)
        return 5 + len(asked)

    assert plain_decode(pair, 0, [1, 2, 3], 9, choose, stop_token_ids=(8,)) == [6, 7, 8]
    assert asked == [3, 4, 5]


def test_a_peer_that_fails_ends_the_pair_at_once(fresh: ReferencePair) -> None:
    def one_sided(engine: ShardEngine) -> None:
        if engine.first_token_id:
            raise RuntimeError("rank 1 is gone")
        engine.prefill(0, [1, 2, 3])

    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        fresh.both(one_sided)
    with pytest.raises(CollectiveError, match="this pair is over"):
        fresh.both(lambda engine: engine.prefill(0, [1, 2, 3]))


def test_ranks_that_bring_different_shapes_are_told(fresh: ReferencePair) -> None:
    with pytest.raises(CollectiveError, match=r"different shapes|this pair is over"):
        fresh.both(lambda engine: engine.prefill(0, tokens(1, 24 + engine.first_token_id)))


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("slot 2 is outside 0..1", lambda engine: engine.clear(2)),
        ("slot -1 is outside", lambda engine: engine.state_digest(-1)),
        ("token ids must be", lambda engine: engine.prefill(0, [4096])),
        ("token ids must be", lambda engine: engine.prefill(0, [-1])),
        ("token ids must be", lambda engine: engine.prefill(0, [])),
        ("depth 9 is outside 1..8", lambda engine: engine.draft_base([0], [1], 9)),
        ("distinct slots", lambda engine: engine.draft_base([0, 0], [1, 1], 2)),
        ("distinct slots", lambda engine: engine.verify_forward([0, 1], np.zeros((1, 3), dtype=np.int64))),
        ("token_rows has shape", lambda engine: engine.verify_forward([0], np.zeros((1, 10), dtype=np.int64))),
        ("no verified rows", lambda engine: engine.commit(0, 1)),
        ("first_position 163840 is outside", lambda engine: engine.clear(0, 163_840)),
    ],
)
def test_what_the_engine_cannot_do_is_said_in_one_sentence(
    fresh: ReferencePair, words: str, call: Callable[[ShardEngine], object]
) -> None:
    with pytest.raises(EngineError, match=words):
        call(fresh.engines[0])


def test_positions_end_where_the_configuration_says(pair: ReferencePair) -> None:
    pair.clear(0, 163_836)
    pair.prefill(0, [1, 2])
    with pytest.raises(EngineError, match="3 more exceed the 163840 positions"):
        pair.engines[0].verify_forward([0], np.zeros((1, 3), dtype=np.int64))


def test_only_verified_rows_can_be_kept(fresh: ReferencePair) -> None:
    fresh.verify([0], np.array([[1, 2, 3]], dtype=np.int64))
    with pytest.raises(EngineError, match="4 rows to keep"):
        fresh.engines[0].commit(0, 4)
