"""What the benchmark ran on: processor, cores, versions, load. Must never read the date; it is handed in.

Source: flashinfer-bench, stored environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = ["BenchEnvironment", "load_average", "read_environment"]

CPU_FACTS = Path("/proc/cpuinfo")


class BenchEnvironment(BaseModel):
    """Where and when numbers were measured. Load: the one-minute average, None where the system has none."""

    model_config = ConfigDict(frozen=True)

    date: str
    processor: str
    cores: int
    python: str
    packages: dict[str, str]
    torch_threads: int
    load_before: float | None
    load_after: float | None


def load_average() -> float | None:
    """Return the one-minute load average, None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _processor() -> str:
    try:
        lines = CPU_FACTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def read_environment(
    date: str, torch_threads: int, load_before: float | None, load_after: float | None
) -> BenchEnvironment:
    """Return this machine's facts beside the given date and loads."""
    return BenchEnvironment(
        date=date,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        packages={name: _version(name) for name in ("numpy", "torch", "numba", "triton", "flashinfer-python", "vllm")},
        torch_threads=torch_threads,
        load_before=load_before,
        load_after=load_after,
    )
