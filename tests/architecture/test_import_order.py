"""Imports run one way, selector <- ranks <- faults <- window <- specbed, read off the syntax tree."""

from __future__ import annotations

import ast

import pytest

ORDER = {"selector": 0, "ranks": 1, "faults": 2, "window": 3, "specbed": 4}
BY_NAME = {"import_module", "__import__"}


def imported_modules(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, module) of every import, at any depth, also those made by name; "." for a relative one."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, "." if node.level else node.module or "."))
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            target = node.args[0]
            if name in BY_NAME and isinstance(target, ast.Constant) and isinstance(target.value, str):
                found.append((node.lineno, target.value))
    return found


def import_order_violations(path: str, text: str) -> list[str]:
    """Return one sentence for each import in `text` that points up the order, or is relative."""
    own = path.partition("/")[0].removesuffix(".py")
    wrong = []
    for line, module in imported_modules(ast.parse(text)):
        top = module.partition(".")[0]
        if module == ".":
            wrong.append(f"{path}:{line} imports relatively")
        elif top == "tests" or ORDER.get(top, -1) > ORDER[own] or (top == own == "specbed"):
            wrong.append(f"{path}:{line} imports {module}, which stands above {own}")
    return wrong


def test_every_import_points_down_the_order(sources: dict[str, str]) -> None:
    assert [wrong for path, text in sources.items() for wrong in import_order_violations(path, text)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("selector/x.py", "import ranks.records"),
        ("ranks/x.py", "from faults import schedule"),
        ("ranks/x.py", "def f():\n    from window.errors import WindowError"),
        ("faults/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import window.decision"),
        ("ranks/x.py", "import importlib\nimportlib.import_module('window.decision')"),
        ("window/x.py", "import specbed"),
        ("window/x.py", "from . import errors"),
        ("window/x.py", "from tests.data import vectors"),
    ],
)
def test_an_import_against_the_order_is_found(path: str, text: str) -> None:
    assert len(import_order_violations(path, text)) == 1


def test_imports_along_the_order_are_no_violation() -> None:
    text = "import numpy\nimport selector.draft_law\nfrom ranks.records import RoundRecord\nfrom faults import schedule"
    assert import_order_violations("window/x.py", text) == []
