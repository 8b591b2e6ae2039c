"""Pure cores hold no clock, no randomness of their own, no I/O, no threads, no Ray and no torch.

The list below names the cores; what they import of ours must be as pure as they are.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase

import pytest

PURE = (
    "selector/*.py",
    "selector/certificate/*.py",
    "ranks/records*.py",
    "ranks/frames*.py",
    "ranks/binding*.py",
    "ranks/rank_core*.py",
    "ranks/rank_events*.py",
    "ranks/driver_core*.py",
    "ranks/driver_events*.py",
    "ranks/active_request*.py",
    "ranks/peer_inbox*.py",
    "ranks/commit_log*.py",
    "ranks/round_plan*.py",
    "ranks/timeout_ladder*.py",
    "ranks/verdict*.py",
    "ranks/profiles.py",
    "ranks/errors.py",
    "faults/schedule*.py",
    "window/registration*.py",
    "window/bootstrap*.py",
    "window/decision*.py",
    "window/completeness*.py",
    "window/guards*.py",
    "window/rejects*.py",
    "window/gain*.py",
    "window/records*.py",
    "window/measure*.py",
    "window/driver_*.py",
    "window/token_compare*.py",
    "window/drift*.py",
    "window/limits_text*.py",
    "window/rules*.py",
    "window/exit_codes*.py",
)

# Files beside pure ones that hold what a shell must hold.
SHELLS = frozenset({"selector/certificate/load_sampler.py"})

# Cores that must be there: a rename may not take one of them off the list unseen.
KNOWN_CORES = (
    "selector/draft_law.py",
    "selector/philox.py",
    "ranks/records.py",
    "ranks/frames.py",
    "ranks/binding.py",
    "ranks/rank_core.py",
    "ranks/driver_core.py",
    "ranks/commit_log.py",
    "ranks/round_plan.py",
    "ranks/timeout_ladder.py",
    "ranks/verdict.py",
    "ranks/profiles.py",
    "selector/acceptance.py",
    "window/registration.py",
    "window/bootstrap.py",
    "window/completeness.py",
    "window/decision.py",
    "window/driver_core.py",
    "window/gain.py",
    "window/guards.py",
    "window/measure.py",
    "window/rejects.py",
    "window/token_compare.py",
    "window/exit_codes.py",
)

FORBIDDEN_IMPORTS = frozenset(
    "time random secrets uuid os io sys socket select selectors subprocess signal threading multiprocessing concurrent "
    "asyncio queue pathlib tempfile shutil glob logging urllib http ssl sqlite3 ctypes mmap ray torch triton psutil "
    "aiohttp requests rich typer".split()
)
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})
SEEDED_GENERATORS = frozenset({"default_rng", "PCG64", "Philox", "SeedSequence", "Generator", "BitGenerator"})
OWN = ("selector", "ranks", "faults", "window")


def dotted_name(node: ast.AST) -> str:
    """Return 'a.b.c' for nested attributes of a name, else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def impure_call(call: ast.Call) -> str:
    """Return why a call is impure, or "" when it is not."""
    name = dotted_name(call.func)
    *owner, last = name.split(".")
    if name in FORBIDDEN_CALLS:
        return f"calls {name}"
    if last in CLOCK_METHODS and owner and owner[-1] in {"datetime", "date"}:
        return f"reads the clock with {name}"
    if "random" in owner and last not in SEEDED_GENERATORS:
        return f"draws from a global generator with {name}"
    if last in {"default_rng", "PCG64", "Philox", "SeedSequence"} and not (call.args or call.keywords):
        return f"seeds {name} from the machine"
    return ""


def purity_violations(path: str, text: str) -> list[str]:
    """Return one sentence for each forbidden import or call in `text`."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
            wrong += [f"{path}:{node.lineno} imports {n}" for n in names if n.partition(".")[0] in FORBIDDEN_IMPORTS]
        elif isinstance(node, ast.Call) and (reason := impure_call(node)):
            wrong.append(f"{path}:{node.lineno} {reason}")
    return wrong


def is_listed(path: str) -> bool:
    """Return whether the list names that file; a star does not reach into a folder below."""
    patterns = (pattern for pattern in PURE if pattern.count("/") == path.count("/"))
    return path not in SHELLS and any(fnmatchcase(path, pattern) for pattern in patterns)


def own_imports(text: str, known: dict[str, str]) -> set[str]:
    """Return the paths of our own modules that `text` imports at run time or for types."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] in OWN:
                stem = name.replace(".", "/")
                found |= {path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in known}
    return found


def pure_closure(known: dict[str, str]) -> set[str]:
    """Return the cores of the list and everything of ours that they reach by imports."""
    reached: set[str] = set()
    waiting = {path for path in known if is_listed(path)}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= own_imports(known[path], known) - reached
    return reached


def test_every_known_core_stands_on_the_list(sources: dict[str, str]) -> None:
    assert set(KNOWN_CORES) <= pure_closure(sources)


def test_the_cores_and_what_they_import_are_pure(sources: dict[str, str]) -> None:
    assert [wrong for path in sorted(pure_closure(sources)) for wrong in purity_violations(path, sources[path])] == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from os import environ",
        "def f():\n    import ray.util",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "handle = open('x')",
        "print('x')",
        "import datetime\nstamp = datetime.datetime.now()",
        "import numpy\nx = numpy.random.rand(3)",
        "import numpy\nx = numpy.random.default_rng()",
    ],
)
def test_an_impure_line_is_found(text: str) -> None:
    assert purity_violations("selector/x.py", text)


def test_a_generator_with_a_given_seed_is_pure() -> None:
    text = "import numpy\nx = numpy.random.Generator(numpy.random.PCG64(4103)).integers(0, 2, 5)"
    assert purity_violations("window/x.py", text) == []


def test_a_core_that_reaches_an_impure_module_is_found() -> None:
    known = {
        "ranks/rank_core.py": "from ranks import clock_reader",
        "ranks/clock_reader.py": "import time",
        "ranks/actor.py": "import ray",
    }
    reached = pure_closure(known)
    assert reached == {"ranks/rank_core.py", "ranks/clock_reader.py"}
    assert [wrong for path in reached for wrong in purity_violations(path, known[path])]
