"""Reads the public texts from the running Python's own standard library.

Must never write, and never fetch anything: what the interpreter ships is all there is.
Source: plan, "Two frozen public task families".
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from functools import cache
from pathlib import Path

from ranks.tokenizer import ByteTokenizer
from window.public_text import (
    Family,
    PublicPrompt,
    PublicTextError,
    SourceText,
    Split,
    cut_prompt,
    includes_module,
    select_sources,
)

__all__ = ["PublicPrompts", "read_family", "read_modules", "read_topics"]


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache
def read_modules() -> tuple[SourceText, ...]:
    """Return every module of the code family, by name. Raises PublicTextError when the library has no sources."""
    library = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(library.rglob("*.py")):
        name = _module_name(path.relative_to(library))
        if includes_module(name, sys.stdlib_module_names):
            found.append(SourceText.of(name, path.read_text(encoding="utf-8")))
    if not found:
        raise PublicTextError(f"{library}: holds no module sources; a Python with its standard library is needed")
    return tuple(sorted(found, key=lambda source: source.name))


@cache
def read_topics() -> tuple[SourceText, ...]:
    """Return every topic of the interpreter's built-in help, named `topic:<name>`."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return tuple(SourceText.of(f"topic:{name}", text) for name, text in sorted(topics.items()))


@cache
def read_family(family: Family, split: Split) -> tuple[SourceText, ...]:
    """Return a family's sources of one split in their fixed order."""
    return tuple(select_sources(family, split, read_modules(), read_topics()))


class PublicPrompts:
    """Frozen prompts of exact token counts, encoded once a source."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._end_token_id = tokenizer.end_token_id
        self._encode = cache(tokenizer.encode)

    def prompt(self, family: Family, occupied_tokens: int, index: int) -> PublicPrompt:
        """Return frozen prompt `index` with exactly `occupied_tokens` token ids. Raises PublicTextError."""
        sources = read_family(family, Split.FROZEN)
        return cut_prompt(family, sources, self._encode, self._end_token_id, occupied_tokens, index)
