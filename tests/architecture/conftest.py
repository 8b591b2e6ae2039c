"""The project's own sources as text, for checks that read them and never import them."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGES = ("selector", "ranks", "faults", "window")


def read_python(repository: Path, *roots: str) -> dict[str, str]:
    """Return relative path -> text of the Python files under those folders, or of those files."""
    files: list[Path] = []
    for root in roots:
        path = repository / root
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return {file.relative_to(repository).as_posix(): file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="session")
def sources(repository: Path) -> dict[str, str]:
    """The shipped code: four packages and the command line."""
    found = read_python(repository, *PACKAGES, "specbed.py")
    assert {path.partition("/")[0] for path in found} == {*PACKAGES, "specbed.py"}
    return found


@pytest.fixture(scope="session")
def all_sources(repository: Path, sources: dict[str, str]) -> dict[str, str]:
    """The shipped code, the tests and the scripts."""
    return {**sources, **read_python(repository, "tests", "scripts")}
