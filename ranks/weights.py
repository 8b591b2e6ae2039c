"""Reads a checkpoint of the embedded layout and says exactly what is wrong with a file that is not one.

Only safetensors is read; nothing in a file is ever executed. The configuration travels in the file's metadata.
Source: DESIGN sections 4 and 8; safetensors format: 8-byte header length, JSON header, raw tensors.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from ranks.model_config import ModelConfig
from ranks.tensor_layout import expected_tensors

__all__ = [
    "EMBEDDED_TOKENIZER",
    "EMBEDDED_WEIGHTS",
    "LoadedWeights",
    "WeightsError",
    "checkpoint_bytes",
    "load_weights",
    "parse_weights",
    "random_weights",
]

DATA_FOLDER = Path(__file__).parent / "data"
EMBEDDED_WEIGHTS = DATA_FOLDER / "embedded-v1.safetensors"
EMBEDDED_TOKENIZER = DATA_FOLDER / "tokenizer.json"
FP16_EXPONENT = 0x7C00


class WeightsError(ValueError):
    """A weights file that cannot be used; the message names the file, the fault and what would be right."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A whole checkpoint on the CPU in its stored types, with the digests that a rank attests.

    `weights_digest`: sha-256 hex of the file's bytes. `ngram_memory_digest`: sha-256 hex over the memory's
    configuration and table.
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    weights_digest: str
    ngram_memory_digest: str
    tokenizer_digest: str


def load_weights(path: Path, expected_sha256: str | None = None) -> LoadedWeights:
    """Read a weights file, and hold it to `expected_sha256` (hex) when one is given. Raises WeightsError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise WeightsError(f"{path}: cannot be read ({reason}); a safetensors file of this layout is needed") from error
    return parse_weights(content, str(path), expected_sha256)


def parse_weights(content: bytes, name: str, expected_sha256: str | None = None) -> LoadedWeights:
    """Return the checkpoint held in `content`; `name` is what messages call it. Raises WeightsError."""
    digest = hashlib.sha256(content).hexdigest()
    if expected_sha256 is not None and digest != expected_sha256:
        raise WeightsError(f"{name}: sha-256 is {digest}, but {expected_sha256} is registered")
    metadata = _metadata(content, name)
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise WeightsError(f"{name}: is truncated or not safetensors ({error}); copy the whole file again") from error
    config = _config(metadata, name)
    _check_tensors(tensors, config, name)
    return LoadedWeights(config, tensors, digest, _memory_digest(config, tensors), metadata["tokenizer_sha256"])


def checkpoint_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file whose bytes follow from its content alone (the package orders metadata at random)."""
    content = safetensors.torch.save(tensors, metadata=metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(metadata.items()))
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + content[end:]


def _metadata(content: bytes, name: str) -> dict[str, str]:
    """Return the metadata of a safetensors header, with the keys that this layout needs."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= len(content) - 8:
        raise WeightsError(f"{name}: has no safetensors header; a safetensors file of this layout is needed")
    try:
        header = json.loads(content[8 : 8 + length])
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WeightsError(f"{name}: its safetensors header is not JSON; copy the whole file again") from error
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    for key in ("config", "tokenizer_sha256"):
        if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
            raise WeightsError(f"{name}: has no '{key}' in its metadata; write it with this model's training script")
    return dict(metadata) if isinstance(metadata, dict) else {}


def _config(metadata: dict[str, str], name: str) -> ModelConfig:
    try:
        return ModelConfig.model_validate_json(metadata["config"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "config"
        raise WeightsError(
            f"{name}: metadata 'config' is wrong at '{place}' ({first['msg']}); a configuration of layout "
            "specbed-embedded-v1 is needed"
        ) from error


def _check_tensors(tensors: dict[str, Tensor], config: ModelConfig, name: str) -> None:
    """Hold every tensor to the layout's names, shapes, types and to finite values."""
    expected = expected_tensors(config)
    missing, surplus = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing:
        raise WeightsError(f"{name}: lacks tensor '{missing[0]}' ({len(missing)} missing of {len(expected)})")
    if surplus:
        raise WeightsError(f"{name}: holds tensor '{surplus[0]}', which this layout does not have")
    for tensor_name, (shape, dtype) in expected.items():
        tensor = tensors[tensor_name]
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{name}: tensor '{tensor_name}' has shape {tuple(tensor.shape)}; {shape} is needed")
        if tensor.dtype != dtype:
            raise WeightsError(f"{name}: tensor '{tensor_name}' is {tensor.dtype}; {dtype} is needed")
        if dtype == torch.float16 and not _all_finite(tensor):
            raise WeightsError(f"{name}: tensor '{tensor_name}' holds a NaN or an infinity; finite values are needed")


def _all_finite(tensor: Tensor) -> bool:
    """Return whether no fp16 value has an exponent of all ones (NaN or infinity)."""
    bits = tensor.view(torch.int16).numpy()
    return not bool(np.any((bits & FP16_EXPONENT) == FP16_EXPONENT))


def _memory_digest(config: ModelConfig, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(config.memory.model_dump_json().encode())
    digest.update(tensors["memory.table"].contiguous().numpy().tobytes())
    return digest.hexdigest()


def random_weights(config: ModelConfig, seed: int) -> LoadedWeights:
    """Return a checkpoint drawn from `seed`, for tests of the machinery: right in form, trained on nothing."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in expected_tensors(config).items():
        if dtype == torch.int8:
            tensors[name] = torch.randint(-48, 49, shape, generator=generator, dtype=torch.int8)
        elif name.endswith("norm"):
            tensors[name] = (1 + 0.1 * torch.randn(shape, generator=generator)).to(dtype)
        else:
            spread = 0.12 if name == "embedding" else shape[-1] ** -0.5
            tensors[name] = (torch.randn(shape, generator=generator) * spread).to(dtype)
    metadata = {"layout": config.layout, "config": config.model_dump_json(), "tokenizer_sha256": "none"}
    return parse_weights(checkpoint_bytes(tensors, metadata), f"random weights of seed {seed}")
