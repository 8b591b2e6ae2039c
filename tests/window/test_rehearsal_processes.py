"""A rehearsal that is interrupted or killed, or whose rank is killed: nothing survives, and the next one runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]

WINDOW_MARK = "SPECBED_TEST_WINDOW"
RANK_NAME = "ray::RankActor"


@dataclass
class Rehearsal:
    """A rehearsal in a process of its own; everything that it starts carries its mark."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path
    log: Path

    @classmethod
    def start(cls, tmp_path: Path, name: str, repository: Path) -> Rehearsal:
        mark, folder, log = uuid.uuid4().hex, tmp_path / name, tmp_path / f"{name}.log"
        with log.open("w") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "specbed", "window", "rehearse", "--out", str(folder), "--run-seconds", "0.4"],
                cwd=repository,
                env=os.environ | {WINDOW_MARK: mark},
                stderr=sink,
                stdout=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        return cls(process, mark, folder, log)

    def living(self, name: str = "") -> list[psutil.Process]:
        """Return living processes of this rehearsal, the driver apart, whose name starts so."""
        found = []
        for process in psutil.process_iter(["name", "status"]):
            try:
                ours = process.environ().get(WINDOW_MARK) == self.mark and process.pid != self.process.pid
            except psutil.Error:
                continue
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE and process.info["name"].startswith(name):
                found.append(process)
        return found

    def bundle(self) -> Path:
        """Return the one bundle of this rehearsal."""
        (found,) = self.folder.glob("window-*")
        return found

    def await_log(self, text: str, seconds: float = 90) -> None:
        """Wait until the progress on stderr mentions a text."""
        wait_for(lambda: text in self.log.read_text() or self.process.poll() is not None, seconds)
        assert text in self.log.read_text(), self.log.read_text()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(300)
def test_a_killed_driver_leaves_no_process_and_an_interrupted_one_ends_in_order(
    tmp_path: Path, repository: Path
) -> None:
    killed = Rehearsal.start(tmp_path, "killed", repository)
    killed.await_log("run 2/24")
    assert len(killed.living(RANK_NAME)) == 2
    killed.process.kill()
    killed.process.wait()
    assert wait_for(lambda: not killed.living(RANK_NAME), 10), "a rank outlived its driver"
    assert wait_for(lambda: not killed.living(), 20), [process.name() for process in killed.living()]

    interrupted = Rehearsal.start(tmp_path, "interrupted", repository)
    interrupted.await_log("run 2/24")
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.process.wait(timeout=60) == 130
    assert not interrupted.living()
    kinds = [json.loads(line)["kind"] for line in (interrupted.bundle() / "journal.jsonl").read_text().splitlines()]
    assert kinds, "the journal of an interrupted window is empty"


@pytest.mark.timeout(200)
def test_a_terminal_that_closes_takes_its_whole_group_along_and_the_window_still_ends_restored(
    tmp_path: Path, repository: Path
) -> None:
    window = Rehearsal.start(tmp_path, "hung-up", repository)
    window.await_log("A1 warm up")
    # A terminal's end reaches every process of the group, so Ray's own must not leave before the ranks are stopped.
    os.killpg(window.process.pid, signal.SIGHUP)
    assert window.process.wait(timeout=60) == 130, window.log.read_text()
    assert not window.living()
    (journal,) = window.folder.glob("window-*/journal.jsonl")
    restores = [line for line in journal.read_text().splitlines() if json.loads(line)["kind"] == "restore"]
    assert [json.loads(line)["body"]["outcome"] for line in restores] == ["RESTORED"]


@pytest.mark.timeout(300)
def test_a_rank_killed_in_a_measured_run_is_replaced_and_the_window_still_ends_with_24_dispositions(
    tmp_path: Path, repository: Path
) -> None:
    window = Rehearsal.start(tmp_path, "rank-killed", repository)
    window.await_log("run 3/24")
    victims = window.living(RANK_NAME)
    assert len(victims) == 2
    victims[0].kill()
    # A rank that dies in a measured run rejects: nothing in the registration injected that.
    assert window.process.wait(timeout=240) == 11, window.log.read_text()
    assert not window.living()
    records = [json.loads(line) for line in (window.bundle() / "journal.jsonl").read_text().splitlines()]
    runs = [record["body"] for record in records if record["kind"] == "run"]
    assert len({run["run_id"] for run in runs}) == len(runs) == 24
    assert any(run["epochs_survived"] for run in runs), "no run felt the death of the rank"
    assert [record["body"]["outcome"] for record in records if record["kind"] == "restore"] == ["RESTORED"]
