"""The project stands by itself: no file names a place outside the repository that only one machine has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Spelled apart, so that this file passes its own check.
OUTSIDE = re.compile(r"(?<![\w./~-])(/wo" + r"rk\b|/ro" + r"ot\b|/ho" + r"me/)|(?<![\w/.-])shar" + r"ed/")
WRITTEN_BY_HAND = ("*.py", "*.md", "*.toml", "*.yaml", "*.yml", "*.sh", "*.jinja", "Makefile", "run", "*.txt")
FOLDERS = ("selector", "ranks", "faults", "window", "tests", "scripts", "docs", ".ci")


def outside_path_violations(path: str, text: str) -> list[str]:
    """Return one sentence for each line that names a place outside the repository."""
    return [
        f"{path}:{number} names {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := OUTSIDE.search(line))
    ]


def hand_written_files(repository: Path) -> list[Path]:
    """Return the project's text files: those at the top and those in its folders."""
    found: set[Path] = set()
    for pattern in WRITTEN_BY_HAND:
        found |= set(repository.glob(pattern))
        for folder in FOLDERS:
            found |= set((repository / folder).rglob(pattern))
    return sorted(path for path in found if path.is_file() and path.stat().st_size < 2_000_000)


def test_no_file_names_an_outside_place(repository: Path) -> None:
    files = hand_written_files(repository)
    assert len(files) > 20
    texts = {path.relative_to(repository).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert [wrong for path, text in texts.items() for wrong in outside_path_violations(path, text)] == []


@pytest.mark.parametrize(
    "line", ["open('/wo" + "rk/x')", "see shar" + "ed/notes", "'/ro" + "ot/.cache'", "/ho" + "me/me/x"]
)
def test_a_named_outside_place_is_found(line: str) -> None:
    assert len(outside_path_violations("ranks/x.py", line)) == 1


@pytest.mark.parametrize("line", ["a shared memory segment", "/worker/x", "docs/work/x", "tensor_shared/part"])
def test_a_word_that_only_looks_alike_is_no_place(line: str) -> None:
    assert outside_path_violations("ranks/x.py", line) == []
