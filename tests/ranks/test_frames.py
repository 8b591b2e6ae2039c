"""Frames: what is sent arrives, what is damaged is named, and no bytes ever raise."""

from __future__ import annotations

from itertools import combinations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.frames import (
    ABI_VERSION,
    HEADER_BYTES,
    MAX_BODY_BYTES,
    BrokenFrame,
    Frame,
    FrameDecoder,
    FrameFault,
    Header,
    Kind,
    encode_frame,
)

U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    source=st.integers(0, 2),
    law=U64,
    incarnation=U64,
    epoch=st.integers(0, 2**32 - 1),
    attempt=st.integers(0, 2**16 - 1),
    slot=st.integers(0, 2**16 - 1),
    round_number=U64,
    generation=st.integers(0, 2**32 - 1),
    depth=st.integers(0, 8),
    usable=st.booleans(),
    request=U64,
    sequence=U64,
    binding=U64,
)
PLAIN = Header(Kind.VOTE, 1, 2, 3, 4, 5, 6, 7, 8, 0, True, 9, 10, 11)


def test_the_checksum_is_the_compiled_one() -> None:
    assert google_crc32c.implementation == "c"


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=300)), min_size=1, max_size=5), st.integers(1, 97))
def test_frames_arrive_as_sent_however_the_stream_is_cut(frames: list[tuple[Header, bytes]], piece: int) -> None:
    stream = b"".join(encode_frame(header, body) for header, body in frames)
    decoder = FrameDecoder()
    answers = [answer for at in range(0, len(stream), piece) for answer in decoder.feed(stream[at : at + piece])]
    assert answers == [Frame(header, body) for header, body in frames]
    assert decoder.pending_bytes() == 0


@given(st.binary(max_size=2000))
def test_no_bytes_make_the_decoder_raise(noise: bytes) -> None:
    decoder = FrameDecoder()
    answers = decoder.feed(noise)
    assert all(isinstance(answer, Frame | BrokenFrame) for answer in answers)
    assert decoder.pending_bytes() <= len(noise)


@given(HEADERS, st.binary(max_size=64), st.binary(max_size=64), st.data())
def test_after_damage_the_next_sound_frame_is_found(
    header: Header, body: bytes, noise: bytes, data: st.DataObject
) -> None:
    sent = bytearray(encode_frame(header, body))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    answers = FrameDecoder().feed(bytes(sent) + noise + encode_frame(PLAIN, b"ok"))
    assert answers[-1] == Frame(PLAIN, b"ok")
    assert Frame(header, body) not in answers[:-1]


def test_every_error_of_one_and_two_bits_in_a_header_is_caught() -> None:
    sent = encode_frame(PLAIN, b"")
    bits = range(8 * HEADER_BYTES)
    for chosen in [(bit,) for bit in bits] + list(combinations(bits, 2)):
        damaged = bytearray(sent)
        for bit in chosen:
            damaged[bit // 8] ^= 1 << bit % 8
        assert not any(isinstance(answer, Frame) for answer in FrameDecoder().feed(bytes(damaged))), chosen


def test_a_damaged_body_keeps_its_trusted_header() -> None:
    sent = bytearray(encode_frame(PLAIN, b"body"))
    sent[-1] ^= 1
    assert FrameDecoder().feed(bytes(sent)) == [BrokenFrame(FrameFault.BODY_CHECK, PLAIN, len(sent))]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"abi": ABI_VERSION + 1}, FrameFault.OTHER_ABI),
        ({"source": 3}, FrameFault.RESERVED_BITS),
        ({"depth": 9}, FrameFault.RESERVED_BITS),
    ],
)
def test_an_intact_header_of_another_kind_or_version_is_refused(change: dict[str, int], reason: FrameFault) -> None:
    import dataclasses

    sent = encode_frame(dataclasses.replace(PLAIN, **change), b"")  # type: ignore[arg-type]
    answers = FrameDecoder().feed(sent)
    assert [answer.fault for answer in answers if isinstance(answer, BrokenFrame)] == [reason]


def test_a_truncated_frame_stays_pending_and_is_not_a_frame() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode_frame(PLAIN, b"0123456789")[:-1]) == []
    assert decoder.pending_bytes() == HEADER_BYTES + 9


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode_frame(PLAIN, bytes(MAX_BODY_BYTES + 1))
