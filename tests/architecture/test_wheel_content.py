"""The wheel holds the four packages and the command line, their types and data, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("selector", "ranks", "faults", "window")
DATA_FOLDERS = ("ranks/data",)
DATA_SUFFIXES = (".jinja",)


def expected_names(repository: Path) -> set[str]:
    """Return every file that the wheel must carry beside its own metadata."""
    names = {"specbed.py"}
    for package in PACKAGES:
        names.add(f"{package}/py.typed")
        for path in (repository / package).rglob("*"):
            name = path.relative_to(repository).as_posix()
            if path.is_file() and (path.suffix in {".py", *DATA_SUFFIXES} or name.startswith(DATA_FOLDERS)):
                names.add(name)
    return names


def content_violations(names: list[str], expected: set[str]) -> list[str]:
    """Return what a wheel lacks or holds too much of; its own dist-info folder is not judged."""
    held = {name for name in names if ".dist-info/" not in name}
    lacking = [f"lacks {name}" for name in sorted(expected - held)]
    return lacking + [f"must not hold {name}" for name in sorted(held - expected)]


@pytest.fixture(scope="module")
def wheel_names(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the wheel from a clean copy, without network, and list its files."""
    copy = tmp_path_factory.mktemp("wheel") / "project"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "specbed.py"):
        shutil.copy2(repository / name, copy / name)
    for name in (*PACKAGES, "tests"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (wheel,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_exactly_the_shipped_files(wheel_names: list[str], repository: Path) -> None:
    assert content_violations(wheel_names, expected_names(repository)) == []


def test_the_wheel_carries_the_license_and_the_command(wheel_names: list[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)


def test_a_missing_type_marker_and_a_stray_test_are_found() -> None:
    expected = {"selector/py.typed", "specbed.py"}
    names = ["specbed.py", "tests/test_x.py", "specbed-0.1.0.dist-info/METADATA"]
    assert content_violations(names, expected) == ["lacks selector/py.typed", "must not hold tests/test_x.py"]
