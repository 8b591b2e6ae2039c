"""Compare two rows of sampled ids as far as both were sampled, and not one id further.

What stands behind `num_sampled` is undefined padding: it may be equal by luck or poisoned on purpose,
and must never be read. Source: plan, "compare emitted tokens, not undefined padding past num_sampled".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RowComparison", "compare_sampled_rows"]


@dataclass(frozen=True, slots=True)
class RowComparison:
    """`compared` ids were read; `first_difference` is the index of the first unequal one or of a missing one."""

    equal: bool
    compared: int
    first_difference: int | None


def compare_sampled_rows(
    row_a: Sequence[int], num_sampled_a: int, row_b: Sequence[int], num_sampled_b: int
) -> RowComparison:
    """Return whether both rows sampled the same ids; unequal lengths differ at the shorter end.

    Raises ValueError when a row is shorter than its own count or a count is negative.
    """
    for name, row, count in (("A", row_a, num_sampled_a), ("B", row_b, num_sampled_b)):
        if not 0 <= count <= len(row):
            raise ValueError(f"row {name} has {len(row)} ids but claims {count} sampled ones")
    shorter = min(num_sampled_a, num_sampled_b)
    for index in range(shorter):
        if row_a[index] != row_b[index]:
            return RowComparison(False, index + 1, index)
    if num_sampled_a != num_sampled_b:
        return RowComparison(False, shorter, shorter)
    return RowComparison(True, shorter, None)
