"""Registered requests on the shipped model for tests that run real ranks."""

from __future__ import annotations

import hashlib
from functools import cache

from ranks.records import RequestSpec
from ranks.tokenizer import load_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER
from window.public_sources import PublicPrompts
from window.public_text import Family

PROMPT_COUNT = 12


@cache
def prompts(occupied_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Return twelve frozen prompts, six a public family, of exactly that many tokens."""
    source = PublicPrompts(load_tokenizer(EMBEDDED_TOKENIZER))
    cut = [source.prompt(family, occupied_tokens, index) for family in Family for index in range(PROMPT_COUNT // 2)]
    return tuple(tuple(prompt.token_ids) for prompt in cut)


def spec(
    index: int, temperature: int, new_tokens: int = 24, occupied_tokens: int = 96, time_budget_ns: int | None = None
) -> RequestSpec:
    """Return the request of one prompt."""
    return RequestSpec(
        request_id=f"prompt-{index}",
        request_digest=hashlib.sha256(f"prompt {index} of {occupied_tokens}".encode()).digest(),
        sample_index=0,
        seed=4103,
        prompt_token_ids=prompts(occupied_tokens)[index],
        max_new_tokens=new_tokens,
        temperature=temperature,
        time_budget_ns=time_budget_ns,
    )


def specs(temperature: int, new_tokens: int = 24) -> list[RequestSpec]:
    """Return the requests of all twelve prompts."""
    return [spec(index, temperature, new_tokens) for index in range(PROMPT_COUNT)]
