"""Small pure parts of the protocol: ladder, bodies, votes, bindings, messages, the commit log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ranks.active_request import ActiveRequest
from ranks.binding import EMPTY_PREFIX, binding_digest, extend_prefix
from ranks.candidate_body import (
    BodyFault,
    DepthVote,
    decode_candidates,
    decode_votes,
    encode_candidates,
    encode_votes,
)
from ranks.commit_log import CommitConflict, CommitLog, CommittedToken
from ranks.records import DraftMode
from ranks.round_plan import MessageError, RoundVerdict, VerdictEntry, decode_message, encode_message
from ranks.timeout_ladder import CPU_LADDER, TimeoutLadder
from ranks.verdict import FRAME_FAULTS, DepthReason, reason_number, reason_of, spec_depth
from selector.draft_law import ShardCandidates, shard_candidates
from tests.ranks.toy_model import request


@pytest.mark.parametrize("vote_timeout_ms", [-1, 0])
def test_a_deadline_of_nothing_or_less_is_refused_when_the_ladder_is_made(vote_timeout_ms: int) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TimeoutLadder.model_validate(CPU_LADDER.model_dump() | {"vote_timeout_ms": vote_timeout_ms})


def test_a_vote_deadline_of_one_millisecond_is_lawful() -> None:
    assert TimeoutLadder.model_validate(CPU_LADDER.model_dump() | {"vote_timeout_ms": 1}).vote_timeout_ms == 1


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ("vote_timeout_ms", "commit_timeout_ms"),
        ("commit_timeout_ms", "group_timeout_ms"),
        ("group_timeout_ms", "ray_get_timeout_ms"),
        ("ray_get_timeout_ms", "watchdog_timeout_ms"),
    ],
)
def test_a_ladder_that_does_not_rise_is_refused_with_both_values(lower: str, upper: str) -> None:
    with pytest.raises(ValidationError, match=f"{lower}=.* must be below {upper}="):
        TimeoutLadder.model_validate(CPU_LADDER.model_dump() | {lower: getattr(CPU_LADDER, upper)})


LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60)


@given(LOGITS, st.integers(0, 1))
def test_candidates_arrive_as_sent(values: list[float], rank: int) -> None:
    row = shard_candidates(np.array(values, np.float32), rank * 64)
    back = decode_candidates(encode_candidates(row), rank * 64, 64)
    assert isinstance(back, ShardCandidates)
    assert back.token_ids.tolist() == row.token_ids.tolist()
    assert back.logits.tobytes() == row.logits.tobytes()


@given(st.binary(max_size=300))
def test_no_body_makes_the_decoders_raise(body: bytes) -> None:
    assert isinstance(decode_candidates(body, 0, 64), ShardCandidates | BodyFault)
    assert isinstance(decode_votes(body, 3), tuple | BodyFault)


def row(token_ids: list[int], logits: list[float]) -> bytes:
    return encode_candidates(ShardCandidates(np.array(token_ids, np.int32), np.array(logits, np.float32), False))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (row([64], [1.0]), BodyFault.OUTSIDE_SHARD),
        (row([-1], [1.0]), BodyFault.OUTSIDE_SHARD),
        (row([1, 2], [1.0, 2.0]), BodyFault.ORDER),
        (row([2, 1], [1.0, 1.0]), BodyFault.ORDER),
        (row([1, 1], [1.0, 1.0]), BodyFault.ORDER),
        (row([1], [float("nan")]), BodyFault.NOT_FINITE),
        (row([1], [float("inf")]), BodyFault.NOT_FINITE),
        (row(list(range(33)), [1.0] * 33), BodyFault.TOO_MANY),
        (row([1], [1.0])[:-1], BodyFault.LENGTH),
        (row([1], [1.0]) + b"x", BodyFault.LENGTH),
        (b"\x02\x00\x00\x00", BodyFault.RESERVED_BITS),
        (b"", BodyFault.LENGTH),
    ],
)
def test_an_intact_body_with_unlawful_content_is_named(body: bytes, fault: BodyFault) -> None:
    assert decode_candidates(body, 0, 64) is fault


def vote(usable: bool = True, digest: int = 7, reason: DepthReason = DepthReason.NONE) -> DepthVote:
    return DepthVote(usable, digest, reason_number(reason))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**64 - 1)), max_size=8))
def test_votes_arrive_as_sent(fields: list[tuple[bool, int]]) -> None:
    votes = tuple(vote(usable, digest) for usable, digest in fields)
    assert decode_votes(encode_votes(votes), len(votes)) == votes


def test_all_depths_equal_and_usable_is_spec_of_the_depth() -> None:
    assert spec_depth([vote()] * 5, [vote()] * 5) == (5, DepthReason.NONE)


@pytest.mark.parametrize("fault", sorted(FRAME_FAULTS))
@pytest.mark.parametrize("depth", [0, 2, 4])
@pytest.mark.parametrize("on_peer", [False, True])
def test_a_frame_fault_at_any_depth_on_either_rank_leaves_no_depth(
    fault: DepthReason, depth: int, on_peer: bool
) -> None:
    good, bad = [vote()] * 5, [vote()] * 5
    bad[depth] = vote(usable=False, reason=fault)
    own, peer = (good, bad) if on_peer else (bad, good)
    assert spec_depth(own, peer) == (0, fault)


@pytest.mark.parametrize("fault", sorted(set(DepthReason) - FRAME_FAULTS - {DepthReason.NONE}))
def test_a_content_fault_truncates_at_its_depth(fault: DepthReason) -> None:
    bad = [vote(), vote(), vote(usable=False, reason=fault), vote()]
    assert spec_depth([vote()] * 4, bad) == (2, fault)
    assert spec_depth(bad, [vote()] * 4) == (2, fault)


def test_unequal_digests_truncate_where_they_differ_and_no_vote_is_target_only() -> None:
    assert spec_depth([vote()] * 3, [vote(), vote(digest=8), vote()]) == (1, DepthReason.RANKS_DISAGREE)
    assert spec_depth([vote()] * 3, None) == (0, DepthReason.VOTE_MISSING)


def test_reasons_have_fixed_numbers_and_an_unknown_number_is_refused_content() -> None:
    assert [reason_of(reason_number(reason)) for reason in DepthReason] == list(DepthReason)
    assert reason_number(DepthReason.NONE) == 0
    assert reason_of(200) is DepthReason.CONTENT_REFUSED


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(0, 20))
def test_a_prefix_digest_does_not_depend_on_how_it_grew(tokens: list[int], cut: int) -> None:
    whole = extend_prefix(EMPTY_PREFIX, tokens)
    assert extend_prefix(extend_prefix(EMPTY_PREFIX, tokens[:cut]), tokens[cut:]) == whole


def test_a_binding_changes_with_each_of_its_fields() -> None:
    fields = [11, 22, 33, 1, 44]
    digests = {binding_digest(*fields)}
    for index in range(5):
        changed = list(fields)
        changed[index] += 1
        digests.add(binding_digest(*changed))
    assert len(digests) == 6


def test_a_message_reads_back_and_a_foreign_field_is_refused_in_one_sentence() -> None:
    message = RoundVerdict(1, 2, 0, (VerdictEntry(0, 2**63, 5, ""),))
    assert decode_message(encode_message(message)) == message
    with pytest.raises(MessageError, match="control message refused at"):
        decode_message(encode_message(message).replace(b'"usable_depth":5', b'"usable_depth":5,"hurry":1'))
    with pytest.raises(MessageError):
        decode_message(b"\xff")


def committed(position: int, token_id: int) -> CommittedToken:
    return CommittedToken(9, position, token_id, 1, 5, (1, 1))


def test_the_log_releases_a_place_once_and_refuses_another_token_there() -> None:
    log = CommitLog()
    assert log.release(committed(4, 17))
    assert not log.release(committed(4, 17))
    with pytest.raises(CommitConflict, match="token 18 after token 17"):
        log.release(committed(4, 18))
    assert [token.token_id for token in log.tokens] == [17]
    log.forget_request(9)
    assert log.release(committed(4, 18))


def test_delivery_stops_behind_a_stop_token_and_at_the_budget() -> None:
    active = ActiveRequest.from_spec(request("a", count=4), DraftMode.SAMPLED, 5)
    active.stop_token_ids = (7,)
    assert active.deliverable((1, 7, 2, 3)) == (1, 7)
    assert active.deliverable((1, 2, 3, 4, 5, 6)) == (1, 2, 3, 4)
    active.extend((1, 2, 3))
    assert active.deliverable((4, 5)) == (4,)
