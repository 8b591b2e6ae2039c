"""The command line as a person or a script meets it: help, version, completion, sentences and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ranks.doctor
import ranks.errors
import specbed
from ranks.errors import UserError
from window.exit_codes import ExitCode


def run(repository: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(repository / "specbed.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **variables},
    )


def failing_with(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert specbed.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "doctor" in printed
    assert "rehearse" not in printed
    assert specbed.main(["window", *arguments]) == 0
    assert "rehearse" in capsys.readouterr().out


def test_help_answers_without_loading_torch_or_ray(repository: Path) -> None:
    program = (
        "import sys, specbed; code = specbed.main(['--help']); "
        "sys.exit(code or [name for name in ('torch', 'ray', 'matplotlib') if name in sys.modules] or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=repository
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert specbed.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("specbed ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_completion_script(repository: Path, shell: str) -> None:
    result = run(repository, _SPECBED_COMPLETE=f"source_{shell}")
    assert result.returncode == 0
    assert "_SPECBED_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["doctor", "--jsn", "x"], "No such option"),
        (["docter"], "No such command 'docter'"),
        (["--colour"], "No such option"),
        (["window", "rehearse", "--seed", "many"], "--seed"),
        (["window", "rehearse"], "--out"),
        (["window", "rehears"], "No such command"),
    ],
)
def test_a_typing_error_is_one_sentence_and_code_64(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert specbed.main(arguments) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert part in printed.err
    assert printed.err.count("\n") == 1
    assert "--help" in printed.err


def test_doctor_gives_one_line_for_each_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert specbed.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("cpu", "one-gpu", "two-gpu", "two-node"):
        assert sum(line.split()[:1] == [name] for line in lines) == 1


def test_doctor_writes_the_same_as_json(tmp_path: Path) -> None:
    assert specbed.main(["doctor", "--json", str(tmp_path / "facts.json")]) == 0
    data = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert [profile["name"] for profile in data["profiles"]] == ["cpu", "one-gpu", "two-gpu", "two-node"]
    assert data["machine"]["python"] == list(sys.version_info[:3])
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.parametrize("place", ["missing/facts.json", "."])
def test_an_unwritable_json_file_is_refused_before_any_work(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks.doctor, "gather_machine_facts", failing_with(AssertionError("work was begun")))
    assert specbed.main(["doctor", "--json", str(tmp_path / place)]) == ExitCode.CANNOT_WRITE
    assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_user_error_ends_as_its_sentence_and_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        ranks.doctor, "gather_machine_facts", failing_with(UserError("port 1 is in use:\n choose another.", 69))
    )
    assert specbed.main(["doctor"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err == "specbed: port 1 is in use: choose another.\n"


def test_a_fault_of_our_own_is_code_70_and_shows_its_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks.doctor, "gather_machine_facts", failing_with(ZeroDivisionError("by zero")))
    assert specbed.main(["doctor"]) == ExitCode.INTERNAL
    quiet = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in quiet
    assert quiet.count("\n") == 1
    assert specbed.main(["--debug", "doctor"]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ranks.doctor, "gather_machine_facts", failing_with(KeyboardInterrupt()))
    assert specbed.main(["doctor"]) == ExitCode.INTERRUPTED
    assert "stopped" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(repository: Path) -> None:
    command = f"{sys.executable} specbed.py doctor | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_both_tables_of_exit_codes_agree() -> None:
    for name in ("USAGE", "BAD_DATA", "UNAVAILABLE", "INTERNAL", "CANNOT_WRITE", "INTERRUPTED"):
        assert getattr(ranks.errors, name) == ExitCode[name]


def test_the_readme_lists_every_exit_code(repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert f"| {code.value} | {code.name}" in readme


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--profile", "three-gpu"], ExitCode.USAGE, "choose one of cpu, one-gpu, two-gpu, two-node"),
        (["--run-seconds", "31"], ExitCode.USAGE, "from 0.1 to 30 seconds"),
        (["--run-seconds", "nan"], ExitCode.USAGE, "from 0.1 to 30 seconds"),
        (["--weights", "{folder}/absent.safetensors"], ExitCode.BAD_DATA, "absent.safetensors"),
        (["--weights", "{folder}/truncated.safetensors"], ExitCode.BAD_DATA, "truncated.safetensors"),
    ],
)
def test_a_rehearsal_that_cannot_begin_says_why_and_writes_nothing(
    arguments: list[str], code: ExitCode, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "truncated.safetensors").write_bytes(b"\x00\x01")
    words = [word.format(folder=tmp_path) for word in arguments]
    assert specbed.main(["window", "rehearse", "--out", str(tmp_path / "out"), *words]) == code
    complaint = capsys.readouterr().err
    assert part in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_gpu_profile_without_a_gpu_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = replace(ranks.doctor.gather_machine_facts({}), cuda_devices=(), cuda_problem="the driver shows none")
    monkeypatch.setattr("window.embedded_engine.gather_machine_facts", lambda: machine)
    command = ["window", "rehearse", "--profile", "two-gpu", "--out", str(tmp_path / "out")]
    assert specbed.main(command) == ExitCode.UNAVAILABLE
    complaint = capsys.readouterr().err
    assert "2 CUDA devices are needed, torch sees 0 (the driver shows none)" in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", [0, 1, 63, 79, 130])
def test_a_user_error_cannot_claim_a_verdicts_code(code: int) -> None:
    with pytest.raises(ValueError, match="64 to 78"):
        UserError("x", code)
