"""The window's driver as a pure state machine: events and elapsed time in, effects out.

From DRAINING on every path goes through RESTORING, whatever fails. Nothing can add a run, a block or time:
runs come from the registration alone and are admitted at most once. Must never hold a clock or act itself.
Source: plan, budget table and walls; DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from window.arms import BlockName
from window.driver_events import (
    AdmitRun,
    ApprovalGiven,
    BeginRestore,
    CutRun,
    DecisionSealed,
    DrainOpened,
    DrainReceiptGiven,
    DrainRefused,
    DriverEffect,
    DriverEvent,
    EscalateRestore,
    FrozenNow,
    GatesPassed,
    Ignored,
    Interrupted,
    MarkNotAdmitted,
    OpenDrain,
    PrefixPrimed,
    PrimePrefixOf,
    RanksStopped,
    RanksUp,
    Refused,
    RehearsalAdmitted,
    RestoreObserved,
    ReviewPassed,
    RunEnded,
    RunSmoke,
    SealDecision,
    SmokeEnded,
    StageFailed,
    StartRanks,
    StopRanks,
    Tick,
    WarmUpDone,
    WarmUpRanks,
)
from window.driver_state import BEFORE_DRAIN, IN_BLOCK, STOPPABLE, DriverState, Phase
from window.driver_walls import note_overrun, stage_budget_ns, wall_reached
from window.records import StageSpan
from window.registration import Registration, RegistrationKind

__all__ = ["TRANSITIONS", "step"]


Outcome = tuple[DriverState, tuple[DriverEffect, ...]]
Handler = Callable[[Registration, DriverState, DriverEvent, int], Outcome]


def step(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Return the next state and the effects to carry out in order. `elapsed_ns` never falls."""
    state = note_overrun(registration, state, elapsed_ns)
    if isinstance(event, RunEnded) and event.run_id == state.in_flight:
        state = replace(state, in_flight="")
    wall = wall_reached(registration, state, elapsed_ns)
    if wall and state.phase is Phase.RESTORING:
        if isinstance(event, RestoreObserved) and event.equal and event.processes_left == 0:
            return _restore_observed(registration, state, event, elapsed_ns)
        return _escalate(registration, state, wall, elapsed_ns)
    if wall and not isinstance(event, (RanksStopped, SmokeEnded)):
        return _stop(registration, state, wall, elapsed_ns)
    if wall and not state.stop_reason:
        state = replace(state, stop_reason=wall)
    handler = TRANSITIONS.get((state.phase, type(event)))
    if handler is None:
        return state, () if isinstance(event, Tick) else (Ignored(state.phase, type(event).__name__),)
    return handler(registration, state, event, elapsed_ns)


_STAGE_OF = {
    Phase.DRAINING: "drain",
    Phase.STARTING: "start and warm-up",
    Phase.PRIMING: "prime",
    Phase.RUNNING: "runs",
    Phase.STOPPING: "stop",
    Phase.SMOKE: "smoke",
    Phase.RESTORING: "restore",
    Phase.RESTORED: "close",
    Phase.RESTORE_ESCALATED: "close",
}


def _enter(registration: Registration, state: DriverState, phase: Phase, elapsed_ns: int) -> DriverState:
    """Return the state in another phase; the stage left behind becomes a span of the time line."""
    if (state.phase, phase) == (Phase.STARTING, Phase.WARMING):
        return replace(state, phase=phase)
    left = Phase.STARTING if state.phase is Phase.WARMING else state.phase
    spans = state.spans
    if left in _STAGE_OF:
        span = StageSpan(
            stage=_STAGE_OF[left],
            block=registration.blocks[state.block_index] if left in IN_BLOCK else None,
            started_ns=state.stage_started_ns,
            ended_ns=elapsed_ns,
            budget_ns=stage_budget_ns(registration, left),
        )
        spans = (*spans, span)
    return replace(state, phase=phase, stage_started_ns=elapsed_ns, spans=spans)


def _current_block(registration: Registration, state: DriverState) -> BlockName:
    """Return the block in hand."""
    return registration.blocks[state.block_index]


def _to(phase: Phase) -> Handler:
    """Return a handler that only moves on."""

    def move(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
        return _enter(registration, state, phase, elapsed_ns), ()

    return move


def _admit_rehearsal(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Admit a window that can never promote; a PLAN needs review, approval and gates."""
    if registration.kind is RegistrationKind.PLAN:
        return state, (Ignored(state.phase, type(event).__name__),)
    return _enter(registration, state, Phase.ADMITTED, elapsed_ns), ()


def _refuse(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """End a window that was never opened."""
    assert isinstance(event, Refused | Interrupted)
    every_run = MarkNotAdmitted(registration.run_ids(), event.reason)
    closed = replace(_enter(registration, state, Phase.NO_GO, elapsed_ns), stop_reason=event.reason)
    return closed, (every_run, SealDecision())


def _open_drain(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Begin: elapsed 0."""
    return _enter(registration, state, Phase.DRAINING, elapsed_ns), (OpenDrain(),)


def _drained(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Go on to the first block."""
    return _begin_block(registration, state, 0, elapsed_ns)


def _begin_block(registration: Registration, state: DriverState, index: int, elapsed_ns: int) -> Outcome:
    """Start fresh ranks for a block."""
    fresh = replace(
        _enter(registration, state, Phase.STARTING, elapsed_ns),
        block_index=index,
        block_started_ns=elapsed_ns,
        prime_index=0,
        run_index=0,
        ranks_up=True,
    )
    return fresh, (StartRanks(registration.blocks[index]),)


def _warm_up(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Send the warm-up requests."""
    block = _current_block(registration, state)
    return _enter(registration, state, Phase.WARMING, elapsed_ns), (WarmUpRanks(block),)


def _prime_next(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Prime the next prefix, or admit the first run when all are held."""
    block = _current_block(registration, state)
    if isinstance(event, PrefixPrimed):
        state = replace(state, prime_index=state.prime_index + 1)
    else:
        state = _enter(registration, state, Phase.PRIMING, elapsed_ns)
    if state.prime_index < len(registration.order):
        return state, (PrimePrefixOf(block, registration.order[state.prime_index]),)
    return _admit_next(registration, _enter(registration, state, Phase.RUNNING, elapsed_ns), elapsed_ns)


def _admit_next(registration: Registration, state: DriverState, elapsed_ns: int) -> Outcome:
    """Admit the next run in the frozen order, or stop the ranks after the last."""
    if state.run_index == len(registration.order):
        return _enter(registration, state, Phase.STOPPING, elapsed_ns), (StopRanks("block complete"),)
    block, source_id = _current_block(registration, state), registration.order[state.run_index]
    run_id = f"{block}/{source_id}"
    block_end = state.block_started_ns + registration.stages.block_limit_ns
    nearest = min(block_end, registration.walls.latest_restore_start_ns)
    if state.overrun:
        nearest = min(nearest, registration.walls.stop_admission_if_overrun_ns)
    granted = max(1, min(registration.run.time_budget_ns, nearest - elapsed_ns))
    admitted = replace(state, run_index=state.run_index + 1, in_flight=run_id)
    return admitted, (AdmitRun(run_id, block, source_id, granted),)


def _run_ended(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Go on after a disposition; a failure that no plan foresees ends the experiment."""
    assert isinstance(event, RunEnded)
    if state.in_flight:
        return state, (Ignored(state.phase, type(event).__name__),)
    if not event.healthy:
        return _stop(registration, state, f"unexplained_failure: {event.reason}", elapsed_ns)
    return _admit_next(registration, state, elapsed_ns)


def _runs_left(registration: Registration, state: DriverState) -> tuple[str, ...]:
    """Return the registered runs that were not admitted."""
    return registration.run_ids()[state.block_index * len(registration.order) + state.run_index :]


def _mark_left(registration: Registration, state: DriverState, reason: str) -> Outcome:
    """Give the runs left over their disposition, once."""
    left = _runs_left(registration, state)
    if state.marked or not left:
        return replace(state, marked=True), ()
    return replace(state, marked=True), (MarkNotAdmitted(left, reason),)


def _stop(registration: Registration, state: DriverState, reason: str, elapsed_ns: int) -> Outcome:
    """End the experiment: cut what runs, mark what never will, stop the ranks or go straight to restore."""
    effects: list[DriverEffect] = []
    if state.in_flight:
        effects.append(CutRun(state.in_flight, reason))
    state, marked = _mark_left(registration, state, reason)
    effects += marked
    state = replace(state, stop_reason=state.stop_reason or reason, in_flight="")
    # A stop that itself hangs, or ranks that were never started, must not delay the restore.
    if state.ranks_up and state.phase not in (Phase.STOPPING, Phase.SMOKE):
        return _enter(registration, state, Phase.STOPPING, elapsed_ns), (*effects, StopRanks(reason))
    restoring, begun = _begin_restore(registration, state, elapsed_ns)
    return restoring, (*effects, *begun)


def _fail(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Stop for the reason that an event carries."""
    assert isinstance(event, StageFailed | Interrupted | DrainRefused)
    return _stop(registration, state, event.reason, elapsed_ns)


def _ranks_stopped(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Begin the next block, the smoke, or the restore."""
    assert isinstance(event, RanksStopped)
    state = replace(state, ranks_up=event.survivors > 0)
    if event.survivors and not state.stop_reason:
        state = replace(state, stop_reason="ranks outlived their stop")
    if state.stop_reason:
        # A wall may have fallen between the last run and the stop, when nothing was marked yet.
        state, marked = _mark_left(registration, state, state.stop_reason)
        restoring, effects = _begin_restore(registration, state, elapsed_ns)
        return restoring, (*marked, *effects)
    if state.block_index + 1 < len(registration.blocks):
        return _begin_block(registration, state, state.block_index + 1, elapsed_ns)
    smoke = replace(_enter(registration, state, Phase.SMOKE, elapsed_ns), ranks_up=True)
    granted = min(registration.stages.smoke_ns, registration.walls.latest_restore_start_ns - elapsed_ns)
    return smoke, (RunSmoke(max(1, granted)),)


def _begin_restore(registration: Registration, state: DriverState, elapsed_ns: int) -> Outcome:
    """Take a newer fencing epoch and restore."""
    epoch = state.fencing_epoch + 1
    restoring = replace(_enter(registration, state, Phase.RESTORING, elapsed_ns), fencing_epoch=epoch)
    return restoring, (BeginRestore(epoch),)


def _smoke_ended(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Restore after the smoke, finished or cut."""
    return _begin_restore(registration, state, elapsed_ns)


def _restore_observed(registration: Registration, state: DriverState, event: DriverEvent, elapsed_ns: int) -> Outcome:
    """Accept an observed start state; anything else is restored again until the escalation wall."""
    assert isinstance(event, RestoreObserved)
    if event.equal and event.processes_left == 0:
        restored = replace(_enter(registration, state, Phase.RESTORED, elapsed_ns), ranks_up=False, restored=True)
        return restored, (SealDecision(),)
    return state, (BeginRestore(state.fencing_epoch),)


def _escalate(registration: Registration, state: DriverState, reason: str, elapsed_ns: int) -> Outcome:
    """Give the restore to the coordinator's escalation, then seal what there is."""
    escalated = replace(_enter(registration, state, Phase.RESTORE_ESCALATED, elapsed_ns), restored=False)
    return escalated, (EscalateRestore(state.fencing_epoch, reason), SealDecision())


TRANSITIONS: dict[tuple[Phase, type], Handler] = {
    (Phase.DRAFT, FrozenNow): _to(Phase.FROZEN),
    (Phase.FROZEN, ReviewPassed): _to(Phase.REVIEWED),
    (Phase.FROZEN, RehearsalAdmitted): _admit_rehearsal,
    (Phase.REVIEWED, ApprovalGiven): _to(Phase.APPROVED),
    (Phase.APPROVED, GatesPassed): _to(Phase.ADMITTED),
    (Phase.ADMITTED, DrainOpened): _open_drain,
    **{(phase, Refused): _refuse for phase in BEFORE_DRAIN},
    **{(phase, Interrupted): _refuse for phase in BEFORE_DRAIN},
    (Phase.DRAINING, DrainReceiptGiven): _drained,
    (Phase.DRAINING, DrainRefused): _fail,
    (Phase.STARTING, RanksUp): _warm_up,
    (Phase.WARMING, WarmUpDone): _prime_next,
    (Phase.PRIMING, PrefixPrimed): _prime_next,
    (Phase.RUNNING, RunEnded): _run_ended,
    (Phase.STOPPING, RanksStopped): _ranks_stopped,
    (Phase.SMOKE, SmokeEnded): _smoke_ended,
    **{(phase, StageFailed): _fail for phase in STOPPABLE},
    **{(phase, Interrupted): _fail for phase in STOPPABLE},
    (Phase.RESTORING, RestoreObserved): _restore_observed,
    (Phase.RESTORED, DecisionSealed): _to(Phase.CLOSED),
    (Phase.RESTORE_ESCALATED, DecisionSealed): _to(Phase.CLOSED),
    (Phase.NO_GO, DecisionSealed): _to(Phase.CLOSED),
}
