"""The protocol on two linked ranks: same tokens whatever the order, faults cost drafts, failures lose nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ranks.draw_depth import DrawnDepth
from ranks.frames import HEADER_BYTES, Header, Kind
from ranks.rank_core import TRANSITIONS, Phase, RankCore
from ranks.rank_events import DepthDrawn, PeerClosed, PlanArrived
from ranks.records import DraftMode, RequestSpec, RequestStatus
from ranks.verdict import DepthReason
from selector.draft_law import DraftCounts
from selector.law_digest import counts_digest
from selector.law_ids import EXACT_LAW_ID
from tests.ranks.linked_cores import LinkedCores, WireFilter
from tests.ranks.toy_model import DRAFTER, greedy_tokens, request

Tamper = Callable[[int, DepthDrawn], DepthDrawn]
MODES = (DraftMode.GREEDY, DraftMode.SAMPLED)


def four(temperature: int = 0) -> list[RequestSpec]:
    return [request(name, temperature) for name in ("a", "bb", "ccc", "dddd")]


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("mode", MODES)
def test_greedy_speculation_gives_the_tokens_of_plain_decoding(mode: DraftMode, depth: int) -> None:
    specs = four()
    bed = LinkedCores(seed=depth, draft_mode=mode, depth=depth)
    bed.run(specs)
    for spec in specs:
        assert tuple(bed.released[spec.request_id]) == greedy_tokens(spec.prompt_token_ids, 12)
    assert any(entry.entry.accepted for entry in bed.rounds), "no draft was ever accepted"
    assert all(entry.verdict.usable_depth == depth for entry in bed.rounds)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(MODES))
def test_the_order_of_deliveries_changes_no_token(seed: int, mode: DraftMode) -> None:
    reference = LinkedCores(seed=1, draft_mode=mode)
    reference.run(four(1))
    other = LinkedCores(seed=seed, draft_mode=mode)
    other.run(four(1))
    assert other.released == reference.released


@settings(max_examples=15)
@given(order=st.permutations(range(4)), slot_count=st.integers(1, 4))
def test_permuting_requests_and_another_batch_size_change_no_token(order: list[int], slot_count: int) -> None:
    reference = LinkedCores()
    reference.run(four(1))
    specs = four(1)
    other = LinkedCores(seed=5, slot_count=slot_count)
    other.run([specs[index] for index in order])
    assert other.released == reference.released


def damage(kind: Kind, source: int, depth: int, action: str, round_number: int = 2) -> WireFilter:
    """Return a wire that drops, or flips one byte of, one frame of one round."""

    def wire(rank: int, header: Header, data: bytes) -> bytes | None:
        if (header.kind, rank, header.depth, header.round_number) != (kind, source, depth, round_number):
            return data
        if action == "drop":
            return None
        place = HEADER_BYTES if action == "flip body" else 20
        return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]

    return wire


@pytest.mark.parametrize("action", ["drop", "flip header", "flip body"])
@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_missing_or_damaged_frame_makes_that_round_target_only_on_both_ranks(
    action: str, source: int, depth: int
) -> None:
    bed = LinkedCores(wire=damage(Kind.CANDIDATES, source, depth, action))
    spec = request("a")
    bed.run([spec])
    by_round = {entry.plan.round_number: entry for entry in bed.rounds}
    assert by_round[2].verdict.usable_depth == 0
    # Nothing follows rank 0's last frame that would prove it lost, so there rank 0 may run out of time for the vote.
    last = {DepthReason.VOTE_MISSING} if (source, depth) == (0, 3) else set()
    assert by_round[2].verdict.reason in {DepthReason.FRAME_MISSING, DepthReason.FRAME_DAMAGED} | last
    assert by_round[2].acks[0].entries == by_round[2].acks[1].entries
    assert by_round[3].verdict.usable_depth == 3, "speculation did not come back in the next round"
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)
    assert not bed.losses, "a bad frame is no failure"


@pytest.mark.parametrize("action", ["drop", "flip header", "flip body"])
def test_a_missing_or_damaged_vote_makes_that_round_target_only(action: str) -> None:
    bed = LinkedCores(wire=damage(Kind.VOTE, 1, 0, action))
    bed.run([request("a")])
    second = next(entry for entry in bed.rounds if entry.plan.round_number == 2)
    assert (second.verdict.usable_depth, second.verdict.reason) == (0, DepthReason.VOTE_MISSING)
    assert not bed.losses


def test_a_damaged_frame_of_one_request_leaves_its_batch_mates_their_drafts() -> None:
    def wire(rank: int, header: Header, data: bytes) -> bytes | None:
        hit = header.kind is Kind.CANDIDATES and rank == 0 and header.slot == 1 and header.depth == 2
        return None if hit and header.round_number == 4 else data

    bed = LinkedCores(wire=wire)
    bed.run(four())
    fourth = {entry.verdict.slot: entry.verdict.usable_depth for entry in bed.rounds if entry.plan.round_number == 4}
    assert fourth == {0: 3, 1: 0, 2: 3, 3: 3}


def test_an_invalid_draft_row_truncates_at_its_depth_and_not_the_whole_round() -> None:
    def sometimes_nan(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        logits = DRAFTER(prefix)
        return np.full_like(logits, np.nan) if len(prefix) == 6 else logits

    bed = LinkedCores(drafters=(sometimes_nan, sometimes_nan))
    spec = request("a")
    bed.run([spec])
    reasons = {entry.verdict.reason: entry.verdict.usable_depth for entry in bed.rounds}
    first = bed.rounds[0].verdict
    assert (first.usable_depth, first.reason) == (2, DepthReason.INVALID_ROW), reasons
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


def test_what_a_rank_sends_is_what_both_merge_so_its_own_last_bit_cannot_split_them() -> None:
    def one_ulp(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        logits = DRAFTER(prefix)
        return np.nextafter(logits, np.float32(np.inf))

    bed = LinkedCores(drafters=(DRAFTER, one_ulp))
    bed.run([request("a")])
    assert {entry.verdict.usable_depth for entry in bed.rounds} == {3}


def test_ranks_that_hold_different_counts_disagree_and_nothing_behind_that_depth_is_accepted() -> None:
    bed = LinkedCores(tamper=other_counts_on_rank_1(depths=(2,)))
    spec = request("a")
    bed.run([spec])
    assert {(e.verdict.usable_depth, e.verdict.reason) for e in bed.rounds} == {(1, DepthReason.RANKS_DISAGREE)}
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)


def other_counts_on_rank_1(depths: tuple[int, ...]) -> Tamper:
    """Return a fault that moves one count between two candidates on rank 1 only, digest and all."""

    def tamper(rank: int, drawn: DepthDrawn) -> DepthDrawn:
        if rank == 0 or drawn.depth not in depths:
            return drawn
        return DepthDrawn(drawn.depth, tuple(_moved(r) if isinstance(r, DrawnDepth) else r for r in drawn.results))

    return tamper


def _moved(drawn: DrawnDepth) -> DrawnDepth:
    counts = drawn.draft_counts.counts.copy()
    counts[0] += 1
    counts[-1] -= 1
    law = DraftCounts(drawn.draft_counts.token_ids, counts)
    return DrawnDepth(drawn.token_id, law, counts_digest(law, drawn.token_id, EXACT_LAW_ID))


def test_disagreement_for_ever_ends_the_epoch_and_is_never_silent() -> None:
    bed = LinkedCores(tamper=other_counts_on_rank_1(depths=(1, 2, 3)))
    bed.run([request("a", count=40)])
    assert [loss.reason for loss in bed.losses][:1] == ["disagreements"]


def test_a_token_that_its_draw_does_not_pick_ends_the_epoch_and_releases_nothing_of_the_round() -> None:
    def swapped(rank: int, drawn: DepthDrawn) -> DepthDrawn:
        results = []
        for result in drawn.results:
            assert isinstance(result, DrawnDepth)
            other = next(int(t) for t in result.draft_counts.token_ids if int(t) != result.token_id)
            results.append(
                DrawnDepth(other, result.draft_counts, counts_digest(result.draft_counts, other, EXACT_LAW_ID))
            )
        return DepthDrawn(drawn.depth, tuple(results))

    bed = LinkedCores(tamper=swapped)
    bed.run([request("a")])
    assert {loss.reason for loss in bed.losses} == {"q_x_mismatch"}
    status, failure = bed.ended["a"]
    assert status is RequestStatus.FAILED
    assert "q_x_mismatch" in failure
    assert bed.released["a"] == []


def test_a_digest_that_changed_after_the_draw_makes_that_depth_unusable() -> None:
    def stale_digest(rank: int, drawn: DepthDrawn) -> DepthDrawn:
        if drawn.depth != 2:
            return drawn
        results = tuple(
            DrawnDepth(r.token_id, r.draft_counts, r.digest ^ 1) if isinstance(r, DrawnDepth) else r
            for r in drawn.results
        )
        return DepthDrawn(drawn.depth, results)

    bed = LinkedCores(tamper=stale_digest)
    bed.run([request("a")])
    assert {(e.verdict.usable_depth, e.verdict.reason) for e in bed.rounds} == {(1, DepthReason.DIGEST_CHANGED)}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_at_any_step_loses_repeats_and_reorders_no_token(rank: int) -> None:
    specs = [request("a", 1), request("bb", 1)]
    reference = LinkedCores()
    reference.run(specs)
    lost = 0
    for step in range(reference.deliveries):
        bed = LinkedCores()
        bed.run(specs, kill=(rank, step))
        assert bed.released == reference.released, f"rank {rank} killed at step {step}"
        lost += len(bed.losses)
    assert lost > 0.9 * reference.deliveries, "the kills were not felt"


def test_a_sound_run_drops_no_frame() -> None:
    bed = LinkedCores()
    bed.run(four(1))
    assert [dict(side.core.inbox.dropped) for side in bed.sides] == [{}, {}]


def test_an_event_that_the_table_does_not_list_is_counted_and_changes_nothing() -> None:
    core = RankCore(0, DraftMode.SAMPLED, 5, 4)
    assert core.handle(PeerClosed()) == []
    assert core.phase is Phase.FENCED
    assert core.inbox.dropped == {"unexpected_PeerClosed_in_fenced": 1}
    assert (Phase.FENCED, PlanArrived) not in TRANSITIONS


def test_a_plan_with_another_switch_than_the_process_has_is_refused_with_both_values() -> None:
    bed = LinkedCores(draft_mode=DraftMode.GREEDY)
    bed.run([request("a")], mode=DraftMode.SAMPLED)
    assert bed.ended["a"][0] is RequestStatus.FAILED
    assert {loss.reason for loss in bed.losses} == {"switch_mismatch"}
    assert "sampled" in bed.losses[0].detail
    assert "greedy" in bed.losses[0].detail
