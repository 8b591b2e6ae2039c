"""One private Ray cluster for one driver, started, reaped and removed by it; or a running cluster that it joins.

Token authentication stays on: a private cluster gets a token of its own that is never written to disk, a running
one keeps the token that the environment names. Must never stop a cluster that it did not start.
Source: DESIGN section 4; Ray's documentation of token authentication.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from ranks.errors import CANNOT_WRITE, UNAVAILABLE, UserError
from ranks.process_identity import is_alive, process_start_ticks
from ranks.process_reaper import FOLDER_PREFIX, reap

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
    """A running cluster; use as a context manager, or call `stop`. `host` is where ranks reach this driver."""

    def __init__(self, cpus: int = 2, gpus: int = 0, address: str | None = None) -> None:
        """Start a cluster on loopback, or join the one at `address`. Raises UserError when Ray does not come up."""
        self.host = "127.0.0.1"
        self._started = False
        self._roots: dict[int, int] = {}
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
        try:
            self._join(address) if address is not None else self._start_private(cpus, gpus)
        except KeyboardInterrupt:
            self.stop()
            raise
        except (RuntimeError, OSError, ValueError) as error:
            self.stop()
            place = f"at {address}" if address is not None else "on this machine"
            raise UserError(f"Ray did not start {place}: {str(error).splitlines()[0]}", UNAVAILABLE) from error
        self._started = True
        self.watch_children()

    def _start_private(self, cpus: int, gpus: int) -> None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray reads these variables once, when it is imported, and somebody may have imported it before us.
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        with _deaf_children():
            self._init(cpus, gpus)
        self._roots = self._own_children()

    def _init(self, cpus: int, gpus: int) -> None:
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

    def _join(self, address: str) -> None:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        self.host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    @property
    def healthy(self) -> bool:
        """Whether the private cluster's own processes still run; without them every call to Ray waits a minute."""
        return all(is_alive(pid, start_ticks) for pid, start_ticks in self._roots.items())

    def _own_children(self, recursive: bool = False) -> dict[int, int]:
        """Return pid and start ticks of children that name this session's folder, with their descendants if wanted."""
        found = {}
        for child in psutil.Process().children():
            try:
                ours = any(self._folder in word for word in child.cmdline())
                family = [child, *(child.children(recursive=True) if recursive else ())] if ours else []
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            for process in family:
                start_ticks = process_start_ticks(process.pid)
                if start_ticks is not None:
                    found[process.pid] = start_ticks
        return found

    def watch_children(self) -> None:
        """Tell the reaper of every process of this session."""
        for pid in self._own_children(recursive=True):
            self.watch(pid)

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

        self.watch_children()
        # A start that failed because another session runs in this process must not end that one.
        in_order = self._started and self.healthy
        if in_order:
            ray.shutdown()
        elif self._started:
            # Somebody ended the cluster under us (a signal to the whole group, say): Ray's own end would wait for it.
            atexit.unregister(ray.shutdown)
        survivors = self._await_end(_END_WAIT_S if in_order else 0.0)
        self._started = False
        reap({pid: self._watched[pid] for pid in survivors}, "")
        self._tell("done")
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._reaper.wait(timeout=_END_WAIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return survivors

    def _await_end(self, seconds: float) -> list[int]:
        deadline = time.monotonic() + seconds
        while True:
            alive = [pid for pid, start_ticks in self._watched.items() if is_alive(pid, start_ticks)]
            if not alive or time.monotonic() >= deadline:
                return alive
            time.sleep(0.02)

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


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let what is started inside ignore the end of the terminal: this process needs it to end everything in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, earlier)
