"""A toy model of eight tokens: logits are a hash of the prefix, so plain decoding needs no engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ranks.records import RequestSpec

VOCABULARY = 8
HALF = VOCABULARY // 2

Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def hashed_logits(salt: str, spread: float) -> Logits:
    """Return a toy model: eight logits that depend on the whole prefix and on nothing else."""

    def logits(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        digest = hashlib.blake2b(repr((salt, prefix)).encode(), digest_size=2 * VOCABULARY).digest()
        raw = np.frombuffer(digest, "<u2").astype(np.float32) / np.float32(65536)
        return (raw * np.float32(spread)).astype(np.float32)

    return logits


def mixed_logits(first: Logits, second: Logits) -> Logits:
    """Return a drafter that resembles the target but is not it."""
    return lambda prefix: (first(prefix) + second(prefix)).astype(np.float32)


TARGET = hashed_logits("target", 6.0)
DRAFTER = mixed_logits(TARGET, hashed_logits("noise", 3.0))


def greedy_tokens(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return plain greedy decoding of the toy target, ties to the lower id."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(TARGET(tuple(tokens)))))
    return tuple(tokens[len(prompt) :])


def request(name: str, temperature: int = 0, count: int = 12, prompt: tuple[int, ...] = (1, 2, 3)) -> RequestSpec:
    """Return a registered request of the toy model."""
    digest = hashlib.sha256(name.encode()).digest()
    return RequestSpec(name, digest, 0, 4103, (*prompt, len(name) % VOCABULARY), count, temperature)
