"""Real ranks under faults: bad frames cost drafts, dead ranks cost an epoch, and nothing costs a token."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from faults.link_shim import LINK_SHIM
from faults.schedule import FrameFault, dump_schedule
from ranks.bed import Bed, start_bed
from ranks.bed_records import ReleaseEvent
from ranks.process_identity import is_alive
from ranks.ray_session import RaySession
from ranks.records import DraftMode, RequestResult, RequestStatus
from ranks.timeout_ladder import TimeoutLadder
from ranks.weights import EMBEDDED_WEIGHTS
from tests.ranks.real_requests import spec

pytestmark = [pytest.mark.real, pytest.mark.slow]

QUICK = TimeoutLadder(
    vote_timeout_ms=1500,
    commit_timeout_ms=5000,
    group_timeout_ms=20000,
    ray_get_timeout_ms=60000,
    watchdog_timeout_ms=90000,
)


@pytest.fixture(scope="module")
def sound(ray_session: RaySession) -> Iterator[Bed]:
    with start_bed("cpu", EMBEDDED_WEIGHTS, DraftMode.SAMPLED, 5, session=ray_session, ladder=QUICK) as bed:
        yield bed


@pytest.fixture(scope="module")
def expected(sound: Bed) -> dict[int, tuple[int, ...]]:
    """Greedy and sampled tokens of one prompt without any fault."""
    return {temperature: sound.run([spec(0, temperature, 40)])[0].token_ids for temperature in (0, 1)}


def frame_fault(name: str, source: int, round_number: int, **changes: object) -> FrameFault:
    fields: dict[str, object] = {
        "id": name,
        "source": source,
        "kind": "candidates",
        "round_number": round_number,
        "depth": 3,
        "slot": None,
        "op": "flip",
        "place": "body",
        "byte": 9,
        "bit": 2,
    }
    return FrameFault.model_validate(fields | changes)


FAULTS = (
    frame_fault("flip-0", 0, 3),
    frame_fault("flip-1", 1, 5),
    frame_fault("drop-0", 0, 7, op="drop", depth=1),
    frame_fault("drop-1", 1, 9, op="drop", depth=5),
    frame_fault("header-0", 0, 11, place="header", byte=40, depth=2),
    frame_fault("vote-1", 1, 13, kind="vote", depth=None, op="drop"),
)


@pytest.mark.parametrize("mode", [DraftMode.GREEDY, DraftMode.SAMPLED])
def test_a_flipped_byte_or_a_missing_frame_on_either_rank_makes_that_round_target_only_and_the_run_goes_on(
    ray_session: RaySession, expected: dict[int, tuple[int, ...]], mode: DraftMode
) -> None:
    shim = (LINK_SHIM, dump_schedule(FAULTS))
    with start_bed("cpu", EMBEDDED_WEIGHTS, mode, 5, session=ray_session, ladder=QUICK, link_faults=shim) as bed:
        result = bed.run([spec(0, 0, 40)])[0]
        assert bed.epoch_losses == []
    struck = {fault.round_number for fault in FAULTS}
    by_round = {round_.round_number: round_ for round_ in result.rounds}
    assert struck <= set(by_round), "the run was too short to meet every fault"
    for number, round_ in by_round.items():
        wanted = (0, 0) if number in struck else (5, round_.accepted)
        assert (round_.usable_depth, round_.accepted) == wanted, (number, round_.reason)
        assert bool(round_.reason) == (number in struck)
    assert result.token_ids == expected[0]


def run_and_strike(bed: Bed, temperature: int, strike: Callable[[], None], at_round: int) -> RequestResult:
    rounds = 0

    def on_release(event: ReleaseEvent) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == at_round:
            strike()

    return bed.run([spec(0, temperature, 40)], on_release)[0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_rank_killed_in_mid_run_is_replaced_and_the_request_completes_with_the_same_tokens(
    sound: Bed, expected: dict[int, tuple[int, ...]], rank: int, temperature: int
) -> None:
    victim, start_ticks = sound.process_identities()[rank]
    losses = len(sound.epoch_losses)
    result = run_and_strike(sound, temperature, lambda: os.kill(victim, signal.SIGKILL), at_round=4)
    assert result.status is RequestStatus.BUDGET
    assert result.token_ids == expected[temperature]
    assert result.epochs_survived >= 1
    assert len(sound.epoch_losses) > losses
    assert not is_alive(victim, start_ticks)
    assert sound.process_identities()[rank][0] != victim


def test_a_stopped_rank_is_found_by_the_commit_deadline_and_the_request_completes(
    sound: Bed, expected: dict[int, tuple[int, ...]]
) -> None:
    victim = sound.process_identities()[1][0]
    result = run_and_strike(sound, 0, lambda: os.kill(victim, signal.SIGSTOP), at_round=3)
    assert result.token_ids == expected[0]
    assert sound.epoch_losses[-1].reason == "commit_deadline"


def test_a_deadline_cuts_a_run_and_keeps_what_was_delivered(sound: Bed, expected: dict[int, tuple[int, ...]]) -> None:
    result = sound.run([spec(0, 0, 100_000, time_budget_ns=400_000_000)])[0]
    assert result.status is RequestStatus.DEADLINE
    assert result.finished_ns - result.admitted_ns >= 400_000_000
    shared = min(len(result.token_ids), len(expected[0]))
    assert result.token_ids[:shared] == expected[0][:shared]
    assert result.open_round_age_ns is None or result.open_round_age_ns < 2_000_000_000


def test_every_round_accounts_for_its_time_term_by_term_on_both_ranks(sound: Bed) -> None:
    for round_ in sound.run([spec(0, 1, 40)])[0].rounds:
        for times in (round_.rank0, round_.rank1):
            terms = (
                times.draft_ns,
                times.selector_ns,
                times.exchange_ns,
                times.validation_ns,
                times.target_ns,
                times.agreement_ns,
            )
            assert min(terms) > 0, times
            assert sum(terms) <= times.total_ns <= round_.released_ns - round_.started_ns, times


def test_what_a_prime_holds_is_told_by_the_engines_and_not_by_the_order(sound: Bed) -> None:
    for occupied_tokens in (2, 96, 300):
        assert sound.prime(spec(1, 1, 40, occupied_tokens)).occupied_tokens == occupied_tokens


def test_a_primed_prefix_gives_the_tokens_of_an_unprimed_one(sound: Bed, expected: dict[int, tuple[int, ...]]) -> None:
    receipt = sound.prime(spec(0, 1, 40))
    assert receipt.occupied_tokens == 96
    assert receipt.state_digests[0] == receipt.state_digests[1]
    assert sound.run([spec(0, 1, 40)])[0].token_ids == expected[1]
