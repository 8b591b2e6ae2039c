"""Sizes, names and habits that keep the code readable, each rule shown to fail on a planted violation."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

FUNCTION_LINES = 50
FILE_LINES = 400
VAGUE_NAMES = frozenset({"utils", "util", "common", "base", "manager", "helpers", "misc"})
VAGUE_CLASS = re.compile(r"(Manager|Utils?|Base)$|^Base[A-Z]")
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "NotImplemented" + "Error"]))
PRINTING = frozenset({"print", "echo", "secho", "Console"})
Rule = Callable[[str, str], list[str]]


def called_name(call: ast.Call) -> str:
    """Return the last word of what is called: `print`, or `echo` for `typer.echo`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def function_size_violations(path: str, text: str) -> list[str]:
    """Functions of more than 50 lines of code: blank lines, comments and the docstring are not counted."""
    wrong = []
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0]
        has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        docstring = range(first.lineno, (first.end_lineno or first.lineno) + 1) if has_docstring else range(0)
        numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        code = [n for n in numbers if n not in docstring and not re.match(r"\s*(#|$)", lines[n - 1])]
        if len(code) > FUNCTION_LINES:
            wrong.append(f"{path}:{node.lineno} {node.name} has {len(code)} lines of code, {FUNCTION_LINES} at most")
    return wrong


def file_size_violations(path: str, text: str) -> list[str]:
    """Files of more than 400 lines."""
    count = len(text.splitlines())
    return [f"{path} has {count} lines, {FILE_LINES} at most"] if count > FILE_LINES else []


def name_violations(path: str, text: str) -> list[str]:
    """Modules and classes named after nothing in particular."""
    parts = {word for part in PurePosixPath(path).with_suffix("").parts for word in part.split("_")}
    wrong = [f"{path} is named after nothing: {word}" for word in sorted(parts & VAGUE_NAMES)]
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return wrong + [f"{path}:{node.lineno} class {node.name}" for node in classes if VAGUE_CLASS.search(node.name)]


def docstring_violations(path: str, text: str) -> list[str]:
    """Modules that do not say what they are for."""
    return [] if ast.get_docstring(ast.parse(text)) else [f"{path} has no docstring"]


def printing_violations(path: str, text: str) -> list[str]:
    """Output written by anything but the command line."""
    if path == "specbed.py":
        return []
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            if called_name(node) in PRINTING:
                wrong.append(f"{path}:{node.lineno} calls {called_name(node)}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.stdout", "sys.stderr"}:
            wrong.append(f"{path}:{node.lineno} uses sys.{node.attr}")
    return wrong


def swallowed_error_violations(path: str, text: str) -> list[str]:
    """Handlers that do nothing, and suppression of every error."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            idle = all(
                isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
                for line in node.body
            )
            if idle or node.type is None:
                wrong.append(f"{path}:{node.lineno} swallows an error")
        elif isinstance(node, ast.Call) and called_name(node) == "suppress":
            named = {getattr(argument, "id", "") for argument in node.args}
            wrong += [f"{path}:{node.lineno} suppresses {name}" for name in named & {"Exception", "BaseException"}]
    return wrong


def unfinished_violations(path: str, text: str) -> list[str]:
    """Marks of work that was left for later."""
    return [
        f"{path}:{number} says {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := UNFINISHED.search(line))
    ]


SHIPPED: tuple[Rule, ...] = (docstring_violations, printing_violations)
EVERYWHERE: tuple[Rule, ...] = (
    function_size_violations,
    file_size_violations,
    name_violations,
    swallowed_error_violations,
    unfinished_violations,
)


@pytest.mark.parametrize("rule", SHIPPED)
def test_shipped_code_keeps_the_rule(rule: Rule, sources: dict[str, str]) -> None:
    assert [wrong for path, text in sources.items() for wrong in rule(path, text)] == []


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_all_code_keeps_the_rule(rule: Rule, all_sources: dict[str, str]) -> None:
    assert [wrong for path, text in all_sources.items() for wrong in rule(path, text)] == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (function_size_violations, "ranks/x.py", "def f():\n" + "    a = 1\n" * 50),
        (file_size_violations, "ranks/x.py", "a = 1\n" * 401),
        (name_violations, "ranks/link_utils.py", ""),
        (name_violations, "ranks/x.py", "class SlotManager: ..."),
        (docstring_violations, "ranks/x.py", "a = 1"),
        (printing_violations, "ranks/x.py", "print('x')"),
        (printing_violations, "ranks/x.py", "import sys\nsys.stderr.write('x')"),
        (printing_violations, "ranks/x.py", "import typer\ntyper.echo('x')"),
        (swallowed_error_violations, "ranks/x.py", "try:\n    f()\nexcept OSError:\n    pass"),
        (swallowed_error_violations, "ranks/x.py", "try:\n    f()\nexcept:\n    g()"),
        (swallowed_error_violations, "ranks/x.py", "with contextlib.suppress(Exception):\n    f()"),
        (unfinished_violations, "ranks/x.py", "# TO" + "DO later"),
    ],
)
def test_a_planted_violation_is_found(rule: Rule, path: str, text: str) -> None:
    assert len(rule(path, text)) == 1


def test_docstrings_comments_and_blank_lines_are_not_lines_of_code() -> None:
    text = 'def f():\n    """Say.\n' + "    more\n" * 60 + '    """\n' + "    # why\n\n" * 60 + "    return 1\n"
    assert function_size_violations("ranks/x.py", text) == []
