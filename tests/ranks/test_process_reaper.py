"""The reaper ends what a killed driver had started, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks.process_identity import is_alive, process_start_ticks, process_state, source_digest
from ranks.process_reaper import FOLDER_PREFIX, reap


@pytest.fixture
def sleeper() -> Iterator[tuple[int, int]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    start_ticks = process_start_ticks(process.pid)
    assert start_ticks is not None
    yield process.pid, start_ticks
    process.kill()
    process.wait()


def test_a_watched_process_is_killed_and_the_folder_removed(sleeper: tuple[int, int], tmp_path: Path) -> None:
    folder = tmp_path / f"{FOLDER_PREFIX}x"
    folder.mkdir()
    assert reap({sleeper[0]: sleeper[1]}, str(folder)) == [sleeper[0]]
    assert not folder.exists()
    give_up = time.monotonic() + 10
    while is_alive(*sleeper) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not is_alive(*sleeper)


def test_a_pid_that_another_process_got_since_is_left_alone(sleeper: tuple[int, int], tmp_path: Path) -> None:
    other = tmp_path / "somebody-elses"
    other.mkdir()
    assert reap({sleeper[0]: sleeper[1] - 1}, str(other)) == []
    assert is_alive(*sleeper)
    assert other.exists()


@pytest.mark.parametrize(("last_word", "survives"), [("done\n", True), ("", False)])
def test_the_reaper_process_acts_only_when_its_driver_ends_without_a_word(
    sleeper: tuple[int, int], last_word: str, survives: bool
) -> None:
    root = Path(__file__).resolve().parent.parent.parent
    words = f"watch {sleeper[0]} {sleeper[1]}\n{last_word}"
    subprocess.run(
        [sys.executable, "-m", "ranks.process_reaper"], input=words, text=True, cwd=root, check=True, timeout=60
    )
    give_up = time.monotonic() + (0 if survives else 10)
    while is_alive(*sleeper) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert is_alive(*sleeper) is survives


def test_a_process_that_never_was_has_no_identity() -> None:
    assert process_start_ticks(2**22 + 1) is None
    assert process_state(2**22 + 1) == ""
    assert not is_alive(2**22 + 1, 0)


def test_the_source_digest_is_the_same_for_the_same_sources() -> None:
    assert source_digest() == source_digest()
    assert len(source_digest()) == 64
