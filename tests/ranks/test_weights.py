"""A weights file that cannot be used is refused with one sentence that names the file and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ranks.model_config import ModelConfig, embedded_v1_config
from ranks.tensor_layout import expected_tensors
from ranks.tokenizer import load_tokenizer
from ranks.weights import (
    EMBEDDED_TOKENIZER,
    EMBEDDED_WEIGHTS,
    WeightsError,
    load_weights,
    parse_weights,
    random_weights,
)

Change = Callable[[dict[str, Tensor], dict[str, str]], None]


@pytest.fixture(scope="module")
def good() -> tuple[dict[str, Tensor], dict[str, str]]:
    weights = random_weights(embedded_v1_config(), 3)
    return weights.tensors, {"config": weights.config.model_dump_json(), "tokenizer_sha256": "none"}


def refusal(path: Path, expected_sha256: str | None = None) -> str:
    with pytest.raises(WeightsError) as caught:
        load_weights(path, expected_sha256)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def set_config(key: str, value: object) -> Change:
    def change(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        document = json.loads(metadata["config"])
        document[key] = value
        metadata["config"] = json.dumps(document)

    return change


def set_tensor(name: str, value: Callable[[Tensor], Tensor]) -> Change:
    def change(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        tensors[name] = value(tensors[name])

    return change


def without(name: str) -> Change:
    def change(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        tensors.pop(name, None)
        metadata.pop(name, None)

    return change


def with_a_nan(tensor: Tensor) -> Tensor:
    spoiled = tensor.clone()
    spoiled.view(-1)[7] = float("nan")
    return spoiled


CHANGES: dict[str, tuple[Change, str]] = {
    "a missing tensor": (without("memory.table"), "lacks tensor 'memory.table'"),
    "a surplus tensor": (
        lambda tensors, _: tensors.update(extra=torch.zeros(2, dtype=torch.float16)),
        "holds tensor 'extra'",
    ),
    "a wrong shape": (set_tensor("layers.2.query", lambda t: t[:-1].contiguous()), "has shape (191, 192); (192, 192)"),
    "a wrong type": (set_tensor("embedding", lambda t: t.float()), "is torch.float32; torch.float16 is needed"),
    "float tables": (set_tensor("markov.next", lambda t: t.half()), "is torch.float16; torch.int8 is needed"),
    "a value that is not finite": (set_tensor("drafter.blocks.1.up", with_a_nan), "holds a NaN or an infinity"),
    "no configuration": (without("config"), "has no 'config' in its metadata"),
    "no tokenizer": (without("tokenizer_sha256"), "has no 'tokenizer_sha256'"),
    "another layout": (set_config("layout", "other"), "is wrong at 'layout'"),
    "an unknown key": (set_config("rope_base", 1), "is wrong at 'rope_base'"),
    "a number as text": (set_config("layer_count", "4"), "is wrong at 'layer_count'"),
    "odd widths": (set_config("model_width", 100), "model_width is 100"),
    "not JSON": (lambda _, metadata: metadata.update(config="{"), "metadata 'config' is wrong"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_wrong_checkpoint_is_refused_in_one_sentence(
    good: tuple[dict[str, Tensor], dict[str, str]], tmp_path: Path, kind: str
) -> None:
    change, words = CHANGES[kind]
    tensors, metadata = dict(good[0]), dict(good[1])
    change(tensors, metadata)
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    assert words in refusal(path)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 3_000, 4_000_000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(EMBEDDED_WEIGHTS.read_bytes()[:kept])
    assert "safetensors" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [b"\x80\x04\x95pickle", b"PK\x03\x04" + bytes(64), bytes(range(256)), (8).to_bytes(8, "little") + b"[1, 2] x"],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    assert "safetensors" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "none.safetensors")
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


def test_another_digest_than_the_registered_one_is_refused() -> None:
    assert "is registered" in refusal(EMBEDDED_WEIGHTS, "0" * 64)
    digest = load_weights(EMBEDDED_WEIGHTS).weights_digest
    assert load_weights(EMBEDDED_WEIGHTS, digest).weights_digest == digest


def test_the_shipped_files_belong_together() -> None:
    weights = load_weights(EMBEDDED_WEIGHTS)
    receipt = json.loads((EMBEDDED_WEIGHTS.parent / "training_receipt.json").read_text(encoding="utf-8"))
    assert weights.config == embedded_v1_config()
    assert receipt["weights_sha256"] == weights.weights_digest
    assert receipt["tokenizer_sha256"] == weights.tokenizer_digest == load_tokenizer(EMBEDDED_TOKENIZER).digest
    assert sum(path.stat().st_size for path in EMBEDDED_WEIGHTS.parent.iterdir()) <= 12_000_000


def test_the_memory_digest_follows_table_and_multipliers(good: tuple[dict[str, Tensor], dict[str, str]]) -> None:
    tensors, metadata = good

    def digest_of(changed: dict[str, Tensor], config: ModelConfig) -> tuple[str, str]:
        content = safetensors.torch.save(changed, metadata=metadata | {"config": config.model_dump_json()})
        parsed = parse_weights(content, "x")
        return parsed.ngram_memory_digest, parsed.weights_digest

    config = embedded_v1_config()
    plain = digest_of(tensors, config)
    other_head = digest_of(tensors | {"final_norm": tensors["final_norm"] * 2}, config)
    other_table = digest_of(tensors | {"memory.table": tensors["memory.table"] * 2}, config)
    shifted = config.model_copy(update={"memory": config.memory.model_copy(update={"hash_shift": 16})})
    other_hash = digest_of(tensors, shifted)
    assert plain[0] == other_head[0]
    assert plain[1] != other_head[1]
    assert len({plain[0], other_table[0], other_hash[0]}) == 3


def test_random_weights_follow_their_seed_and_the_layout() -> None:
    config = embedded_v1_config()
    first, again, other = random_weights(config, 1), random_weights(config, 1), random_weights(config, 2)
    assert first.weights_digest == again.weights_digest != other.weights_digest
    assert first.tensors.keys() == expected_tensors(config).keys()
