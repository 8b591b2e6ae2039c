"""Settings for all tests: laws are searched without time limits, and no process may outlive the run.

Every process started below carries a mark in its environment, which its children inherit even
when they leave the process tree; whoever still carries it at the end was left behind.
"""

from __future__ import annotations

import contextlib
import os

# Kernels run in Triton's interpreter here; the choice is made when triton is first imported.
os.environ["TRITON_INTERPRET"] = "1"

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from ranks.ray_session import RaySession

MARK = "SPECBED_TEST_RUN"
LEAVE_SECONDS = 15.0

settings.register_profile(
    "specbed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
)
settings.load_profile("specbed")


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return living processes other than this one whose environment carries that mark."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_run() -> Iterator[None]:
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    yield
    give_up = time.monotonic() + LEAVE_SECONDS
    while (survivors := marked_processes(mark)) and time.monotonic() < give_up:
        time.sleep(0.2)
    described = [f"{process.pid} {process.info['name']}" for process in survivors]
    for process in survivors:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not described, f"processes left behind by the tests: {described}"


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RaySession]:
    """One private Ray cluster for every test that needs real ranks; it has room for two pairs at a time."""
    with RaySession(cpus=4) as session:
        yield session
