"""What the benchmark found, as records: quartiles, ratios within samples, aims, and what was not measured and why.

Must never hold a number for something that did not run. Source: DESIGN section 9 (typed records, green gate).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from selector.compiled.bench_environment import BenchEnvironment
from selector.kernels.device_records import DeviceBench

__all__ = ["Aim", "AimOutcome", "BenchResult", "NotMeasured", "Quartiles", "ShapeTimes"]

MEASURED: Final = 0
NOT_IDENTICAL: Final = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Quartiles(_Record):
    """Lower quartile, median and upper quartile over the samples."""

    lower: float
    median: float
    upper: float


class ShapeTimes(_Record):
    """One shape. microseconds: a round of every contender; ratios: "a / b" to a's time over b's in the same sample."""

    name: str
    batch: int
    depth: int
    vocabulary: int
    shards: int
    samples: int
    microseconds: dict[str, Quartiles]
    ratios: dict[str, Quartiles]


class AimOutcome(StrEnum):
    """How an aim came out; not measured is neither."""

    MET = "met"
    NOT_MET = "not met"
    NOT_MEASURED = "not measured"


class Aim(_Record):
    """A stated aim beside the median ratio that was measured, None when it was not."""

    aim: str
    bound: float
    ratio: float | None
    outcome: AimOutcome


class NotMeasured(_Record):
    """A baseline without numbers, and why it has none."""

    name: str
    reason: str


class BenchResult(_Record):
    """The whole benchmark. difference: the first bit that differs from the reference, then no number is given."""

    difference: str | None
    environment: BenchEnvironment
    warm_up_seconds: float
    functions_built: int
    functions_loaded: int
    shapes: tuple[ShapeTimes, ...]
    aims: tuple[Aim, ...]
    not_measured: tuple[NotMeasured, ...]
    device: DeviceBench

    @property
    def gate_passed(self) -> bool:
        """Whether compiled code and reference agreed on every row that was to be timed."""
        return self.difference is None

    @property
    def exit_code(self) -> int:
        """0 when numbers were measured, whatever they are; 1 when a gate found a difference, here or on the device."""
        return MEASURED if self.gate_passed and self.device.difference is None else NOT_IDENTICAL
