"""Frozen and development texts never meet, and a prompt has exactly the tokens asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.tokenizer import load_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER, EMBEDDED_WEIGHTS
from window.public_sources import PublicPrompts, read_family, read_modules, read_topics
from window.public_text import (
    Family,
    PublicTextError,
    SourceText,
    Split,
    cut_prompt,
    docstring_text,
    includes_module,
    select_sources,
    split_of,
)

MODULE = '''"""Module words."""
import os

if True:
    class Shape:
        """Shape words."""

        def area(self):
            """Area
            words."""
            return "no words"


async def late():
    "Late words."
'''


@pytest.fixture(scope="module")
def prompts() -> PublicPrompts:
    return PublicPrompts(load_tokenizer(EMBEDDED_TOKENIZER))


def encode(text: str) -> list[int]:
    return [1 + ord(character) % 90 for character in text]


def test_docstrings_come_out_under_their_names_in_order() -> None:
    text = docstring_text("shapes", MODULE)
    assert text == (
        "shapes\n\nModule words.\n\nshapes.Shape\n\nShape words.\n\n"
        "shapes.Shape.area\n\nArea\nwords.\n\nshapes.late\n\nLate words.\n"
    )
    assert docstring_text("bare", "x = 1\n") == ""


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("json.decoder", True),
        ("test.support", False),
        ("json.tests.x", False),
        ("encodings.cp437", False),
        ("abc", True),
    ],
)
def test_a_written_rule_says_what_the_code_family_holds(name: str, inside: bool) -> None:
    assert includes_module(name, {"json", "test", "encodings", "abc"}) == inside
    assert not includes_module("numpy.linalg", {"json"})


def test_the_splits_are_disjoint_and_whole() -> None:
    for family in Family:
        halves = [{source.name for source in read_family(family, split)} for split in Split]
        assert not halves[0] & halves[1]
        assert all(halves)
    code = {source.name for split in Split for source in read_family(Family.CODE, split)}
    assert code == {source.name for source in read_modules() if source.text.strip()}
    assert all(split_of(source.name) is Split.FROZEN for source in read_family(Family.PROSE, Split.FROZEN))


def test_a_module_and_its_docstrings_stand_on_the_same_side() -> None:
    frozen_code = {source.name for source in read_family(Family.CODE, Split.FROZEN)}
    for source in read_family(Family.PROSE, Split.FROZEN):
        assert source.name.startswith("topic:") or source.name in frozen_code
    assert any(source.name.startswith("topic:") for source in read_family(Family.PROSE, Split.FROZEN))
    assert len(read_topics()) > 50


def test_no_frozen_text_was_trained_on() -> None:
    receipt = json.loads((EMBEDDED_WEIGHTS.parent / "training_receipt.json").read_text(encoding="utf-8"))
    for family in Family:
        trained = receipt["sources"][family.value]
        assert len(trained) > 100
        for source in read_family(family, Split.FROZEN):
            assert source.name not in trained
            assert source.sha256 not in trained.values()


@pytest.mark.parametrize("family", list(Family))
def test_three_prompts_of_every_length_can_be_cut(prompts: PublicPrompts, family: Family) -> None:
    for occupied_tokens in (256, 2048, 8192):
        cut = [prompts.prompt(family, occupied_tokens, index) for index in range(3)]
        assert len({prompt.token_ids for prompt in cut}) == 3
        for prompt in cut:
            assert len(prompt.token_ids) == occupied_tokens == sum(part.token_count for part in prompt.parts)
            assert all(split_of(part.name) is Split.FROZEN for part in prompt.parts)
    assert prompts.prompt(family, 2048, 1) == prompts.prompt(family, 2048, 1)


def test_more_than_a_family_holds_is_refused(prompts: PublicPrompts) -> None:
    with pytest.raises(PublicTextError, match=r"family prose holds \d+ tokens"):
        prompts.prompt(Family.PROSE, 163_840, 2)
    with pytest.raises(PublicTextError, match="at least 1 token"):
        prompts.prompt(Family.CODE, 0, 0)


@given(
    st.lists(st.text(alphabet="abcxyz \n", min_size=1, max_size=40), min_size=1, max_size=6),
    st.integers(1, 30),
    st.integers(0, 4),
)
def test_prompts_are_consecutive_slices_of_the_joined_sources(texts: list[str], length: int, index: int) -> None:
    sources = [SourceText.of(f"m{place}", text) for place, text in enumerate(texts)]
    stream = [token for source in sources for token in [0, *encode(source.text)]]
    wanted = stream[index * length : (index + 1) * length]
    if len(wanted) < length:
        with pytest.raises(PublicTextError):
            cut_prompt(Family.CODE, sources, encode, 0, length, index)
        return
    prompt = cut_prompt(Family.CODE, sources, encode, 0, length, index)
    assert list(prompt.token_ids) == wanted
    assert sum(part.token_count for part in prompt.parts) == length
    assert {part.sha256 for part in prompt.parts} <= {source.sha256 for source in sources}


def test_a_prompt_carries_no_text() -> None:
    sources = [SourceText.of("secret", "very private words")]
    assert "private" not in repr(cut_prompt(Family.CODE, sources, encode, 0, 5, 0))


def test_the_order_of_sources_does_not_depend_on_the_order_read() -> None:
    sources = [SourceText.of(f"m{place}", "x" * 10) for place in range(200)]
    assert select_sources(Family.CODE, Split.FROZEN, sources, []) == select_sources(
        Family.CODE, Split.FROZEN, sources[::-1], []
    )
