"""One private Ray cluster for one driver: started, reaped and removed by it.

Token authentication stays on with a token of its own that is never written to disk; the folder, the ports and
the object store are private to the session. Must never join or stop a cluster that it did not start, unless an
address was given. Source: notes of the field on Ray in CI; DESIGN section 4.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ranks.errors import CANNOT_WRITE, UNAVAILABLE, UserError
from ranks.process_identity import is_alive, process_start_ticks
from ranks.process_reaper import FOLDER_PREFIX

__all__ = ["RaySession"]

_OBJECT_STORE_BYTES = 78_643_200
_END_WAIT_S = 15.0
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}


class RaySession:
    """A running private cluster; use as a context manager, or call `stop`."""

    def __init__(self, cpus: int = 2, gpus: int = 0) -> None:
        """Start the cluster on loopback. Raises UserError when the folder or Ray itself does not come up."""
        try:
            self._folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp")
        except OSError as error:
            raise UserError(f"Ray needs a folder under /tmp and got none: {error}", CANNOT_WRITE) from error
        self._watched: dict[int, int] = {}
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "ranks.process_reaper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=str(Path(__file__).resolve().parent.parent),
            text=True,
        )
        self._tell(f"folder {self._folder}")
        os.environ.update(_ENVIRONMENT)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            self._init_ray(cpus, gpus)
        except (RuntimeError, OSError, ValueError) as error:
            self.stop()
            raise UserError(f"Ray did not start on this machine: {str(error).splitlines()[0]}", UNAVAILABLE) from error
        self.watch_children()

    def _init_ray(self, cpus: int, gpus: int) -> None:
        import ray

        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=self._folder,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )

    def watch_children(self) -> None:
        """Tell the reaper of every process that now descends from this one."""
        for child in psutil.Process().children(recursive=True):
            self.watch(child.pid)

    def watch(self, pid: int) -> None:
        """Tell the reaper of one process; unknown or ended ones are left out."""
        start_ticks = process_start_ticks(pid)
        if start_ticks is None or pid == self._reaper.pid or self._watched.get(pid) == start_ticks:
            return
        self._watched[pid] = start_ticks
        self._tell(f"watch {pid} {start_ticks}")

    def stop(self) -> list[int]:
        """Stop the cluster and return pids that were still alive after the wait (then killed); usually none."""
        import ray

        if ray.is_initialized():
            self.watch_children()
            ray.shutdown()
        survivors = self._await_end()
        for pid in survivors:
            psutil.Process(pid).kill()
        self._tell("done")
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._reaper.wait(timeout=_END_WAIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return survivors

    def _await_end(self) -> list[int]:
        deadline = time.monotonic() + _END_WAIT_S
        alive = list(self._watched)
        while alive and time.monotonic() < deadline:
            alive = [pid for pid in alive if is_alive(pid, self._watched[pid])]
            if alive:
                time.sleep(0.02)
        return alive

    def _tell(self, line: str) -> None:
        # A reaper that is gone can only matter when we die; stopping in order still ends everything ourselves.
        if self._reaper.stdin is not None and self._reaper.poll() is None:
            self._reaper.stdin.write(line + "\n")
            self._reaper.stdin.flush()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, whatever happened."""
        self.stop()
