"""Both shards in two threads of one process, and plain decoding of one row at a time: the reference.

What speculation emits at temperature 0 must equal `plain_decode`, token for token. Must never draft.
Source: DESIGN sections 3 (T0) and 4 (row invariance).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ranks.collective import CollectiveError
from ranks.shard_engine import ShardEngine
from ranks.thread_collective import thread_pair
from ranks.weights import LoadedWeights

__all__ = ["ReferencePair", "greedy_token", "plain_decode"]

Answer = TypeVar("Answer")
Choice = Callable[[NDArray[np.float32], int], int]


class ReferencePair:
    """Two `ShardEngine`s that always act together; close it, or use it as a context manager."""

    def __init__(self, weights: LoadedWeights, slot_count: int, timeout_s: float = 60.0) -> None:
        self._collectives = thread_pair(timeout_s)
        self.engines = tuple(
            ShardEngine(weights.config, weights, rank, collective, slot_count)
            for rank, collective in enumerate(self._collectives)
        )
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="rank")

    def both(self, action: Callable[[ShardEngine], Answer]) -> tuple[Answer, Answer]:
        """Run `action` on both shards at once and return both answers; the first real failure is raised."""
        futures = [self._threads.submit(self._guarded, rank, action) for rank in (0, 1)]
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda found: isinstance(found, CollectiveError)):
            raise failure
        return futures[0].result(), futures[1].result()

    def _guarded(self, rank: int, action: Callable[[ShardEngine], Answer]) -> Answer:
        try:
            return action(self.engines[rank])
        except BaseException:
            self._collectives[rank].abort()
            raise

    def clear(self, slot: int, first_position: int = 0) -> None:
        """Empty a slot on both shards."""
        self.both(lambda engine: engine.clear(slot, first_position))

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens to a slot on both shards."""
        self.both(lambda engine: engine.prefill(slot, token_ids))

    def commit(self, slot: int, kept_rows: int) -> None:
        """Keep the first rows of the slot's last verify on both shards."""
        self.both(lambda engine: engine.commit(slot, kept_rows))

    def state_digests(self, slot: int) -> tuple[int, int]:
        """Return both shards' digests of a slot's state."""
        return self.both(lambda engine: engine.state_digest(slot))

    def verify(self, slots: Sequence[int], token_rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return whole target logits fp32 [B, rows, V] of one verify forward."""
        return np.concatenate(self.both(lambda engine: engine.verify_forward(slots, token_rows)), axis=-1)

    def draft(self, slots: Sequence[int], anchor_token_ids: Sequence[int], depth: int) -> NDArray[np.float32]:
        """Return whole draft logits without bias, fp32 [B, depth, V]."""
        return np.concatenate(self.both(lambda engine: engine.draft_base(slots, anchor_token_ids, depth)), axis=-1)

    def close(self) -> None:
        """End both threads."""
        self._threads.shutdown(wait=True)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def greedy_token(logits: NDArray[np.float32], position: int) -> int:
    """Return the lowest id among the greatest logits fp32 [V]; `position` is not used at temperature 0."""
    del position
    return int(np.argmax(logits))


def plain_decode(
    pair: ReferencePair,
    slot: int,
    prompt_token_ids: Sequence[int],
    count: int,
    choose: Choice = greedy_token,
    stop_token_ids: Sequence[int] = (),
) -> list[int]:
    """Return up to `count` tokens after the prompt, one row a forward; stops after a stop token, which it keeps.

    `choose(logits fp32 [V], position)` names the token for `position` (counted from the slot's first token).
    The slot is cleared first and afterwards holds the prompt and all but the last token.
    """
    *before, anchor = prompt_token_ids
    pair.clear(slot)
    if before:
        pair.prefill(slot, before)
    emitted: list[int] = []
    while len(emitted) < count and (not emitted or emitted[-1] not in stop_token_ids):
        logits = pair.verify([slot], np.array([[anchor]], dtype=np.int64))[0, 0]
        pair.commit(slot, 1)
        anchor = choose(logits, len(prompt_token_ids) + len(emitted))
        emitted.append(anchor)
    return emitted
