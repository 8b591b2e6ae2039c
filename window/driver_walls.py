"""The deadline calculator: what the elapsed time alone demands.

Must never hold a clock; elapsed ns come in. Source: plan, budget table; registration, Walls.
"""

from __future__ import annotations

from dataclasses import replace

from window.driver_state import IN_BLOCK, STOPPABLE, DriverState, Phase
from window.registration import Registration

__all__ = ["note_overrun", "stage_budget_ns", "wall_reached"]


def stage_budget_ns(registration: Registration, phase: Phase) -> int:
    """Return the budget of the stage that a phase belongs to; 0 for phases without one."""
    stages = registration.stages
    return {
        Phase.DRAINING: stages.drain_ns,
        Phase.STARTING: stages.start_and_warm_ns,
        Phase.WARMING: stages.start_and_warm_ns,
        Phase.PRIMING: stages.prime_ns,
        Phase.RUNNING: stages.runs_ns,
        Phase.SMOKE: stages.smoke_ns,
        Phase.RESTORING: stages.restore_ns,
        Phase.RESTORED: stages.close_ns,
        Phase.RESTORE_ESCALATED: stages.close_ns,
    }.get(phase, 0)


def note_overrun(registration: Registration, state: DriverState, elapsed_ns: int) -> DriverState:
    """Remember that a stage took longer than its own budget."""
    budget = stage_budget_ns(registration, state.phase)
    if state.phase in STOPPABLE and budget and elapsed_ns - state.stage_started_ns > budget:
        return replace(state, overrun=True)
    return state


def wall_reached(registration: Registration, state: DriverState, elapsed_ns: int) -> str:
    """Return why the experiment must end now, "" when it may go on; a restore may use its own budget."""
    walls = registration.walls
    if state.phase is Phase.RESTORING:
        over = elapsed_ns - state.stage_started_ns > registration.stages.restore_ns
        return "restore_over_budget" if over or elapsed_ns >= walls.escalate_restore_ns else ""
    if state.phase not in STOPPABLE:
        return ""
    if elapsed_ns >= walls.latest_restore_start_ns:
        return "latest_restore_start"
    if state.phase is Phase.STOPPING and state.stop_reason:
        return ""
    if state.overrun and elapsed_ns >= walls.stop_admission_if_overrun_ns and state.phase is not Phase.SMOKE:
        return "overrun_at_admission_stop"
    if state.phase in IN_BLOCK and elapsed_ns - state.block_started_ns > registration.stages.block_limit_ns:
        return "block_over_limit"
    if state.phase is Phase.SMOKE and elapsed_ns - state.stage_started_ns > registration.stages.smoke_ns:
        return "smoke_over_budget"
    return ""
