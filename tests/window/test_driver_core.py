"""The driver's state machine: the plain path, every wall, and the laws that hold for any sequence of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.window.registrations import registration
from window import driver_events as on
from window.driver_core import TRANSITIONS, step
from window.driver_state import STOPPABLE, DriverState, Phase, first_state
from window.registration import Registration, RegistrationKind
from window.stages import SECOND_NS

PLAN = registration()
FULL = registration(RegistrationKind.PLAN)


class Driver:
    """The core with a clock in hand; keeps every effect."""

    def __init__(self, plan: Registration = PLAN) -> None:
        self.plan = plan
        self.state: DriverState = first_state()
        self.now_ns = 0
        self.effects: list[on.DriverEffect] = []
        self.ended_ns: int | None = None

    def __call__(self, event: on.DriverEvent, seconds_later: int = 0) -> tuple[on.DriverEffect, ...]:
        self.now_ns += seconds_later * SECOND_NS
        self.state, effects = step(self.plan, self.state, event, self.now_ns)
        self.effects += effects
        if self.state.restored is not None and self.ended_ns is None:
            self.ended_ns = self.now_ns
        return effects

    def phase(self) -> Phase:
        """Return where the window stands now."""
        return self.state.phase

    def open(self) -> None:
        """Drain begins at elapsed 0."""
        self(on.FrozenNow())
        if self.plan.kind is RegistrationKind.PLAN:
            self(on.ReviewPassed())
            self(on.ApprovalGiven())
            self(on.GatesPassed())
        else:
            self(on.RehearsalAdmitted())
        self(on.DrainOpened())

    def block(self, index: int, start: int = 8, prime: int = 1, run: int = 3, stop: int = 1) -> None:
        """One whole block."""
        block = self.plan.blocks[index]
        self(on.RanksUp(block), start)
        self(on.WarmUpDone(block), 1)
        for source_id in self.plan.order:
            self(on.PrefixPrimed(block, source_id), prime)
        for source_id in self.plan.order:
            self(on.RunEnded(f"{block}/{source_id}", True, ""), run)
        self(on.RanksStopped(0), stop)

    def admitted(self) -> list[str]:
        """Return the runs that were admitted, in order."""
        return [effect.run_id for effect in self.effects if isinstance(effect, on.AdmitRun)]

    def not_admitted(self) -> list[str]:
        """Return the runs that never will be."""
        return [name for effect in self.effects if isinstance(effect, on.MarkNotAdmitted) for name in effect.run_ids]


def opened(blocks: int = 0, plan: Registration = PLAN) -> Driver:
    """Return a driver after some whole blocks."""
    driver = Driver(plan)
    driver.open()
    driver(on.DrainReceiptGiven(), 5)
    for index in range(blocks):
        driver.block(index)
    return driver


def test_a_healthy_window_admits_24_runs_in_the_frozen_order_and_closes() -> None:
    driver = opened(blocks=4)
    assert driver.admitted() == list(PLAN.run_ids())
    assert driver.phase() is Phase.SMOKE
    driver(on.SmokeEnded(), 10)
    driver(on.RestoreObserved(True, 0, ""), 1)
    assert driver.phase() is Phase.RESTORED
    assert driver(on.DecisionSealed(), 1) == ()
    assert driver.phase() is Phase.CLOSED
    assert driver.not_admitted() == []
    assert not driver.state.overrun
    assert [span.stage for span in driver.state.spans][:5] == ["drain", "start and warm-up", "prime", "runs", "stop"]


def test_a_full_plan_needs_review_approval_and_gates_and_refuses_the_short_way() -> None:
    driver = Driver(FULL)
    driver(on.FrozenNow())
    assert isinstance(driver(on.RehearsalAdmitted())[0], on.Ignored)
    assert isinstance(driver(on.DrainOpened())[0], on.Ignored)
    driver(on.ReviewPassed())
    driver(on.ApprovalGiven())
    assert driver.phase() is Phase.APPROVED
    driver(on.GatesPassed())
    driver(on.DrainOpened())
    assert driver.phase() is Phase.DRAINING


def test_a_refusal_before_the_drain_is_no_go_with_24_dispositions() -> None:
    driver = Driver()
    driver(on.FrozenNow())
    driver(on.Refused("a gate is open"))
    assert driver.phase() is Phase.NO_GO
    assert len(driver.not_admitted()) == 24


def test_a_refused_drain_goes_through_restore_and_starts_nothing() -> None:
    driver = Driver()
    driver.open()
    driver(on.DrainRefused("requests are running"), 3)
    assert driver.phase() is Phase.RESTORING
    assert len(driver.not_admitted()) == 24
    assert not any(isinstance(effect, on.StartRanks) for effect in driver.effects)


def test_a_block_over_its_limit_is_cut_and_the_rest_is_never_admitted() -> None:
    driver = opened(blocks=1)
    block = PLAN.blocks[1]
    driver(on.RanksUp(block), 12)
    driver(on.WarmUpDone(block), 1)
    for source_id in PLAN.order:
        driver(on.PrefixPrimed(block, source_id), 4)
    effects = driver(on.Tick(), 10)
    assert [type(effect) for effect in effects] == [on.CutRun, on.MarkNotAdmitted, on.StopRanks]
    assert driver.state.stop_reason == "block_over_limit"
    driver(on.RanksStopped(0), 1)
    assert driver.phase() is Phase.RESTORING
    assert sorted(driver.admitted() + driver.not_admitted()) == sorted(PLAN.run_ids())


def test_a_block_exactly_at_its_limit_goes_on() -> None:
    driver = opened()
    driver(on.Tick(), 46)
    assert driver.state.stop_reason == ""
    driver.now_ns += 1
    driver(on.Tick())
    assert driver.state.stop_reason == "block_over_limit"


def test_a_run_near_the_block_limit_is_granted_only_what_is_left() -> None:
    driver = opened()
    driver(on.RanksUp("A1"), 10)
    driver(on.WarmUpDone("A1"), 4)
    for source_id in PLAN.order:
        driver(on.PrefixPrimed("A1", source_id), 5)
    last = [effect for effect in driver.effects if isinstance(effect, on.AdmitRun)][-1]
    assert last.granted_ns == 2 * SECOND_NS


def test_after_an_overrun_the_admission_stop_begins_the_restore() -> None:
    driver = Driver()
    driver.open()
    driver(on.DrainReceiptGiven(), 8)
    assert driver.state.overrun
    for index in range(3):
        driver.block(index, start=12)
    driver(on.RanksUp("A2"), 14)
    assert driver.state.stop_reason == ""
    driver(on.Tick(), 188 - driver.now_ns // SECOND_NS)
    assert driver.state.stop_reason == "overrun_at_admission_stop"


def test_without_an_overrun_the_admission_stop_stops_nothing() -> None:
    driver = Driver()
    driver.open()
    driver(on.DrainReceiptGiven(), 7)
    for index in range(3):
        driver.block(index, start=13, stop=8)
    driver(on.RanksUp("A2"), 13)
    driver(on.WarmUpDone("A2"), 1)
    for source_id, seconds in zip(PLAN.order, (1, 1, 2, 2, 2, 2), strict=True):
        driver(on.PrefixPrimed("A2", source_id), seconds)
    driver(on.Tick(), 189 - driver.now_ns // SECOND_NS)
    assert not driver.state.overrun
    assert driver.phase() is Phase.RUNNING


@pytest.mark.parametrize("blocks", [0, 1, 3, 4])
def test_at_the_latest_restore_start_the_restore_begins_whatever_runs(blocks: int) -> None:
    driver = opened(blocks=blocks)
    driver(on.Tick(), 216 - driver.now_ns // SECOND_NS)
    driver(on.RanksStopped(0))
    assert driver.phase() is Phase.RESTORING


def test_a_smoke_over_its_budget_is_cut_and_restored() -> None:
    driver = opened(blocks=4)
    driver(on.Tick(), 24)
    assert driver.phase() is Phase.SMOKE
    driver(on.Tick(), 1)
    assert driver.phase() is Phase.RESTORING
    assert driver.state.stop_reason == "smoke_over_budget"


def test_a_start_state_that_does_not_come_back_is_retried_and_then_escalated() -> None:
    driver = opened(blocks=4)
    driver(on.SmokeEnded(), 5)
    assert isinstance(driver(on.RestoreObserved(False, 0, "an image differs"), 1)[0], on.BeginRestore)
    assert isinstance(driver(on.RestoreObserved(True, 1, "a rank is alive"), 1)[0], on.BeginRestore)
    assert driver(on.Tick(), 10) == ()
    effects = driver(on.Tick(), 1)
    assert isinstance(effects[0], on.EscalateRestore)
    assert driver.phase() is Phase.RESTORE_ESCALATED
    assert driver.state.restored is False


def test_an_unhealthy_run_ends_the_experiment() -> None:
    driver = opened()
    driver(on.RanksUp("A1"), 8)
    driver(on.WarmUpDone("A1"), 1)
    for source_id in PLAN.order:
        driver(on.PrefixPrimed("A1", source_id))
    driver(on.RunEnded("A1/f1-short", False, "engine died"), 1)
    assert driver.phase() is Phase.STOPPING
    assert len(driver.not_admitted()) == 23


def test_ranks_that_outlive_their_stop_end_the_experiment() -> None:
    driver = opened()
    driver(on.StageFailed("attestation"), 1)
    driver(on.RanksStopped(1), 1)
    assert driver.phase() is Phase.RESTORING
    assert driver.state.ranks_up


def test_an_answer_of_another_run_changes_nothing() -> None:
    driver = opened()
    driver(on.RanksUp("A1"), 8)
    driver(on.WarmUpDone("A1"), 1)
    for source_id in PLAN.order:
        driver(on.PrefixPrimed("A1", source_id))
    assert isinstance(driver(on.RunEnded("B2/f1-long", True, ""))[0], on.Ignored)
    assert driver.admitted() == ["A1/f1-short"]


EVENTS: list[Callable[[Driver], on.DriverEvent]] = [
    lambda d: on.FrozenNow(),
    lambda d: on.RehearsalAdmitted(),
    lambda d: on.DrainOpened(),
    lambda d: on.DrainReceiptGiven(),
    lambda d: on.DrainRefused("busy"),
    lambda d: on.RanksUp(d.plan.blocks[d.state.block_index]),
    lambda d: on.WarmUpDone(d.plan.blocks[d.state.block_index]),
    lambda d: on.PrefixPrimed(d.plan.blocks[d.state.block_index], "any"),
    lambda d: on.RunEnded(d.state.in_flight or "none", True, ""),
    lambda d: on.RunEnded(d.state.in_flight or "none", False, "died"),
    lambda d: on.RanksStopped(0),
    lambda d: on.RanksStopped(2),
    lambda d: on.SmokeEnded(),
    lambda d: on.StageFailed("failed"),
    lambda d: on.Interrupted("asked"),
    lambda d: on.RestoreObserved(True, 0, ""),
    lambda d: on.RestoreObserved(True, 1, "alive"),
    lambda d: on.RestoreObserved(False, 0, "differs"),
    lambda d: on.DecisionSealed(),
    lambda d: on.Tick(),
]
# Most sequences should get far, so the lawful next event is drawn as often as any other.
LAWFUL: dict[Phase, int] = {
    Phase.DRAINING: 3,
    Phase.STARTING: 5,
    Phase.WARMING: 6,
    Phase.PRIMING: 7,
    Phase.RUNNING: 8,
    Phase.STOPPING: 10,
    Phase.SMOKE: 12,
}


def play(driver: Driver, choices: list[tuple[bool, int, int]]) -> None:
    """Send a drawn sequence of events."""
    for lawful, index, seconds in choices:
        chosen = LAWFUL.get(driver.phase(), index) if lawful else index
        driver(EVENTS[chosen](driver), seconds)


SEQUENCES: Any = st.lists(
    st.tuples(st.integers(0, 9).map(bool), st.integers(0, len(EVENTS) - 1), st.integers(0, 5)), max_size=120
)


@settings(max_examples=300, deadline=None)
@given(SEQUENCES)
def test_whatever_happens_after_the_drain_ends_restored_or_escalated_before_the_wall(
    choices: list[tuple[bool, int, int]],
) -> None:
    driver = opened()
    play(driver, choices)
    while driver.state.restored is None and driver.now_ns < 240 * SECOND_NS:
        driver(on.Tick(), 1)
    assert driver.state.restored is not None
    # Events are at most five seconds apart here, and the core can act no earlier than it is called.
    assert driver.ended_ns is not None
    assert driver.ended_ns <= PLAN.walls.escalate_restore_ns + 5 * SECOND_NS
    assert driver.phase() not in STOPPABLE


@settings(max_examples=300, deadline=None)
@given(SEQUENCES)
def test_whatever_happens_every_registered_run_is_admitted_or_marked_exactly_once(
    choices: list[tuple[bool, int, int]],
) -> None:
    driver = opened()
    play(driver, choices)
    for _ in range(250):
        driver(on.Tick(), 1)
    named = driver.admitted() + driver.not_admitted()
    assert sorted(named) == sorted(PLAN.run_ids())
    assert driver.admitted() == list(PLAN.run_ids())[: len(driver.admitted())]


@settings(max_examples=300, deadline=None)
@given(SEQUENCES)
def test_restored_means_that_no_rank_is_up_and_nothing_starts_after_the_restore_began(
    choices: list[tuple[bool, int, int]],
) -> None:
    driver = opened()
    play(driver, choices)
    for _ in range(250):
        driver(on.Tick(), 1)
    assert not (driver.state.restored and driver.state.ranks_up)
    kinds = [type(effect) for effect in driver.effects]
    begun = kinds.index(on.BeginRestore)
    assert not {on.StartRanks, on.AdmitRun, on.RunSmoke} & set(kinds[begun:])


def test_every_state_after_the_drain_that_can_be_stopped_has_a_way_out() -> None:
    for phase in STOPPABLE:
        assert (phase, on.StageFailed) in TRANSITIONS
        assert (phase, on.Interrupted) in TRANSITIONS


def test_there_is_no_transition_that_promotes() -> None:
    assert not any("PROMOT" in phase.upper() for phase in Phase)
