"""The private Ray: a start that fails leaves nothing behind, and only its own processes are ever watched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ranks.errors import UserError
from ranks.process_identity import is_alive, process_start_ticks
from ranks.process_reaper import FOLDER_PREFIX
from ranks.ray_session import RaySession

pytestmark = pytest.mark.real

SCRIPT = """
import os, pathlib, ray, sys
import ray.autoscaler
from ranks.ray_session import RaySession
stranger = __import__("subprocess").Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with RaySession() as session:
    print(os.environ["RAY_AUTH_MODE"], ray.get(ray.remote(lambda: 41 + 1).remote()))
    print("token on disk:", (pathlib.Path.home() / ".ray" / "auth_token").exists())
    print("stranger watched:", stranger.pid in session._watched, "own watched:", len(session._watched) >= 2)
print("survivors:", [pid for pid, ticks in session._watched.items() if pathlib.Path(f"/proc/{pid}").exists()])
print("stranger lives:", stranger.poll() is None)
stranger.kill()
stranger.wait()
"""


def test_a_session_works_although_ray_was_imported_before_and_leaves_strangers_alone(
    tmp_path: Path, repository: Path
) -> None:
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=repository, env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.stdout.splitlines() == [
        "token 42",
        "token on disk: False",
        "stranger watched: False own watched: True",
        "survivors: []",
        "stranger lives: True",
    ], result.stderr


def test_a_start_that_fails_is_one_sentence_and_leaves_nothing(
    ray_session: RaySession,
) -> None:
    # The shared session is up, so a second local start in this process must fail.
    before = set(Path("/tmp").glob(f"{FOLDER_PREFIX}*"))
    with pytest.raises(UserError, match="Ray did not start on this machine"):
        RaySession()
    assert set(Path("/tmp").glob(f"{FOLDER_PREFIX}*")) == before
    start_ticks = process_start_ticks(next(iter(ray_session._watched)))
    assert start_ticks is not None
    assert is_alive(next(iter(ray_session._watched)), start_ticks)
