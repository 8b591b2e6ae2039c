"""Every package that an installation brings is pinned, and this environment has the pinned versions."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

OWN = {"selector", "ranks", "faults", "window", "specbed", "tests"}


def read_pins(text: str) -> dict[str, Version]:
    """Return canonical name -> version of a constraints file; raises ValueError for a line that is no exact pin."""
    pins: dict[str, Version] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, version = line.partition("==")
        if not separator:
            raise ValueError(f"not an exact pin: {line}")
        pins[canonicalize_name(name.strip())] = Version(version.strip())
    return pins


def needed_packages(direct: list[str]) -> set[str]:
    """Return the canonical names that those requirements bring here, followed through installed metadata."""
    needed: set[str] = set()
    waiting = [Requirement(line) for line in direct]
    while waiting:
        requirement = waiting.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        name = canonicalize_name(requirement.name)
        if name in needed:
            continue
        needed.add(name)
        for line in importlib.metadata.distribution(name).requires or []:
            child = Requirement(line)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(child)
    return needed


def undeclared_imports(sources: dict[str, str], direct: list[str]) -> list[str]:
    """Return one sentence for each outside module that is imported and that no direct requirement brings."""
    brought = importlib.metadata.packages_distributions()
    declared = {canonicalize_name(Requirement(line).name) for line in direct}
    known = set(sys.stdlib_module_names) | OWN
    wrong = []
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for top in sorted({name.partition(".")[0] for name in names} - known):
                if not {canonicalize_name(name) for name in brought.get(top, [])} & declared:
                    wrong.append(f"{path} imports {top}, which no requirement names")
    return wrong


@pytest.fixture(scope="module")
def pins(repository: Path) -> dict[str, Version]:
    return read_pins((repository / "constraints.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def direct(repository: Path) -> list[str]:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["test"]]


def test_every_package_that_comes_along_is_pinned(pins: dict[str, Version], direct: list[str]) -> None:
    assert needed_packages(direct) - set(pins) == set()


def test_every_direct_requirement_admits_its_pin(pins: dict[str, Version], direct: list[str]) -> None:
    for line in direct:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


def test_this_environment_has_the_pinned_versions(pins: dict[str, Version], direct: list[str]) -> None:
    for name in needed_packages(direct):
        installed = Version(importlib.metadata.version(name))
        # A CPU build of torch says 2.13.0+cpu, which the pin 2.13.0 admits.
        assert installed.public == pins[name].public, name


def test_triton_stands_at_the_version_that_torch_pins(pins: dict[str, Version]) -> None:
    assert str(pins["triton"]) == "3.7.1"


def test_a_loose_line_is_no_pin() -> None:
    with pytest.raises(ValueError, match="not an exact pin"):
        read_pins("numpy>=2")


def test_shipped_code_imports_only_declared_packages(sources: dict[str, str], repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert undeclared_imports(sources, project["dependencies"]) == []


def test_tests_and_scripts_import_only_declared_packages(all_sources: dict[str, str], direct: list[str]) -> None:
    assert undeclared_imports(all_sources, direct) == []


def test_an_undeclared_import_is_found(direct: list[str]) -> None:
    assert undeclared_imports({"ranks/x.py": "def f():\n    import requests.adapters"}, direct) == [
        "ranks/x.py imports requests, which no requirement names"
    ]
