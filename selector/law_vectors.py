"""Files of vectors: rows of logits with their law in real arithmetic, from a program that is not this one.

A file is held against itself first (its counts must sum to the grid), then a law against the file: ids, order and total
exactly; a count may differ by one only where its real value lies so near to an integer that the proved error of the
fixed point can reach across, and the first count takes what the others left.
Must never excuse a count that the error bound does not. Source: DESIGN section 3, "Counts are bit-identical".
"""

from __future__ import annotations

import string
from typing import Annotated, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selector.draft_law import GRID, DraftCounts, InvalidRow
from selector.law_ids import EXACT_LAW_ID

__all__ = ["COUNT_ERROR", "LawVectors", "VectorCase", "case_difference", "read_vectors"]

COUNT_ERROR: Final = 2.0**-6
"""Before the floor a count is within this of its real value (selector.draft_law.counts_of_rows)."""
_HEX_DIGITS: Final = 8

Count = Annotated[int, Field(ge=0, le=GRID)]


class VectorCase(BaseModel):
    """One row. logits_f32_hex: eight hexadecimal digits a logit, most significant byte first.

    Valid rows: ids in order of law, floor_counts = floor(2^24 p), remainder = what is missing to 2^24,
    distance_to_integer = |2^24 p - nearest integer|. Invalid rows have `invalid` alone.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    logits_f32_hex: Annotated[str, Field(min_length=_HEX_DIGITS)]
    invalid: bool = False
    ids: tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...] = ()
    floor_counts: tuple[Count, ...] = ()
    remainder: Count = 0
    distance_to_integer: tuple[Annotated[float, Field(ge=0.0, le=0.5)], ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.logits_f32_hex) % _HEX_DIGITS or set(self.logits_f32_hex) - set(string.hexdigits):
            raise ValueError(f"case {self.name}: logits_f32_hex must be eight hexadecimal digits a logit")
        if self.invalid:
            if self.ids or self.floor_counts or self.distance_to_integer or self.remainder:
                raise ValueError(f"case {self.name} is invalid and must have no ids, counts, remainder or distances")
            return self
        lengths = {len(self.ids), len(self.floor_counts), len(self.distance_to_integer)}
        if lengths == {0} or len(lengths) != 1:
            raise ValueError(f"case {self.name}: ids, floor_counts and distance_to_integer must be of one length >= 1")
        return self

    def logits(self) -> NDArray[np.float32]:
        """Return the row, float32 (n,)."""
        return np.frombuffer(bytes.fromhex(self.logits_f32_hex), dtype=">f4").astype(np.float32)


class LawVectors(BaseModel):
    """A whole file. law: the id of the law that every case follows; grid: 2^24; about: free words."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    law: str
    grid: int
    about: str = ""
    cases: Annotated[tuple[VectorCase, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _of_this_law(self) -> Self:
        if self.law != EXACT_LAW_ID:
            raise ValueError(f"law is {self.law!r}, this check knows {EXACT_LAW_ID}")
        if self.grid != GRID:
            raise ValueError(f"grid is {self.grid}, must be {GRID}")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise ValueError("two cases have one name")
        return self


def read_vectors(text: str | bytes) -> LawVectors:
    """Return the vectors of a file's JSON text.

    Raises ValueError with one sentence that says where the text departs from the format.
    """
    try:
        return LawVectors.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{place}: {message}" if place else message) from error


def case_difference(case: VectorCase, law: DraftCounts | InvalidRow) -> str | None:
    """Return the first way in which a law departs from a case, or in which the case departs from itself, else None."""
    if case.invalid or isinstance(law, InvalidRow):
        if case.invalid == isinstance(law, InvalidRow):
            return None
        return (
            "the file has an invalid row, the law is valid"
            if case.invalid
            else "the row is invalid, the file has a law"
        )
    total = sum(case.floor_counts) + case.remainder
    if total != GRID:
        return f"the file's floor_counts and remainder sum to {total}, must be {GRID}" + _nearest_count(case, law)
    ids = law.token_ids.tolist()
    if ids != list(case.ids):
        place = next((i for i, pair in enumerate(zip(ids, case.ids, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            return f"the law has {len(ids)} candidates, the file {len(case.ids)}"
        return f"candidate {place} is token {ids[place]}, the file has {case.ids[place]}"
    counts = law.counts.tolist()
    if sum(counts) != GRID:
        return f"counts sum to {sum(counts)}, must be {GRID}"
    moved = 0
    for place in range(1, len(counts)):
        moved += counts[place] - case.floor_counts[place]
        if abs(counts[place] - case.floor_counts[place]) > _allowance(case, place):
            return _count_words(case, counts, place)
    # The first count is what the others leave, so an excused difference of another moves it as well.
    if counts[0] + moved != case.floor_counts[0] + case.remainder:
        return _count_words(case, counts, 0)
    return None


def _allowance(case: VectorCase, place: int) -> int:
    return 1 if case.distance_to_integer[place] <= COUNT_ERROR else 0


def _count_words(case: VectorCase, counts: list[int], place: int) -> str:
    expected = case.floor_counts[place] + (0 if place else case.remainder)
    return f"count {place} (token {case.ids[place]}) is {counts[place]}, the file has {expected}"


def _nearest_count(case: VectorCase, law: DraftCounts) -> str:
    # The sum alone does not tell which count was changed; the law does when it has the same candidates.
    counts = law.counts.tolist()
    if law.token_ids.tolist() == list(case.ids):
        for place in range(1, len(counts)):
            if abs(counts[place] - case.floor_counts[place]) > _allowance(case, place):
                return f"; {_count_words(case, counts, place)}"
    return ""
