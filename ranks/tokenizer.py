"""Byte-level BPE of the embedded model: text to token ids and back.

Any text encodes and decodes to itself. The end token is id 0 and never comes out of ordinary text.
Source: the `tokenizers` package; DESIGN section 8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["END_TOKEN", "END_TOKEN_ID", "ByteTokenizer", "TokenizerError", "load_tokenizer", "train_tokenizer"]

END_TOKEN = "<|end|>"
END_TOKEN_ID = 0


class TokenizerError(ValueError):
    """The tokenizer file is missing, unreadable or not of this model's kind; the message says which."""


class ByteTokenizer:
    """Encode and decode with one fixed vocabulary; `digest` is the sha-256 of its JSON."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self.vocabulary_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.end_token_id: int = END_TOKEN_ID
        self.digest: str = hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return token ids of `text`; the end token's spelling inside the text is ordinary text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids of every text, in order."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`; end tokens give nothing, broken UTF-8 gives replacement characters."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def to_json(self) -> str:
        """Return the tokenizer as JSON, without line breaks."""
        document: str = self._tokenizer.to_str()
        return document


def load_tokenizer(path: Path) -> ByteTokenizer:
    """Read a tokenizer file. Raises TokenizerError."""
    try:
        document = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read ({error}); a tokenizer JSON file was expected") from error
    try:
        tokenizer = Tokenizer.from_str(document)
    except Exception as error:  # the package raises bare Exception for every kind of bad document
        raise TokenizerError(f"{path}: is not a tokenizer JSON document ({error})") from error
    if tokenizer.token_to_id(END_TOKEN) != END_TOKEN_ID:
        raise TokenizerError(f"{path}: has no {END_TOKEN} with id {END_TOKEN_ID}; train it with this model's script")
    return ByteTokenizer(tokenizer)


def train_tokenizer(texts: Iterator[str], vocabulary_size: int) -> ByteTokenizer:
    """Train byte-level BPE of exactly `vocabulary_size` entries (end token and 256 bytes included)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[AddedToken(END_TOKEN, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        found = tokenizer.get_vocab_size()
        raise TokenizerError(f"the texts give {found} entries, not the {vocabulary_size} asked for")
    return ByteTokenizer(tokenizer)
