"""Trains the embedded model: tokenizer, target, then drafter; writes weights, tokenizer and receipt.

Reads the development half of the public texts only; the frozen half gives the held-out loss and is never
trained on. Must never be imported by the packages.
Source: DESIGN section 4 (the engine); Muon for matrices, AdamW for the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from torch import Tensor
from torch.nn import functional

from ranks.model_config import ModelConfig, embedded_v1_config
from ranks.plain_model import plain_draft_hidden, plain_hidden, plain_logits, position_bias
from ranks.tensor_layout import expected_tensors
from ranks.tokenizer import ByteTokenizer, load_tokenizer, train_tokenizer
from ranks.weights import checkpoint_bytes
from window.public_sources import read_family
from window.public_text import FAMILY_RULES, SPLIT_RULE, Family, Split

LOG = logging.getLogger("train")
MARKOV_LIMIT = 127.0
HELD_OUT_BATCHES = 8
HEAD_CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train; all of it goes into the receipt."""

    seed: int
    target_steps: int
    drafter_steps: int
    batch: int
    length: int
    anchors: int
    matrix_rate: float
    other_rate: float
    autocast: bool


def initial_parameters(config: ModelConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Return fp32 parameters: ones for norms, zeros for residual outputs, scaled normals for the rest."""
    parameters = {}
    for name, (shape, _) in expected_tensors(config).items():
        if name.endswith("norm"):
            value = torch.ones(shape)
        elif name.endswith((".output", ".down", "markov.next")):
            value = torch.zeros(shape)
        elif name == "embedding":
            value = torch.randn(shape, generator=generator) * 0.02
        elif name in ("markov.previous", "memory.table", "drafter.depth_embedding"):
            value = torch.randn(shape, generator=generator) * 0.3
        else:
            value = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        parameters[name] = value
    return parameters


def optimisers(named: dict[str, Tensor], plan: Plan) -> list[torch.optim.Optimizer]:
    """Return Muon over the inner matrices and AdamW over embeddings, tables, norms and the Markov head."""
    looked_up = ("embedding", "memory.table", "drafter.depth_embedding", "markov.previous", "markov.next")
    matrices = [value for name, value in named.items() if value.ndim == 2 and name not in looked_up]
    others = [value for name, value in named.items() if value.ndim != 2 or name in looked_up]
    return [
        torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def set_rates(active: list[torch.optim.Optimizer], plan: Plan, step: int, steps: int) -> None:
    """Warm up over the first 3 percent, hold, then fall by a cosine to 3 percent over the last 70 percent."""
    warm = min(1.0, (step + 1) / (0.03 * steps))
    late = max(0.0, (step / steps - 0.3) / 0.7)
    factor = warm * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * late)))
    for optimiser, rate in zip(active, (plan.matrix_rate, plan.other_rate), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate * factor


class Batches:
    """Windows of a token stream, every token once an epoch, in an order drawn from the seed."""

    def __init__(self, stream: Tensor, plan: Plan, seed: int) -> None:
        self._stream, self._batch, self._length = stream, plan.batch, plan.length
        self._generator = torch.Generator().manual_seed(seed)
        self._starts: list[int] = []

    def _refill(self) -> None:
        shift = int(torch.randint(self._length, (1,), generator=self._generator))
        count = (len(self._stream) - shift - 1) // self._length
        order = torch.randperm(count, generator=self._generator)
        self._starts = (order * self._length + shift).tolist()

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return inputs and next tokens, int64 [batch, length] each."""
        if len(self._starts) < self._batch:
            self._refill()
        starts = [self._starts.pop() for _ in range(self._batch)]
        rows = torch.stack([self._stream[start : start + self._length + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]


def token_stream(tokenizer: ByteTokenizer, split: Split) -> Tensor:
    """Return int64 [N]: both families' sources of one split, each after an end token."""
    ids: list[int] = []
    for family in Family:
        for encoded in tokenizer.encode_batch([source.text for source in read_family(family, split)]):
            ids.append(tokenizer.end_token_id)
            ids += encoded
    return torch.tensor(ids, dtype=torch.int64)


def target_loss(named: dict[str, Tensor], config: ModelConfig, pair: tuple[Tensor, Tensor], bias: Tensor) -> Tensor:
    """Return mean cross-entropy in nats a token."""
    hidden = plain_hidden(named, config, pair[0], bias)
    logits = plain_logits(named, hidden).flatten(0, 1)
    return functional.cross_entropy(logits.float(), pair[1].flatten())


def target_gradients(named: dict[str, Tensor], config: ModelConfig, pair: tuple[Tensor, Tensor], bias: Tensor) -> float:
    """Add the gradients of `target_loss` to `named` and return it; the head goes in chunks that stay in cache."""
    hidden = plain_hidden(named, config, pair[0], bias).flatten(0, 1)
    tokens = pair[1].flatten()
    detached = hidden.detach().requires_grad_()
    total = 0.0
    for start in range(0, len(tokens), HEAD_CHUNK_ROWS):
        part = slice(start, start + HEAD_CHUNK_ROWS)
        logits = plain_logits(named, detached[part]).float()
        loss = functional.cross_entropy(logits, tokens[part], reduction="sum") / len(tokens)
        torch.autograd.backward(loss)
        total += float(loss.detach())
    torch.autograd.backward(hidden, detached.grad)
    return total


def held_out_loss(named: dict[str, Tensor], config: ModelConfig, stream: Tensor, plan: Plan, bias: Tensor) -> float:
    """Return the target's loss on fixed windows of `stream`, without gradient."""
    batches = Batches(stream, plan, seed=1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
        return sum(float(target_loss(named, config, batches.draw(), bias)) for _ in range(HELD_OUT_BATCHES)) / (
            HELD_OUT_BATCHES
        )


def train_target(named: dict[str, Tensor], config: ModelConfig, stream: Tensor, plan: Plan) -> float:
    """Train the target's tensors in place; return the mean loss of the last 50 steps."""
    batches, bias = Batches(stream, plan, plan.seed), position_bias(config, plan.length)
    active = optimisers(named, plan)
    recent: list[float] = []
    started = time.monotonic()
    for step in range(plan.target_steps):
        set_rates(active, plan, step, plan.target_steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
            loss = target_gradients(named, config, batches.draw(), bias)
        for optimiser in active:
            optimiser.step()
            optimiser.zero_grad()
        recent = [*recent[-49:], loss]
        report("target", step, plan.target_steps, recent, started)
    return sum(recent) / len(recent)


def report(stage: str, step: int, steps: int, recent: list[float], started: float) -> None:
    """Log progress every 25 steps with the time left."""
    if step % 25 == 0 or step == steps - 1:
        left = (time.monotonic() - started) / (step + 1) * (steps - step - 1)
        LOG.info("%s %d/%d loss %.4f, %.0f s left", stage, step + 1, steps, sum(recent) / len(recent), left)


def _rounded(values: Tensor) -> Tensor:
    """Return `values` on the int8 grid; gradients pass straight through."""
    limited = values.clamp(-MARKOV_LIMIT, MARKOV_LIMIT)
    return limited + (limited.round() - limited).detach()


def markov_bias(named: dict[str, Tensor], config: ModelConfig, previous: Tensor) -> Tensor:
    """Return the Markov bias [..., V] of previous token ids, from int8-rounded tables scaled to their bits."""
    unit = 2.0 ** (config.drafter.markov_scale_bits / 2)
    rows = functional.embedding(previous, _rounded(named["markov.previous"] * unit) / unit)
    bias: Tensor = rows @ (_rounded(named["markov.next"] * unit) / unit)
    return bias


def drafter_loss(
    named: dict[str, Tensor], config: ModelConfig, tokens: Tensor, bias: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (cross-entropy to the target's law over all depths, expected T=1 acceptance by depth fp32 [depth])."""
    depth = config.drafter.max_depth
    with torch.no_grad():
        hidden = plain_hidden(named, config, tokens, bias)
    batch = torch.arange(len(tokens))[:, None]
    ahead = anchors[..., None] + torch.arange(depth)
    with torch.no_grad():
        teacher = plain_logits(named, hidden[batch[..., None], ahead]).float().flatten(0, 1).softmax(-1)
    draft = plain_draft_hidden(
        named, config, hidden[batch, anchors - 1].flatten(0, 1), tokens[batch, anchors].flatten(), depth
    )
    logits = plain_logits(named, draft).float()
    logits = logits + markov_bias(named, config, tokens[batch[..., None], ahead].flatten(0, 1)).float()
    logs = logits.log_softmax(-1)
    with torch.no_grad():
        sharper = (logits / 0.7).softmax(-1)
        overlap = torch.minimum(sharper, teacher).sum(-1).mean(0)
    return -(teacher * logs).sum(-1).mean(), overlap


def train_drafter(named: dict[str, Tensor], config: ModelConfig, stream: Tensor, plan: Plan) -> list[float]:
    """Train the drafter's tensors in place; return the expected acceptance by depth of the last 50 steps."""
    batches, bias = Batches(stream, plan, plan.seed + 1), position_bias(config, plan.length)
    mine = {name: value for name, value in named.items() if name.startswith(("drafter.", "markov."))}
    active = optimisers(mine, plan)
    generator = torch.Generator().manual_seed(plan.seed + 2)
    recent: list[float] = []
    overlaps: list[Tensor] = []
    started = time.monotonic()
    for step in range(plan.drafter_steps):
        set_rates(active, plan, step, plan.drafter_steps)
        tokens, _ = batches.draw()
        last = plan.length - config.drafter.max_depth
        anchors = torch.randint(1, last, (plan.batch, plan.anchors), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
            loss, overlap = drafter_loss(named, config, tokens, bias, anchors)
        torch.autograd.backward(loss)
        for optimiser in active:
            optimiser.step()
            optimiser.zero_grad()
        recent, overlaps = [*recent[-49:], float(loss.detach())], [*overlaps[-49:], overlap]
        report("drafter", step, plan.drafter_steps, recent, started)
    return [float(value) for value in torch.stack(overlaps).mean(0)]


def stored_tensors(named: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return the parameters in their stored types; Markov tables become int8."""
    unit = 2.0 ** (config.drafter.markov_scale_bits / 2)
    stored = {}
    for name, (_, dtype) in expected_tensors(config).items():
        value = named[name].detach()
        if dtype == torch.int8:
            value = (value * unit).clamp(-MARKOV_LIMIT, MARKOV_LIMIT).round()
        stored[name] = value.to(dtype).contiguous()
    return stored


def receipt_of(plan: Plan, weights: Path, tokenizer: ByteTokenizer, figures: dict[str, object]) -> dict[str, object]:
    """Return what was trained, on what, with what: names and hashes of every source, never its text."""
    sources = {
        family.value: {source.name: source.sha256 for source in read_family(family, Split.DEVELOPMENT)}
        for family in Family
    }
    return {
        "weights": weights.name,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "tokenizer_sha256": tokenizer.digest,
        "python": platform.python_version(),
        "versions": {"torch": torch.__version__, "tokenizers": tokenizers.__version__},
        "plan": {name: getattr(plan, name) for name in Plan.__slots__},
        "split_rule": SPLIT_RULE,
        "family_rules": FAMILY_RULES,
        **figures,
        "sources": sources,
    }


def run(plan: Plan, output: Path, tokenizer_path: Path | None) -> None:
    """Train everything and write the three files into `output`."""
    torch.manual_seed(plan.seed)
    config = embedded_v1_config()
    if tokenizer_path is None:
        texts = (source.text for family in Family for source in read_family(family, Split.DEVELOPMENT))
        tokenizer = train_tokenizer(texts, config.vocabulary_size)
    else:
        tokenizer = load_tokenizer(tokenizer_path)
    output.mkdir(parents=True, exist_ok=True)
    (output / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    development, frozen = token_stream(tokenizer, Split.DEVELOPMENT), token_stream(tokenizer, Split.FROZEN)
    LOG.info("development %d tokens, frozen %d tokens", len(development), len(frozen))
    named = initial_parameters(config, torch.Generator().manual_seed(plan.seed))
    target = {name: value for name, value in named.items() if not name.startswith(("drafter.", "markov."))}
    for value in target.values():
        value.requires_grad_()
    development_loss = train_target(target, config, development, plan)
    frozen_loss = held_out_loss(target, config, frozen, plan, position_bias(config, plan.length))
    LOG.info("development loss %.4f, held-out loss on frozen text %.4f", development_loss, frozen_loss)
    weights = output / "embedded-v1.safetensors"
    metadata = {"layout": config.layout, "config": config.model_dump_json(), "tokenizer_sha256": tokenizer.digest}
    weights.write_bytes(checkpoint_bytes(stored_tensors(named, config), metadata))
    for name, value in named.items():
        value.requires_grad_(name not in target)
    overlap = train_drafter(named, config, development, plan)
    weights.write_bytes(checkpoint_bytes(stored_tensors(named, config), metadata))
    figures: dict[str, object] = {
        "development_tokens": len(development),
        "trained_tokens": plan.target_steps * plan.batch * plan.length,
        "development_loss_nats": development_loss,
        "held_out_frozen_loss_nats": frozen_loss,
        "expected_acceptance_by_depth": overlap,
    }
    receipt = json.dumps(receipt_of(plan, weights, tokenizer, figures), indent=1)
    (output / "training_receipt.json").write_text(receipt + "\n", encoding="utf-8")
    LOG.info("written to %s", output)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the embedded model on the standard library's own text.")
    parser.add_argument("--output", type=Path, default=Path("ranks/data"))
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer file instead of training one")
    parser.add_argument("--seed", type=int, default=4103)
    parser.add_argument("--target-steps", type=int, default=2000)
    parser.add_argument("--drafter-steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--anchors", type=int, default=48)
    parser.add_argument("--matrix-rate", type=float, default=8e-3)
    parser.add_argument("--other-rate", type=float, default=8e-3)
    parser.add_argument("--no-autocast", action="store_true", help="train in fp32")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(given.threads)
    plan = Plan(
        seed=given.seed,
        target_steps=given.target_steps,
        drafter_steps=given.drafter_steps,
        batch=given.batch,
        length=given.length,
        anchors=given.anchors,
        matrix_rate=given.matrix_rate,
        other_rate=given.other_rate,
        autocast=not given.no_autocast,
    )
    run(plan, given.output, given.tokenizer)


if __name__ == "__main__":
    main()
