"""The one registry of verify cases that the tests, the benchmark and the device script read.

Small cases hold what can go wrong (masks, poison, ties, proofs of failure, ragged depths); shaped cases are of the size
that is timed. Drafts are drawn from their law, as a real round's are.
Must never depend on a device. Source: DESIGN section 3, "Acceptance".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from selector.draft_law import GRID, DraftCounts, InvalidRow, draft_law, draw_token
from selector.kernels.verify_reference import VerifyCase
from selector.kernels.verify_round import CANDIDATES, VerifyRound
from selector.philox import Purpose, draw24, draw_words

__all__ = ["SMALL_CASES", "in_bfloat16", "random_case", "round_on", "shaped_case"]

MASKED = np.float32(-np.inf)


def random_case(
    name: str, batch: int, depth: int, vocabulary: int, cut: int, seed: int, closeness: float = 0.7
) -> VerifyCase:
    """Return a case whose draft law is near the target law (closeness 0 .. 1), all drafts usable, temperature 1."""
    rng = np.random.default_rng(seed)
    rows = batch * (depth + 1)
    logits = rng.normal(scale=3, size=(rows, vocabulary)).astype(np.float32)
    noise = rng.normal(scale=3, size=logits.shape)
    near = (np.float32(0.7) * (closeness * logits + (1 - closeness) * noise)).astype(np.float32)
    case = VerifyCase(
        name=name,
        depth=depth,
        logits=logits,
        cut=cut,
        drafted=np.full((batch, depth), -1, dtype=np.int32),
        usable_depth=np.full(batch, depth, dtype=np.int32),
        temperature=np.ones(batch, dtype=np.int32),
        ids=np.full((rows, CANDIDATES), -1, dtype=np.int32),
        counts=np.zeros((rows, CANDIDATES), dtype=np.int64),
        number=np.zeros(rows, dtype=np.int32),
        seed=tuple(int(value) for value in rng.integers(0, 1 << 64, size=batch, dtype=np.uint64)),
        request=tuple(int(value) for value in rng.integers(0, 1 << 64, size=batch, dtype=np.uint64)),
        position=tuple(int(value) for value in rng.integers(0, 1 << 20, size=batch)),
    )
    for row in range(rows):
        if row % (depth + 1) < depth:
            set_law(case, row, draft_law(near[row]))
    return case


def set_law(case: VerifyCase, row: int, law: DraftCounts | InvalidRow) -> None:
    """Give a row that law and the draft that its recorded draw picks. Raises ValueError for an invalid row."""
    if isinstance(law, InvalidRow):
        raise ValueError(f"row {row} of case {case.name} has no draft law: {law.reason}")
    request, place = divmod(row, case.depth + 1)
    number = len(law.token_ids)
    case.ids[row], case.counts[row], case.number[row] = -1, 0, number
    case.ids[row, :number], case.counts[row, :number] = law.token_ids, law.counts
    words = draw_words(case.seed[request], case.request[request], case.position[request] + place, Purpose.PROPOSAL)
    case.drafted[request, place] = draw_token(law, draw24(words))


def shaped_case(batch: int, depth: int, vocabulary: int, seed: int = 4103) -> VerifyCase:
    """Return a case of a timed size, halved over two shards."""
    return random_case(f"B{batch}-depth{depth}-V{vocabulary}", batch, depth, vocabulary, vocabulary // 2, seed)


def in_bfloat16(case: VerifyCase) -> VerifyCase:
    """Return the case with logits rounded to bfloat16."""
    rounded = torch.from_numpy(case.logits).to(torch.bfloat16).to(torch.float32).numpy()
    return replace(case, name=f"{case.name}-bf16", logits=rounded)


def round_on(case: VerifyCase, device: torch.device | str) -> VerifyRound:
    """Return the case's drafts, laws and names on a device."""

    def moved(values: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values.copy()).to(device)

    def named(values: tuple[int, ...]) -> torch.Tensor:
        return moved(np.array(values, dtype=np.uint64).view(np.int64))

    return VerifyRound(
        depth=case.depth,
        drafted=moved(case.drafted),
        usable_depth=moved(case.usable_depth),
        temperature=moved(case.temperature),
        ids=moved(case.ids),
        counts=moved(case.counts),
        number=moved(case.number),
        seed=named(case.seed),
        request=named(case.request),
        position=named(case.position),
    )


def _ties() -> VerifyCase:
    case = random_case("ties and both zeros", 2, 2, 130, 41, 1)
    case.logits[:] = np.float32(-1.0)
    case.logits[:, ::7] = np.float32(0.0)
    case.logits[:, 1::7] = np.float32(-0.0)
    case.logits[3:, 40:43] = np.float32(2.5)
    case.temperature[1] = 0
    return case


def _masked() -> VerifyCase:
    case = random_case("masks, a masked draft and a shard without any", 2, 2, 171, 80, 2)
    case.logits[np.random.default_rng(2).random(case.logits.shape) < 0.8] = MASKED
    case.logits[1, :80] = MASKED
    case.logits[1, 160] = np.float32(1.0)
    case.logits[2, 80:] = MASKED
    case.logits[2, 3] = np.float32(1e-41)
    case.logits[5, :] = MASKED
    case.logits[5, 170] = np.float32(-3e38)
    # The draft of row 3 is masked in the target: p = 0 is never accepted.
    case.logits[3, case.drafted[1, 0]] = MASKED
    return case


def _poisoned() -> VerifyCase:
    case = random_case("poison in either shard, at every row", 4, 2, 64, 32, 3, closeness=1.0)
    case.logits[0, 60] = np.float32(-np.nan)
    case.logits[4, 3] = np.float32(np.inf)
    case.logits[6] = MASKED
    case.logits[7, 63] = np.float32(np.nan)
    case.logits[10, :32] = np.float32(-np.inf)
    case.logits[11] = np.float32(np.nan)
    case.logits[11, 31] = np.float32(np.inf)
    case.temperature[2] = 0
    return case


def _ragged() -> VerifyCase:
    case = random_case("every usable depth, greedy beside sampled", 6, 2, 60, 35, 4, closeness=1.0)
    case.usable_depth[:] = (0, 1, 2, 1, 2, 2)
    case.temperature[3:] = 0
    for request in range(3, 6):
        # Greedy drafts: the argmax up to a row that differs by request, then the worst token.
        for place in range(2):
            row = request * 3 + place
            best = int(np.argmax(case.logits[row])) if place < request - 3 else int(np.argmin(case.logits[row]))
            case.drafted[request, place] = best
            case.ids[row], case.counts[row], case.number[row] = -1, 0, 1
            case.ids[row, 0], case.counts[row, 0] = best, GRID
    return case


def _equal_laws() -> VerifyCase:
    case = random_case("p equal to q", 3, 2, 16, 8, 5)
    case.logits[:] = MASKED
    case.logits[:, (1, 5, 9, 14)] = np.float32(0.25)
    even = DraftCounts(np.array([1, 5, 9, 14], dtype=np.int32), np.full(4, GRID // 4, dtype=np.int64))
    for row in range(9):
        if row % 3 < 2:
            set_law(case, row, even)
    return case


def _proofs() -> VerifyCase:
    case = random_case("count 0, a draft outside its law, and a missing law", 4, 2, 60, 33, 6, closeness=1.0)
    case.counts[1, 0] += case.counts[1, 5]
    case.counts[1, 5] = 0
    case.drafted[0, 1] = case.ids[1, 5]
    case.drafted[1, 0] = next(token for token in range(60) if token not in case.ids[3])
    case.number[2 * 3 + 1] = 0
    # Behind the usable depth a count of 0 proves nothing.
    case.usable_depth[3] = 1
    case.drafted[3, 1] = next(token for token in range(60) if token not in case.ids[10])
    return case


def _unfit() -> VerifyCase:
    case = random_case("a depth, a temperature and a draft that fit no round", 5, 1, 40, 21, 7, closeness=1.0)
    case.usable_depth[:2] = (2, -1)
    case.temperature[2] = 2
    case.ids[6, 0] = case.drafted[3, 0] = 40
    return case


def _far_apart() -> VerifyCase:
    case = random_case("one shard below the exponential's end, great and tiny logits", 2, 2, 80, 40, 8)
    case.logits[0, :40] -= np.float32(900)
    case.logits[1] *= np.float32(1e4)
    case.logits[2] *= np.float32(1e-40)
    case.logits[3] += np.float32(3e5)
    case.logits[4] = np.float32(-3e38)
    case.logits[5, 79] = np.float32(3e38)
    return case


def _depth(depth: int, seed: int) -> Callable[[], VerifyCase]:
    def made() -> VerifyCase:
        return random_case(f"depth {depth}", 1, depth, 51 + depth, 20 + 2 * depth, seed, closeness=0.95)

    return made


SMALL_CASES: Final[tuple[Callable[[], VerifyCase], ...]] = (
    _ties,
    _masked,
    _poisoned,
    _ragged,
    _equal_laws,
    _proofs,
    _unfit,
    _far_apart,
    # Seeds under which all drafts of a round stand.
    *(_depth(depth, seed) for depth, seed in enumerate((100, 101, 102, 103, 104, 105, 106, 107, 258))),
    lambda: random_case("a shard of one column", 1, 1, 2, 1, 9),
    lambda: random_case("odd width with several blocks", 1, 2, 333, 131, 10),
)
"""Every small case, built when it is called, so that no test can change another's."""
