"""The contenders on a CUDA device, each built for one rank of a round: its own half, the peer's words given.

A rank of a pair selects in its own half and merges with what the peer sent; the exchange itself is not timed.
torch, FlashInfer and vLLM get the whole row, as a rank that had gathered it. They need no bit-identity: they have
another law. Must never put a stand-in under another name than what it is. Source: DESIGN section 3.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Contender", "ContenderMissing", "DeviceRound", "PreparedRound", "baselines", "device_round"]

TOP_K = 32
TEMPERATURE = 0.7
SPREAD = 2.5

Work = Callable[[], object]


class ContenderMissing(RuntimeError):
    """This contender can't run here; the text says why."""


@dataclass(frozen=True, slots=True)
class DeviceRound:
    """Logits of one round on a device, float32.

    whole: (depth, batch, vocabulary); halves: both parts, each (depth, batch, vocabulary / 2), contiguous;
    on_host: the same as `whole` for the reference.
    """

    batch: int
    depth: int
    vocabulary: int
    whole: torch.Tensor
    halves: tuple[torch.Tensor, ...]
    on_host: NDArray[np.float32]

    @property
    def width(self) -> int:
        """Logits of one half."""
        return self.vocabulary // 2


@dataclass(frozen=True, slots=True)
class PreparedRound:
    """One round, ready to run.

    run: launches it; difference: the first difference of what lies in its outputs from the reference, None when there
    is none; poison: fills its outputs, so that a word never written is a difference.
    """

    run: Work
    difference: Callable[[], str | None]
    poison: Work


@dataclass(frozen=True, slots=True)
class Contender:
    """name: as tables show it; prepare: builds it for a round, raises ContenderMissing with a reason."""

    name: str
    prepare: Callable[[DeviceRound], PreparedRound]


def device_round(batch: int, depth: int, vocabulary: int, seed: int, device: str) -> DeviceRound:
    """Return a round of normal logits of standard deviation 2.5. vocabulary: even; device: "cuda" or "cpu"."""
    generator = np.random.default_rng([seed, batch, depth, vocabulary])
    on_host = generator.standard_normal((depth, batch, vocabulary), dtype=np.float32) * np.float32(SPREAD)
    whole = torch.from_numpy(on_host).to(device)
    width = vocabulary // 2
    halves = (whole[..., :width].contiguous(), whole[..., width:].contiguous())
    return DeviceRound(batch, depth, vocabulary, whole, halves, on_host)


def _without_law(run: Work) -> PreparedRound:
    # Another law, and draws of its own: there is nothing to compare bit for bit.
    return PreparedRound(run, lambda: None, lambda: None)


def _nothing(_logits: DeviceRound) -> PreparedRound:
    return _without_law(lambda: None)


def _torch(logits: DeviceRound) -> PreparedRound:
    rows = list(logits.whole)

    def run() -> None:
        for part in rows:
            values, places = torch.topk(part, TOP_K)
            chances = torch.softmax(values / TEMPERATURE, dim=-1)
            places.gather(1, torch.multinomial(chances, 1))

    return _without_law(run)


def _flashinfer(logits: DeviceRound) -> PreparedRound:
    sampling = _module("flashinfer.sampling")
    rows = list(logits.whole)

    def run() -> None:
        for part in rows:
            sampling.top_k_sampling_from_probs(torch.softmax(part / TEMPERATURE, dim=-1), TOP_K)

    return _tried(run)


def _vllm(logits: DeviceRound) -> PreparedRound:
    sampler = _module("vllm.v1.sample.ops.topk_topp_sampler")
    rows = list(logits.whole)
    width = torch.full((logits.batch,), TOP_K, dtype=torch.int32, device=logits.whole.device)

    def run() -> None:
        for part in rows:
            # vLLM may write into the logits it is given; dividing makes the copy that it would make anyway.
            masked = sampler.apply_top_k_top_p(part / TEMPERATURE, width, None)
            sampler.random_sample(torch.softmax(masked, dim=-1, dtype=torch.float32), {})

    return _tried(run)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ContenderMissing(f"not installed ({error})") from error


def _tried(run: Work) -> PreparedRound:
    try:
        run()
        torch.cuda.synchronize()
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise ContenderMissing(f"it is installed and did not run: {error}") from error
    return _without_law(run)


def baselines() -> tuple[Contender, ...]:
    """Return what ours is measured against; the first tells what two events around nothing cost."""
    return (
        Contender("two events around nothing", _nothing),
        Contender("torch topk + softmax + multinomial, whole row", _torch),
        Contender("FlashInfer softmax + top_k_sampling_from_probs, whole row", _flashinfer),
        Contender("vLLM apply_top_k_top_p + random_sample, whole row", _vllm),
    )
