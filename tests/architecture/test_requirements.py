"""docs/requirements.md: every row is well formed, and the code and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

STATES = ("met", "partly", "open")
ROW = re.compile(
    r"^\| (?P<id>[A-Z]+-\d\d) \| (?P<text>[^|]+) \| (?P<state>[^|]+) \| (?P<code>[^|]*) \| (?P<test>[^|]*) \|$"
)
CITED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Requirement:
    """One row: what is asked, its state, and the paths that it cites."""

    identity: str
    text: str
    state: str
    code: tuple[str, ...]
    tests: tuple[str, ...]


def read_requirements(text: str) -> tuple[list[Requirement], list[str]]:
    """Return the rows, and the lines that look like a row and are none."""
    rows, broken = [], []
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            code, tests = tuple(CITED.findall(match["code"])), tuple(CITED.findall(match["test"]))
            rows.append(Requirement(match["id"], match["text"].strip(), match["state"].strip(), code, tests))
        elif re.match(r"^\| *[A-Z]+-", line):
            broken.append(line)
    return rows, broken


def cited_test_exists(repository: Path, cited: str) -> bool:
    """Return whether `tests/x.py` or `tests/x.py::test_name` is there."""
    path, _, name = cited.partition("::")
    if not path.startswith("tests/") or not (repository / path).is_file():
        return False
    tree = ast.parse((repository / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return name in defined if name else any(test.startswith("test_") for test in defined)


def requirement_violations(rows: list[Requirement], repository: Path) -> list[str]:
    """Return one sentence for each row that promises what is not there."""
    wrong = []
    seen: set[str] = set()
    for row in rows:
        if row.identity in seen:
            wrong.append(f"{row.identity} stands twice")
        seen.add(row.identity)
        if row.state not in STATES:
            wrong.append(f"{row.identity} has the unknown state {row.state!r}")
        if row.state == "open" and (row.code or row.tests):
            wrong.append(f"{row.identity} is open and yet cites code or tests: call it partly")
        if row.state in ("met", "partly") and not (row.code and row.tests):
            wrong.append(f"{row.identity} is {row.state} without code or without a test")
        absent = [path for path in row.code if not (repository / path).is_file()]
        untested = [cited for cited in row.tests if not cited_test_exists(repository, cited)]
        wrong += [f"{row.identity} cites {path}, which is not there" for path in absent]
        wrong += [f"{row.identity} cites {cited}, no such test" for cited in untested]
    return wrong


@pytest.fixture(scope="module")
def document(repository: Path) -> str:
    return (repository / "docs" / "requirements.md").read_text(encoding="utf-8")


def test_every_row_is_well_formed(document: str) -> None:
    rows, broken = read_requirements(document)
    assert broken == []
    assert len(rows) > 80


def test_every_row_cites_what_exists(document: str, repository: Path) -> None:
    rows, _ = read_requirements(document)
    assert requirement_violations(rows, repository) == []


def test_the_summary_counts_the_rows(document: str) -> None:
    rows, _ = read_requirements(document)
    counts = ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in STATES)
    assert f"{len(rows)} requirements: {counts}." in document


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("| ADM-01 | x | met | `ranks/absent.py` | `tests/architecture/test_requirements.py` |", "which is not there"),
        ("| ADM-01 | x | met | `specbed.py` | `tests/test_absent.py` |", "no such test"),
        ("| ADM-01 | x | met | `specbed.py` | `tests/test_command_line.py::test_absent` |", "no such test"),
        ("| ADM-01 | x | met | `specbed.py` | |", "without a test"),
        ("| ADM-01 | x | open | `specbed.py` | |", "call it partly"),
        ("| ADM-01 | x | done | | |", "unknown state"),
        ("| ADM-01 | x | open | | |\n| ADM-01 | y | open | | |", "stands twice"),
    ],
)
def test_a_false_row_is_found(line: str, part: str, repository: Path) -> None:
    rows, broken = read_requirements(line.replace("| |", "|  |").replace("| |", "|  |"))
    assert broken == []
    assert any(part in wrong for wrong in requirement_violations(rows, repository))


def test_a_row_with_a_missing_column_is_found() -> None:
    assert read_requirements("| ADM-01 | x | open |") == ([], ["| ADM-01 | x | open |"])
