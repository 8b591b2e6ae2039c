"""The two public task families: standard-library source code and Python documentation prose.

Pure: texts come in as arguments (window/public_sources.py reads them). Must never write a text anywhere;
reports carry names, hashes and counts only. A source is frozen or development by its name alone, so no
model trained on the development half has seen a frozen source.
Source: plan, "Two frozen public task families"; DESIGN section 6.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "EXCLUDED_PACKAGES",
    "FAMILY_RULES",
    "SPLIT_RULE",
    "Family",
    "PromptPart",
    "PublicPrompt",
    "PublicTextError",
    "SourceText",
    "Split",
    "cut_prompt",
    "docstring_text",
    "includes_module",
    "select_sources",
    "split_of",
]

FROZEN_BYTES = 32
SPLIT_RULE = f"frozen if sha256(utf-8 name)[0] < {FROZEN_BYTES} (1 in {256 // FROZEN_BYTES}), else development"
EXCLUDED_PACKAGES = frozenset(
    {"encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "idle_test", "turtledemo"}
)
FAMILY_RULES = {
    "code": "every .py of a package in sys.stdlib_module_names, without packages named "
    + ", ".join(sorted(EXCLUDED_PACKAGES)),
    "prose": "every topic of pydoc_data.topics, and the docstrings of every module of the code family",
}
MINIMUM_PROSE_CHARACTERS = 200


class PublicTextError(ValueError):
    """A family cannot supply what was asked; the message says how much there is."""


class Family(StrEnum):
    """Where the text comes from."""

    CODE = "code"
    PROSE = "prose"


class Split(StrEnum):
    """Whether training may read a source (DEVELOPMENT) or only a window may (FROZEN)."""

    DEVELOPMENT = "development"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class SourceText:
    """One source: its dotted name, its text and the sha-256 hex of its UTF-8 bytes."""

    name: str
    text: str
    sha256: str

    @classmethod
    def of(cls, name: str, text: str) -> SourceText:
        """Return the source with its digest computed."""
        return cls(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())


@dataclass(frozen=True, slots=True)
class PromptPart:
    """How many tokens of a prompt come from which source; no text."""

    name: str
    sha256: str
    token_count: int


@dataclass(frozen=True, slots=True)
class PublicPrompt:
    """A prompt of an exact number of tokens and the sources that it was cut from, in order."""

    family: Family
    index: int
    token_ids: tuple[int, ...]
    parts: tuple[PromptPart, ...]


def split_of(name: str) -> Split:
    """Return the split of a module's dotted name or of a topic's name; the same for both families."""
    return Split.FROZEN if hashlib.sha256(name.encode("utf-8")).digest()[0] < FROZEN_BYTES else Split.DEVELOPMENT


def includes_module(name: str, standard_names: Iterable[str]) -> bool:
    """Return whether a dotted module name belongs to the code family."""
    parts = name.split(".")
    return parts[0] in standard_names and EXCLUDED_PACKAGES.isdisjoint(parts)


def docstring_text(name: str, source: str) -> str:
    """Return the docstrings of one module, each under its qualified name, in source order; "" if it has none.

    Raises SyntaxError when `source` is not Python of this interpreter.
    """
    pieces: list[str] = []

    def visit(node: ast.AST, qualified: str) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node, clean=True)
            if found:
                # Cleaned twice: a docstring that opens with an empty line keeps its indent the first time.
                pieces.append(f"{qualified}\n\n{inspect.cleandoc(found)}\n")
        for child in ast.iter_child_nodes(node):
            inner = f"{qualified}.{child.name}" if hasattr(child, "name") and isinstance(child.name, str) else qualified
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try):
                visit(child, inner)

    visit(ast.parse(source), name)
    return "\n".join(pieces)


def select_sources(
    family: Family, split: Split, modules: Sequence[SourceText], topics: Sequence[SourceText]
) -> list[SourceText]:
    """Return a family's sources of one split, ordered by sha-256 of the name (a fixed shuffle).

    `modules` are the code family's files; prose derives its docstrings from them. A prose document under
    200 characters is left out.
    """
    mine = [source for source in modules if split_of(source.name) is split]
    if family is Family.PROSE:
        prose = [SourceText.of(source.name, docstring_text(source.name, source.text)) for source in mine]
        prose += [topic for topic in topics if split_of(topic.name) is split]
        mine = [source for source in prose if len(source.text) >= MINIMUM_PROSE_CHARACTERS]
    else:
        mine = [source for source in mine if source.text.strip()]
    return sorted(mine, key=lambda source: hashlib.sha256(source.name.encode("utf-8")).digest())


def cut_prompt(
    family: Family,
    sources: Sequence[SourceText],
    encode: Callable[[str], list[int]],
    end_token_id: int,
    occupied_tokens: int,
    index: int,
) -> PublicPrompt:
    """Return prompt number `index` of exactly `occupied_tokens` tokens, cut from `sources` joined in order.

    Prompt i of a length takes tokens [i * length, (i + 1) * length) of the stream "end token, source, end
    token, source ...", so prompts of one length never overlap. Raises PublicTextError when the stream ends first.
    """
    if occupied_tokens < 1 or index < 0:
        raise PublicTextError(f"a prompt needs at least 1 token and an index from 0, not {occupied_tokens} and {index}")
    start, stop = index * occupied_tokens, (index + 1) * occupied_tokens
    token_ids: list[int] = []
    parts: list[PromptPart] = []
    offset = 0
    for source in sources:
        if offset >= stop:
            break
        ids = [end_token_id, *encode(source.text)]
        taken = ids[max(0, start - offset) : max(0, stop - offset)]
        if taken:
            token_ids += taken
            parts.append(PromptPart(source.name, source.sha256, len(taken)))
        offset += len(ids)
    if len(token_ids) != occupied_tokens:
        raise PublicTextError(
            f"family {family} holds {offset} tokens; prompt {index} of {occupied_tokens} tokens needs {stop}"
        )
    return PublicPrompt(family, index, tuple(token_ids), tuple(parts))
