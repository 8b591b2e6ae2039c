"""A request while it is served: committed tokens, slot, attempt. Pure, mutable, owned by the driver core.

Must never hold tokens that are not in the commit log, prompt apart. Source: DESIGN section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ranks.binding import EMPTY_PREFIX, extend_prefix
from ranks.records import DraftMode, RequestSpec
from selector.philox import request_key

__all__ = ["ActiveRequest"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request in the driver; `token_ids` is prompt plus released tokens."""

    spec: RequestSpec
    request: int
    seed: int
    temperature: int
    draft_mode: DraftMode
    depth: int
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    prompt_count: int
    token_ids: list[int]
    prefix_digest: int
    held_prefix: int | None
    slot: int | None = None
    generation: int = 0
    attempt: int = 0
    ended: bool = False
    epochs: set[int] = field(default_factory=set)

    @classmethod
    def from_spec(cls, spec: RequestSpec, draft_mode: DraftMode, depth: int) -> ActiveRequest:
        """Return the serving state of a registered request. The prompt must hold at least one token."""
        return cls(
            spec=spec,
            request=request_key(spec.request_digest, spec.sample_index),
            seed=spec.seed,
            temperature=spec.temperature,
            draft_mode=draft_mode,
            depth=depth,
            max_new_tokens=spec.max_new_tokens,
            stop_token_ids=spec.stop_token_ids,
            prompt_count=len(spec.prompt_token_ids),
            token_ids=list(spec.prompt_token_ids),
            prefix_digest=extend_prefix(EMPTY_PREFIX, spec.prompt_token_ids),
            held_prefix=None,
        )

    @property
    def delivered_count(self) -> int:
        """Return how many tokens were released."""
        return len(self.token_ids) - self.prompt_count

    def deliverable(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Cut a round's tokens at the budget and behind the first stop token (which is delivered itself)."""
        left = self.max_new_tokens - self.delivered_count
        kept = token_ids[:left]
        for index, token_id in enumerate(kept):
            if token_id in self.stop_token_ids:
                return kept[: index + 1]
        return kept

    def extend(self, token_ids: tuple[int, ...]) -> None:
        """Append released tokens and move the prefix digest on."""
        self.token_ids.extend(token_ids)
        self.prefix_digest = extend_prefix(self.prefix_digest, token_ids)
