"""Failures that two-rank verifiers had in public, each as its kind on linked cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranks.draw_depth import DrawnDepth
from ranks.frames import Header, Kind
from ranks.rank_core import RankCore
from ranks.rank_events import DepthDrawn, Effect, Event, SendAck
from ranks.records import DraftMode, RequestStatus
from ranks.verdict import DepthReason
from selector.law_digest import counts_digest
from selector.law_ids import EXACT_LAW_ID
from tests.ranks.linked_cores import LinkedCores
from tests.ranks.toy_model import HALF, greedy_tokens, request


def test_ranks_draw_apart_another_drafted_token_on_one_rank_is_found_before_the_verify() -> None:
    def other_token(rank: int, drawn: DepthDrawn) -> DepthDrawn:
        if rank == 0 or drawn.depth != 2:
            return drawn
        results = []
        for result in drawn.results:
            assert isinstance(result, DrawnDepth)
            token = next(int(t) for t in result.draft_counts.token_ids if int(t) != result.token_id)
            results.append(
                DrawnDepth(token, result.draft_counts, counts_digest(result.draft_counts, token, EXACT_LAW_ID))
            )
        return DepthDrawn(drawn.depth, tuple(results))

    bed = LinkedCores(tamper=other_token)
    spec = request("a")
    bed.run([spec])
    assert {(e.verdict.usable_depth, e.verdict.reason) for e in bed.rounds} == {(1, DepthReason.RANKS_DISAGREE)}
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


class OtherLength(LinkedCores):
    """Rank 1 acknowledges one accepted draft more than it has, in its third round."""

    acknowledged = 0

    def _carry_out(self, rank: int, effect: Effect) -> Event | None:
        if isinstance(effect, SendAck) and rank == 1:
            self.acknowledged += 1
            if self.acknowledged == 3:
                entries = tuple(replace(entry, accepted=entry.accepted + 1) for entry in effect.entries)
                effect = replace(effect, entries=entries)
        return super()._carry_out(rank, effect)


def test_ranks_draw_apart_another_accepted_length_releases_nothing_and_is_told_apart_from_a_hang() -> None:
    bed = OtherLength()
    spec = request("a")
    bed.run([spec])
    assert [loss.reason for loss in bed.losses] == ["state_digest"]
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)
    assert 3 not in {entry.plan.round_number for entry in bed.rounds}, "the round that differed was released"


def test_ranks_shape_apart_a_rank_of_another_depth_is_refused_and_nothing_hangs() -> None:
    bed = LinkedCores(depth=3)
    bed.sides[1].core = RankCore(1, DraftMode.SAMPLED, 2, HALF)
    spec = request("a")
    bed.run([spec])
    # The first epoch never begins on the odd rank; its replacement has the right depth.
    assert bed.losses
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


def test_life_warmup_validity_a_first_round_whose_q_was_never_written_is_target_only() -> None:
    def nothing_in_round_one(rank: int, header: Header, data: bytes) -> bytes | None:
        return None if header.kind is Kind.CANDIDATES and header.round_number == 1 else data

    bed = LinkedCores(wire=nothing_in_round_one)
    spec = request("a")
    bed.run([spec])
    assert (bed.rounds[0].verdict.usable_depth, bed.rounds[0].entry.accepted) == (0, 0)
    assert {entry.verdict.usable_depth for entry in bed.rounds[1:]} == {3}
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


@pytest.mark.parametrize("mode", [DraftMode.GREEDY, DraftMode.SAMPLED])
def test_life_placeholder_token_rows_without_drafts_feed_a_valid_id(mode: DraftMode) -> None:
    def no_drafts(rank: int, header: Header, data: bytes) -> bytes | None:
        return data if header.kind is Kind.VOTE or rank == 0 else None

    bed = LinkedCores(draft_mode=mode, wire=no_drafts)
    spec = request("a")
    bed.run([spec])  # the linked cores assert that every row holds ids of the vocabulary
    assert bed.ended["a"][0] is RequestStatus.BUDGET
    assert {entry.verdict.usable_depth for entry in bed.rounds} == {0}
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


def test_life_same_id_new_epoch_a_request_that_comes_back_is_served_from_its_prompt() -> None:
    bed = LinkedCores(slot_count=1)
    spec = request("a")
    bed.run([spec])
    first = list(bed.released["a"])
    bed.driver.log.forget_request(bed.rounds[0].request.request)
    bed.released.clear()
    bed.ended.clear()
    bed.run([spec])
    assert bed.released["a"] == first
    assert bed.rounds[-1].plan.entries[0].generation == 2


def test_sem_counts_drafted_accepted_and_emitted_are_counted_by_their_definitions() -> None:
    bed = LinkedCores()
    bed.run([request("a", count=200)])
    accepted = [entry.entry.accepted for entry in bed.rounds]
    emitted = [len(entry.entry.token_ids) for entry in bed.rounds]
    assert emitted == [count + 1 for count in accepted]
    assert 0 < sum(accepted) < 3 * len(accepted), "acceptance is neither nothing nor everything"
    assert sum(len(entry.token_ids) for entry in bed.rounds) == 200
