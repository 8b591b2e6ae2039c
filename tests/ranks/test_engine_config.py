"""A configuration that the engine could not compute exactly is refused, and two threads add in rank order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from ranks.collective import CollectiveError
from ranks.model_config import ModelConfig, embedded_v1_config
from ranks.thread_collective import thread_pair


def changed(section: str, key: str, value: object) -> str:
    document: dict[str, Any] = json.loads(embedded_v1_config().model_dump_json())
    (document[section] if section else document)[key] = value
    return json.dumps(document)


def test_a_configuration_survives_its_own_json() -> None:
    config = embedded_v1_config()
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("", "mlp_width", 500, "must be a multiple of 64"),
        ("", "vocabulary_size", 4095, "must be a multiple of 64"),
        ("", "slope_exponents", [1, 2, 3], "one slope exponent a head"),
        ("", "end_token_id", 4096, "must be below 4096"),
        ("", "norm_epsilon", 0.0, "greater than 0"),
        ("memory", "rows_per_head", 8191, "must be a power of two"),
        ("memory", "head_count", 6, "same number of heads of every order"),
        ("memory", "multipliers", [[3, 5]] * 8, "one tuple a head"),
        ("memory", "layer", 4, "must be below 4"),
        ("drafter", "markov_rank", 1041, "not exact in fp32"),
        ("drafter", "markov_scale_bits", 15, "must not exceed"),
    ],
)
def test_a_configuration_that_cannot_be_computed_is_refused(section: str, key: str, value: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ModelConfig.model_validate_json(changed(section, key, value))


def test_two_threads_add_and_gather_in_rank_order() -> None:
    first, second = thread_pair(timeout_s=20.0)
    parts = [torch.tensor([1e8, 1.0, -0.0]), torch.tensor([1.0, 2.0, -0.0])]
    with ThreadPoolExecutor(2) as threads:
        ends = [(first, parts[0]), (second, parts[1])]
        for _ in range(3):
            sums = list(threads.map(lambda end: end[0].all_reduce_sum(end[1]), ends))
            gathered = list(threads.map(lambda end: end[0].all_gather(end[1]), ends))
            assert all(torch.equal(found, parts[0] + parts[1]) for found in sums)
            assert all(torch.equal(found, torch.stack(parts)) for found in gathered)


def test_a_thread_whose_peer_stays_away_is_told() -> None:
    first, _ = thread_pair(timeout_s=0.05)
    with pytest.raises(CollectiveError, match="rank 1 failed or did not arrive"):
        first.all_reduce_sum(torch.zeros(1))
