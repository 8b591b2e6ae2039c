"""What a rank does with frames of another time: counted and dropped, kept for their round, or proof of a loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ranks.candidate_body import encode_candidates
from ranks.entry_walk import EntryWalk
from ranks.frames import Frame, Header, Kind
from ranks.peer_inbox import MAX_WAITING_FRAMES, PeerInbox
from ranks.records import DraftMode
from ranks.round_plan import PlanEntry, RoundPlan
from ranks.verdict import DepthReason
from selector.draft_law import ShardCandidates
from tests.ranks.linked_cores import LinkedCores
from tests.ranks.toy_model import greedy_tokens, request

LAW = 77
ENTRIES = (
    PlanEntry(slot=0, generation=3, request=100, seed=1, position=8, anchor_token_id=1, prefix_digest=5, temperature=1),
    PlanEntry(slot=2, generation=9, request=200, seed=1, position=4, anchor_token_id=2, prefix_digest=6, temperature=1),
)
PLAN = RoundPlan(4, 10, 0, DraftMode.SAMPLED, 3, ENTRIES)
BODY = encode_candidates(ShardCandidates(np.array([5], np.int32), np.array([1.0], np.float32), False))


def open_round() -> tuple[PeerInbox, list[EntryWalk]]:
    inbox = PeerInbox(4, 900, 1, LAW, Kind.CANDIDATES)
    walks = [EntryWalk(entry, PLAN.depth, LAW, entry.prefix_digest) for entry in ENTRIES]
    inbox.begin_round(PLAN, walks)
    return inbox, walks


def frame(**changes: object) -> Frame:
    fields = Header(
        kind=Kind.CANDIDATES,
        source=1,
        law=LAW,
        incarnation=900,
        epoch=4,
        attempt=0,
        slot=0,
        round_number=10,
        generation=3,
        depth=1,
        usable=True,
        request=100,
        sequence=50,
        binding=0,
    )
    return Frame(replace(fields, **changes), BODY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epoch": 3}, "stale_epoch"),
        ({"epoch": 5}, "future_epoch"),
        ({"round_number": 9}, "stale_round"),
        ({"generation": 2}, "stale_generation"),
        ({"request": 101}, "stale_generation"),
        ({"slot": 1}, "unknown_slot"),
        ({"incarnation": 901}, "foreign_incarnation"),
        ({"source": 0}, "foreign_incarnation"),
    ],
)
def test_a_late_or_foreign_frame_is_counted_under_its_reason_and_never_used(
    changes: dict[str, int], reason: str
) -> None:
    inbox, walks = open_round()
    inbox.receive(frame(**changes), PLAN, walks)
    assert dict(inbox.dropped) == {reason: 1}
    assert all(not walk.arrived for walk in walks)


def test_a_frame_of_an_older_attempt_of_the_same_round_is_dropped() -> None:
    inbox, walks = open_round()
    second = replace(PLAN, attempt=1)
    inbox.begin_round(second, walks)
    inbox.receive(frame(), second, walks)
    assert dict(inbox.dropped) == {"stale_round": 1}


def test_a_repeated_frame_is_dropped_and_the_first_one_stands() -> None:
    inbox, walks = open_round()
    inbox.receive(frame(), PLAN, walks)
    inbox.receive(frame(usable=False), PLAN, walks)
    assert dict(inbox.dropped) == {"repeated_sequence": 1}
    first = walks[0].arrived[1]
    assert isinstance(first, Frame)
    assert first.header.usable


def test_a_frame_that_is_ahead_of_its_plan_waits_for_it_and_waiting_is_bounded() -> None:
    inbox, walks = open_round()
    inbox.receive(frame(round_number=11), PLAN, walks)
    assert not walks[0].arrived
    following = replace(PLAN, round_number=11)
    fresh = [EntryWalk(entry, 3, LAW, entry.prefix_digest) for entry in ENTRIES]
    inbox.begin_round(following, fresh)
    assert 1 in fresh[0].arrived
    for number in range(MAX_WAITING_FRAMES + 2):
        inbox.receive(frame(round_number=12, sequence=100 + number), following, fresh)
    assert inbox.dropped["waiting_overflow"] == 2


def test_a_later_frame_proves_that_an_earlier_one_was_lost() -> None:
    inbox, walks = open_round()
    assert inbox.missing(walks, 1)
    inbox.receive(frame(slot=2, generation=9, request=200), PLAN, walks)
    assert not inbox.missing(walks, 1), "the link keeps order, so slot 0's frame is lost"
    assert walks[0].judge(1, 4, 4, 32) is DepthReason.FRAME_MISSING


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": Kind.TOP_TOKEN}, DepthReason.WRONG_KIND),
        ({"law": LAW + 1}, DepthReason.WRONG_LAW),
        ({"binding": 12345}, DepthReason.WRONG_BINDING),
        ({"usable": False}, DepthReason.PEER_UNUSABLE),
    ],
)
def test_an_intact_frame_with_the_wrong_meaning_is_named(changes: dict[str, object], reason: DepthReason) -> None:
    inbox, walks = open_round()
    inbox.receive(frame(**({"binding": walks[0].binding(1)} | changes)), PLAN, walks)
    assert walks[0].judge(1, 4, 4, 32) is reason


def test_a_q_that_is_bound_to_another_prefix_is_refused_although_everything_else_is_right() -> None:
    inbox, walks = open_round()
    elsewhere = EntryWalk(ENTRIES[0], 3, LAW, prefix_digest=999)
    inbox.receive(frame(binding=elsewhere.binding(1)), PLAN, walks)
    assert walks[0].judge(1, 4, 4, 32) is DepthReason.WRONG_BINDING
    inbox, walks = open_round()
    inbox.receive(frame(binding=walks[0].binding(1)), PLAN, walks)
    assert isinstance(walks[0].judge(1, 4, 4, 32), ShardCandidates)


def test_a_reply_that_arrives_after_its_slot_was_given_to_another_request_leaves_that_one_untouched() -> None:
    held: list[bytes] = []

    def wire(rank: int, header: Header, data: bytes) -> bytes | None:
        if (rank, header.kind, header.round_number, header.depth) == (1, Kind.CANDIDATES, 2, 1):
            held.append(data)
            return None
        if held and rank == 1 and header.generation == 2:
            return held.pop() + data
        return data

    bed = LinkedCores(wire=wire, slot_count=1)
    first, second = request("a"), request("bb")
    bed.run([first, second])
    assert not held, "the late reply was never delivered"
    assert sum(bed.sides[0].core.inbox.dropped.values()) == 1
    assert tuple(bed.released["bb"]) == greedy_tokens(second.prompt_token_ids, 12)
    assert all(e.verdict.usable_depth == 3 for e in bed.rounds if e.request.spec.request_id == "bb")
