"""Philox: known answers, named draws, disjoint purposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.philox import Purpose, draw24, draw53, draw64, draw_words, philox4x32, request_key

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)

KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words_of(text: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_the_published_known_answers_hold(counter: str, key: str, answer: str) -> None:
    assert philox4x32(words_of(counter), words_of(key)).tolist() == words_of(answer).tolist()


def test_nine_rounds_would_be_caught_by_the_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selector.philox._ROUNDS", 9)
    for counter, key, answer in KNOWN_ANSWERS:
        assert philox4x32(words_of(counter), words_of(key)).tolist() != words_of(answer).tolist()


def test_a_stack_of_counters_gives_each_counter_its_own_block() -> None:
    counters = np.stack([words_of(counter) for counter, _, _ in KNOWN_ANSWERS])
    keys = np.stack([words_of(key) for _, key, _ in KNOWN_ANSWERS])
    assert philox4x32(counters, keys).tolist() == [words_of(answer).tolist() for _, _, answer in KNOWN_ANSWERS]


def test_counters_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counters \(\.\.\., 4\)"):
        philox4x32(np.zeros(3, dtype=np.uint32), np.zeros(2, dtype=np.uint32))


@given(seed=U64, key=U64, position=U32, purpose=st.sampled_from(Purpose))
def test_a_named_draw_is_the_philox_block_of_its_name(seed: int, key: int, position: int, purpose: Purpose) -> None:
    counter = np.array([key & 0xFFFFFFFF, key >> 32, position, purpose], dtype=np.uint32)
    block = philox4x32(counter, np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32))
    assert list(draw_words(seed, key, position, purpose)) == block.tolist()


@given(seed=U64, key=U64, position=U32)
def test_the_four_purposes_are_disjoint_streams(seed: int, key: int, position: int) -> None:
    blocks = {draw_words(seed, key, position, purpose) for purpose in Purpose}
    assert len(blocks) == 4


def test_no_two_names_of_a_busy_window_share_a_block() -> None:
    names = [
        (seed, key, position, purpose)
        for seed in (7, 4103)
        for key in (1, 2, 1 << 63)
        for position in range(400)
        for purpose in Purpose
    ]
    assert len({draw_words(*name) for name in names}) == len(names)


def test_a_draw_depends_on_its_name_and_not_on_the_order_of_calls() -> None:
    names = [(3, 5, position, purpose) for position in range(20) for purpose in Purpose]
    forward = [draw_words(*name) for name in names]
    backward = [draw_words(*name) for name in reversed(names)]
    assert forward == backward[::-1]


def test_purposes_have_the_registered_numbers() -> None:
    assert [(purpose.name, purpose.value) for purpose in Purpose] == [
        ("PROPOSAL", 1),
        ("ACCEPTANCE", 2),
        ("RESIDUAL", 3),
        ("TARGET_ONLY", 4),
    ]


def test_draws_take_the_top_bits_of_their_words() -> None:
    words = (0xABCDEF12, 0xFFFFFFFF, 0x80000000, 0x00000800)
    assert draw24(words) == 0xABCDEF
    assert draw53(words, 0) == 0xABCDEF12FFFFFFFF >> 11
    assert draw53(words, 1) == (1 << 52) + 1
    assert draw64(words, 1) == 0x8000000000000800


@given(st.tuples(U32, U32, U32, U32), st.sampled_from([0, 1]))
def test_every_draw_stays_in_its_range(words: tuple[int, int, int, int], lane: int) -> None:
    assert 0 <= draw24(words) < 1 << 24
    assert 0 <= draw53(words, lane) < 1 << 53
    assert 0 <= draw64(words, lane) < 1 << 64


def test_another_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="lane is 2"):
        draw53((0, 0, 0, 0), 2)


def test_the_request_key_names_digest_and_sample() -> None:
    digest = bytes(range(32))
    keys = {request_key(digest, 0), request_key(digest, 1), request_key(bytes(32), 0), request_key(digest[:31], 0)}
    assert len(keys) == 4
    assert all(0 <= key < 1 << 64 for key in keys)
    assert request_key(digest, 0) == request_key(bytes(bytearray(digest)), 0)


@pytest.mark.parametrize(("digest", "sample"), [(b"", 0), (b"x", -1), (b"x", 1 << 64)])
def test_a_request_without_a_lawful_name_is_refused(digest: bytes, sample: int) -> None:
    with pytest.raises(ValueError, match=r"request_digest|sample_index"):
        request_key(digest, sample)


@pytest.mark.parametrize(("seed", "key", "position"), [(-1, 0, 0), (1 << 64, 0, 0), (0, -1, 0), (0, 0, 1 << 32)])
def test_a_draw_out_of_range_is_refused_and_never_wrapped(seed: int, key: int, position: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        draw_words(seed, key, position, Purpose.PROPOSAL)


def test_a_purpose_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="5 is not a valid Purpose"):
        draw_words(0, 0, 0, 5)  # type: ignore[arg-type]
