"""What was timed on a CUDA device, as plain records. Must never hold a number for something that did not run.

Source: DESIGN section 9 (typed records, stored environment).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceBench", "DeviceMissing", "DeviceTime"]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Microseconds of one round: median, lower and upper quartile over `samples` replays.

    mode: "eager" or "graph"; cache: "warm", or "cold" when the L2 cache was flushed before each replay.
    rounds are B requests, `depth` steps, `shards` parts of the vocabulary, both parts on this one device.
    """

    contender: str
    batch: int
    depth: int
    vocabulary: int
    shards: int
    mode: str
    cache: str
    samples: int
    lower: float
    median: float
    upper: float


@dataclass(frozen=True, slots=True)
class DeviceMissing:
    """A contender without numbers on the device, and why."""

    contender: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceBench:
    """All of a device. device: its name and versions, "" when there is none. read_gb_s: measured read bandwidth."""

    device: str
    read_gb_s: float | None
    difference: str | None
    times: tuple[DeviceTime, ...]
    missing: tuple[DeviceMissing, ...]
