"""Does a round on real ranks emit the law that it should? Exact cells from the engine, counts from the ranks.

For a few fixed prefixes and N registered seeds each, one round is run on the bed; the exact law of its outcome comes
from the same engine by teacher forcing in this process. A red is never rerun to green: the seeds are registered, so a
second run gives the same counts. Source: DESIGN section 3 "Acceptance".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranks.bed import Bed
from ranks.bed_records import ReleaseEvent
from ranks.records import DraftMode, RequestSpec
from ranks.reference_pair import ReferencePair
from ranks.round_outcome_law import NodeLaw, OutcomeLaw, outcome_law
from ranks.shard_engine import ShardEngine
from selector.draft_law import DraftCounts, InvalidRow, draft_law, one_hot
from selector.outcome_cells import Deviation, find_deviations, log_bound, pool_cells, smallest_caught_shift

__all__ = [
    "FALSE_ALARM",
    "LawFinding",
    "RoundSample",
    "check_prefix",
    "engine_nodes",
    "exact_outcome_law",
    "sample_on_bed",
]

FALSE_ALARM = 1e-6
_LEAST_EXPECTED = 8.0
_REST = "rest"
_IMPOSSIBLE = "impossible"

RoundSample = tuple[int, tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class LawFinding:
    """What one prefix showed. `caught_shift`: the worst cell's smallest shift that is caught with 99 %."""

    prefix: str
    samples: int
    unusable_rounds: int
    cells: int
    nodes: int
    rest_probability: float
    caught_shift: float
    deviations: tuple[Deviation, ...]

    @property
    def passed(self) -> bool:
        """Whether every round was usable and no cell broke its bound; no sample is no pass."""
        return self.samples > 0 and not self.unusable_rounds and not self.deviations


def exact_outcome_law(
    pair: ReferencePair,
    slot_count: int,
    prompt_token_ids: Sequence[int],
    draft_mode: DraftMode,
    depth: int,
    least: float,
) -> OutcomeLaw:
    """Return the exact law of the first round behind a prompt of at least two tokens.

    The first `slot_count` slots of `pair` are overwritten. `least`: see outcome_law.
    """
    return outcome_law(engine_nodes(pair, slot_count, prompt_token_ids, draft_mode, depth), depth, least)


def engine_nodes(
    pair: ReferencePair, slot_count: int, prompt_token_ids: Sequence[int], draft_mode: DraftMode, depth: int
) -> Callable[[list[tuple[int, ...]]], list[NodeLaw]]:
    """Return what evaluates drafted paths of one length behind a prompt: the engine's own p and counts.

    The first `slot_count` slots of `pair` are overwritten, now and in every call.
    """
    anchor = prompt_token_ids[-1]
    slots = list(range(slot_count))
    for slot in slots:
        pair.clear(slot)
        pair.prefill(slot, prompt_token_ids[:-1])
    base = pair.draft([0], [anchor], depth)[0]

    def law_behind(path: tuple[int, ...]) -> DraftCounts | None:
        if len(path) == depth:
            return None
        previous = path[-1] if path else anchor
        law = draft_law(_draft_row(pair, base[len(path)], previous))
        if isinstance(law, InvalidRow):
            raise ValueError(f"the draft row behind {len(path)} drafts is invalid: {law.reason}")
        return law if draft_mode is DraftMode.SAMPLED else one_hot(int(law.token_ids[0]))

    def evaluate(paths: list[tuple[int, ...]]) -> list[NodeLaw]:
        laws = {path[-1:]: law_behind(path) for path in paths}
        nodes = []
        for start in range(0, len(paths), slot_count):
            chunk = paths[start : start + slot_count]
            rows = np.array([(anchor, *path) for path in chunk], dtype=np.int64)
            logits = pair.verify(slots[: len(chunk)], rows)[:, -1]
            nodes += [NodeLaw(_softmax(row), laws[path[-1:]]) for row, path in zip(logits, chunk, strict=True)]
        return nodes

    return evaluate


def sample_on_bed(
    bed: Bed, prompt_token_ids: Sequence[int], name: str, samples: int, seed: int, batch_size: int
) -> list[RoundSample]:
    """Return (accepted, emitted tokens, usable) of one round each for `samples` registered sample indices."""
    found: dict[str, RoundSample] = {}

    def on_release(event: ReleaseEvent) -> None:
        usable = event.round.usable_depth == event.round.drafted
        found[event.request_id] = (event.round.accepted, event.round_token_ids, usable)

    specs = [
        RequestSpec(
            request_id=f"{name}/{index}",
            request_digest=hashlib.sha256(name.encode()).digest(),
            sample_index=index,
            seed=seed,
            prompt_token_ids=tuple(prompt_token_ids),
            max_new_tokens=1,
            temperature=1,
        )
        for index in range(samples)
    ]
    bed.prime(specs[0])
    for start in range(0, samples, batch_size):
        bed.run(specs[start : start + batch_size], on_release)
    return [found[spec.request_id] for spec in specs if spec.request_id in found]


def check_prefix(
    prefix: str,
    law: OutcomeLaw,
    sample: Callable[[], Sequence[RoundSample]],
    samples: int,
    configurations: int,
    largest_cells: int,
) -> LawFinding:
    """Return what `sample` shows against the exact law.

    `configurations` prefixes and arms share the false-alarm rate, `largest_cells` bounds the cells of each.
    Cells are pooled by their probabilities before a sample is drawn. Raises ValueError when there are more cells.
    """
    cells = pool_cells(law.probabilities, _LEAST_EXPECTED / samples)
    rest = max(0.0, 1.0 - sum(cells.values()))
    probabilities: dict[Hashable, float] = {_REST: rest, _IMPOSSIBLE: 0.0}
    probabilities.update(cells.items())
    if len(probabilities) > largest_cells:
        raise ValueError(f"{prefix} has {len(probabilities)} cells, more than the {largest_cells} that were registered")
    threshold = log_bound(FALSE_ALARM, configurations * largest_cells)
    rounds = sample()
    counts: Counter[Hashable] = Counter()
    for accepted, token_ids, _ in rounds:
        cell = law.cell_of(accepted, token_ids)
        counts[_IMPOSSIBLE if cell is None else cell if cell in cells else _REST] += 1
    deviations = find_deviations(probabilities, counts, len(rounds), threshold) if rounds else []
    caught = [smallest_caught_shift(share, samples, threshold) for share in probabilities.values()]
    return LawFinding(
        prefix=prefix,
        samples=len(rounds),
        unusable_rounds=sum(not usable for _, _, usable in rounds) + samples - len(rounds),
        cells=len(probabilities),
        nodes=law.nodes,
        rest_probability=rest,
        caught_shift=max(caught),
        deviations=tuple(deviations),
    )


def _draft_row(pair: ReferencePair, base_row: NDArray[np.float32], previous: int) -> NDArray[np.float32]:
    """Return the whole vocabulary's draft logits fp32 (V,) behind one previous token."""

    def half(engine: ShardEngine) -> NDArray[np.float32]:
        own = base_row[engine.first_token_id : engine.first_token_id + engine.shard_size]
        row: NDArray[np.float32] = engine.draft_logits(own[np.newaxis], [previous])[0]
        return row

    row: NDArray[np.float32] = np.concatenate(pair.both(half))
    return row


def _softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    values = row.astype(np.float64)
    weights = np.exp(values - values.max())
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities
