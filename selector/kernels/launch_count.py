"""The one place where a kernel is launched, and a log that says which kernels were.

A launch takes everything from its KernelSpec, so what is compiled ahead of time is what runs. A log is passed by
whoever wants to count; without one nothing is kept.
Must never synchronise, allocate or read a device tensor: a launch may be captured into a graph.
Source: DESIGN section 3; launches a round are counted, not declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selector.kernels.kernel_spec import KernelSpec

__all__ = ["LaunchLog", "launch"]


@dataclass(slots=True)
class LaunchLog:
    """Names of launched specialisations, in order."""

    names: list[str] = field(default_factory=list)

    def count(self, prefix: str = "") -> int:
        """Return how many launches had a name that starts with the prefix; all of them for an empty one."""
        return sum(name.startswith(prefix) for name in self.names)


def launch(spec: KernelSpec, grid: tuple[int, ...], arguments: Sequence[Any], log: LaunchLog | None = None) -> None:
    """Launch one specialisation once.

    grid: programs along one to three axes, each >= 1; arguments: those of spec.signature, in its order.
    Raises ValueError for another number of arguments. Source: DESIGN section 3.
    """
    if len(arguments) != len(spec.signature):
        raise ValueError(f"{spec.name} got {len(arguments)} arguments, needs {len(spec.signature)}")
    named = dict(zip(spec.signature, arguments, strict=True))
    # Fusing a multiplication with an addition would change the last bit of a weight.
    spec.kernel[grid](**named, **spec.constants, num_warps=spec.warps, num_stages=spec.stages, enable_fp_fusion=False)
    if log is not None:
        log.names.append(spec.name)
