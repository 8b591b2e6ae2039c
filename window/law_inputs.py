"""The registered inputs of a law check: frozen public prefixes, both arms.

Must never hold text: prefixes are token ids. Source: DESIGN section 3; README, `specbed ranks law`.
"""

from __future__ import annotations

from pathlib import Path

from ranks.doctor import gather_machine_facts
from ranks.errors import BAD_DATA, UNAVAILABLE, UserError
from ranks.law_run import LawRequest
from ranks.profiles import profile_named, why_not
from ranks.records import DraftMode
from ranks.tokenizer import TokenizerError, load_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER, EMBEDDED_WEIGHTS, WeightsError, load_weights
from window.public_sources import PublicPrompts
from window.public_text import Family

__all__ = ["law_request"]

_PREFIX_TOKENS = 96
_PREFIXES_A_FAMILY = 2


def law_request(profile: str, weights_path: Path | None, depth: int, samples: int, seed: int) -> LawRequest:
    """Return the check of both arms on two frozen prefixes a family. Raises UserError before anything starts."""
    reason = why_not(profile_named(profile), gather_machine_facts())
    if reason is not None:
        raise UserError(f"profile {profile} cannot run here: {reason}", UNAVAILABLE)
    path = weights_path or EMBEDDED_WEIGHTS
    try:
        load_weights(path)
        prompts = PublicPrompts(load_tokenizer(EMBEDDED_TOKENIZER))
    except (WeightsError, TokenizerError) as error:
        raise UserError(str(error), BAD_DATA) from error
    prefixes = {
        f"{family}-{index}": tuple(prompts.prompt(family, _PREFIX_TOKENS, index).token_ids)
        for family in Family
        for index in range(_PREFIXES_A_FAMILY)
    }
    return LawRequest(profile, path, depth, (DraftMode.GREEDY, DraftMode.SAMPLED), prefixes, samples, seed)
