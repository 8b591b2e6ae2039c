"""Any text comes back as it was, and the end token never comes out of text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.tokenizer import END_TOKEN, ByteTokenizer, TokenizerError, load_tokenizer, train_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER

TOKENIZER = load_tokenizer(EMBEDDED_TOKENIZER)


@given(st.text(max_size=60))
def test_text_comes_back_as_it_was(text: str) -> None:
    token_ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(token_ids) == text
    assert all(0 < token < TOKENIZER.vocabulary_size for token in token_ids)


def test_the_end_token_spelled_in_text_is_ordinary_text() -> None:
    token_ids = TOKENIZER.encode(f"a{END_TOKEN}b")
    assert TOKENIZER.end_token_id not in token_ids
    assert TOKENIZER.decode(token_ids) == f"a{END_TOKEN}b"
    assert TOKENIZER.decode([TOKENIZER.end_token_id, *token_ids]) == f"a{END_TOKEN}b"


def test_a_batch_encodes_as_its_texts() -> None:
    texts = ["import os\n", "", "naïve 你好"]
    assert TOKENIZER.encode_batch(texts) == [TOKENIZER.encode(text) for text in texts]


def test_training_gives_exactly_the_size_asked_for() -> None:
    texts = ["to be or not to be, that is the question"] * 4
    trained = train_tokenizer(iter(texts), 270)
    assert trained.vocabulary_size == 270
    assert trained.decode(trained.encode("the être")) == "the être"
    with pytest.raises(TokenizerError, match="not the 4096 asked for"):
        train_tokenizer(iter(texts), 4096)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": 3}'])
def test_a_wrong_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match="is not a tokenizer JSON document"):
        load_tokenizer(path)


def test_a_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(tmp_path / "none.json")
    foreign = tmp_path / "foreign.json"
    foreign.write_text(TOKENIZER.to_json().replace(END_TOKEN, "<stop>"), encoding="utf-8")
    with pytest.raises(TokenizerError, match="has no"):
        load_tokenizer(foreign)
    assert isinstance(TOKENIZER, ByteTokenizer)
