"""What is needed to compile one kernel ahead of time, and what it may cost.

A kernel lists its specialisations here once; the compiler table, the tests and the GPU script all read that list.
Must never import torch or start a device. Source: DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KernelSpec"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One specialisation of a kernel.

    name: unique, shown in tables. kernel: the jitted function. signature: every argument that is not a constant to its
    Triton type ("*fp32", "i64", ...); constants: every constexpr argument to its value. warps, stages: as it is
    launched. aligned: names of pointers (and integers) that are launched with values divisible by 16.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    warps: int
    stages: int
    aligned: tuple[str, ...]
