"""Names of draft laws: what a law id says, which ids exist, and that one is never taken for another.

A law id names everything that changes a count: where candidates come from, temperature, number grid and rounding. Two
ids are two laws, however alike their drafts look.
Must never guess a law from a part of its id. Source: DESIGN section 3, "Sampled Markov drafts".
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

__all__ = [
    "EXACT_LAW_ID",
    "GREEDY_LAW_ID",
    "GRID_BITS_RANGE",
    "WIDTH_RANGE",
    "DraftLaw",
    "LawFamily",
    "law_number",
    "law_of_id",
    "pruned_law_id",
]

EXACT_LAW_ID: Final = "top32/tau0.7/dyadic24-floor-first-v1"
"""The plan's law: the 32 greatest of the full sum, one exchange a depth."""
GREEDY_LAW_ID: Final = "greedy/one-hot-v1"
"""Arm A: the whole grid on the greatest logit."""
WIDTH_RANGE: Final = range(1, 65)
GRID_BITS_RANGE: Final = range(17)

_PRUNED = re.compile(r"pruned([1-9][0-9]*)-grid(0|[1-9][0-9]*)/" + re.escape(EXACT_LAW_ID))


class LawFamily(StrEnum):
    """How the candidates of a depth are found."""

    GREEDY = "greedy"
    EXACT = "exact"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """A law id taken apart. width: candidates a shard and depth (M), grid_bits: logits are multiples of 2^-grid_bits;
    both 0 unless the family is pruned."""

    law_id: str
    family: LawFamily
    width: int = 0
    grid_bits: int = 0


def pruned_law_id(width: int, grid_bits: int) -> str:
    """Return the id of the pruned law with M = width candidates a shard, on logits rounded to 2^-grid_bits.

    width: 1 .. 64; grid_bits: 0 .. 16. Raises ValueError for a value out of range. Source: DESIGN section 3.
    """
    if width not in WIDTH_RANGE or grid_bits not in GRID_BITS_RANGE:
        raise ValueError(f"width is {width} and grid_bits {grid_bits}, must be in 1 .. 64 and 0 .. 16")
    return f"pruned{width}-grid{grid_bits}/{EXACT_LAW_ID}"


def law_of_id(law_id: str) -> DraftLaw:
    """Return the law that an id names. Raises ValueError, with the ids that exist, for any other text."""
    if law_id == EXACT_LAW_ID:
        return DraftLaw(law_id, LawFamily.EXACT)
    if law_id == GREEDY_LAW_ID:
        return DraftLaw(law_id, LawFamily.GREEDY)
    matched = _PRUNED.fullmatch(law_id)
    if matched:
        width, grid_bits = (int(digits) for digits in matched.groups())
        if width in WIDTH_RANGE and grid_bits in GRID_BITS_RANGE:
            return DraftLaw(law_id, LawFamily.PRUNED, width, grid_bits)
    raise ValueError(
        f"{law_id!r} names no draft law; there are {EXACT_LAW_ID}, {GREEDY_LAW_ID} and "
        f"pruned<M>-grid<G>/{EXACT_LAW_ID} with M in 1 .. 64 and G in 0 .. 16"
    )


@lru_cache(maxsize=64)
def law_number(law_id: str) -> int:
    """Return the unsigned 64-bit number that stands for a law id in frames, bindings and digests."""
    return int.from_bytes(hashlib.blake2b(law_id.encode(), digest_size=8).digest(), "little")
