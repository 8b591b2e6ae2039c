"""The script that makes the virtual environment: it ends in one sentence where it cannot, and destroys nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_script(repository: Path, venv: Path, python: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "scripts/make_environment.sh", str(venv), python]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)


def fake_python(folder: Path, body: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


def assert_one_sentence(result: subprocess.CompletedProcess[str], part: str) -> None:
    assert result.returncode == 69
    assert part in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("body", ["exit 1", "echo 'no such version here' >&2; exit 127"])
def test_an_old_or_broken_python_is_named_in_one_sentence(repository: Path, tmp_path: Path, body: str) -> None:
    result = run_script(repository, tmp_path / "venv", fake_python(tmp_path, body))
    assert_one_sentence(result, "No Python 3.11 or newer was found")
    assert not (tmp_path / "venv").exists()


def test_a_python_without_venv_says_which_package_to_install(repository: Path, tmp_path: Path) -> None:
    body = f'case "$2" in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"'
    result = run_script(repository, tmp_path / "venv", fake_python(tmp_path, body))
    assert_one_sentence(result, f"python{sys.version_info.major}.{sys.version_info.minor}-venv")


def test_a_folder_that_is_no_environment_is_left_alone(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine", encoding="ascii")
    result = run_script(repository, tmp_path, sys.executable)
    assert_one_sentence(result, "is no virtual environment")
    assert (tmp_path / "letters.txt").read_text(encoding="ascii") == "mine"


def test_an_environment_that_works_is_kept(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = Path(fake_python(tmp_path / "bin", f'exec {sys.executable} "$@"'))
    python.rename(tmp_path / "bin" / "python")
    result = run_script(repository, tmp_path, "/nonexistent/python")
    assert result.returncode == 0
    assert result.stdout == result.stderr == ""
