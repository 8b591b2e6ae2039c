"""From what the driver does to progress events, at most ten a second while tokens flow.

Only tells; nothing that a listener does can reach the window but an exception. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ranks.bed_records import ReleaseEvent
from window.arms import BlockName
from window.driver_state import IN_BLOCK, DriverState, Phase
from window.driver_walls import stage_budget_ns
from window.progress import ProgressEvent, ProgressListener
from window.records import RunRecord
from window.registration import Registration

__all__ = ["RunProgress"]

PAUSE_NS = 100_000_000
STAGE_WORDS = {
    Phase.DRAINING: "drain",
    Phase.STARTING: "start ranks",
    Phase.WARMING: "warm up",
    Phase.PRIMING: "prime prefixes",
    Phase.RUNNING: "decode",
    Phase.STOPPING: "stop ranks",
    Phase.SMOKE: "paired smoke",
    Phase.RESTORING: "restore",
    Phase.RESTORED: "decide and report",
    Phase.RESTORE_ESCALATED: "decide and report",
    Phase.CLOSED: "closed",
    Phase.NO_GO: "not opened",
}


@dataclass(slots=True)
class RunProgress:
    """Keeps the little that a view needs between events."""

    registration: Registration
    listener: ProgressListener
    elapsed_ns: Callable[[], int]
    _phase: Phase = Phase.DRAFT
    _block: BlockName | None = None
    _stage_started_ns: int = 0
    _stage_budget_ns: int = 0
    _run_id: str = ""
    _rounds: int = 0
    _tokens: int = 0
    _told_ns: int = 0
    _deaf: bool = False

    def phase(self, state: DriverState) -> None:
        """Tell when the window moved to another stage."""
        if state.phase is self._phase:
            return
        self._phase = state.phase
        self._block = self.registration.blocks[state.block_index] if state.phase in IN_BLOCK else None
        self._stage_started_ns = state.stage_started_ns
        self._stage_budget_ns = stage_budget_ns(self.registration, state.phase)
        self._run_id, self._rounds, self._tokens = "", 0, 0
        if state.phase in STAGE_WORDS:
            self._tell("")

    def step(self, outcome: str) -> None:
        """Tell that a step inside a stage is done."""
        self._tell(outcome)

    def run_begins(self, run_id: str, granted_ns: int) -> None:
        """Tell that a run was admitted."""
        self._run_id, self._rounds, self._tokens = run_id, 0, 0
        self._stage_started_ns, self._stage_budget_ns = self.elapsed_ns(), granted_ns
        self._tell("")

    def released(self, event: ReleaseEvent) -> None:
        """Count a round of the run in hand."""
        self._rounds += 1
        self._tokens += len(event.token_ids)
        if self.elapsed_ns() - self._told_ns >= PAUSE_NS:
            self._tell("")

    def run_ended(self, record: RunRecord) -> None:
        """Tell how a run ended."""
        self._rounds, self._tokens = record.complete_rounds, record.delivered_tokens
        self._tell(record.disposition)

    def _tell(self, outcome: str) -> None:
        """Send one event."""
        now = self.elapsed_ns() if self._phase is not Phase.DRAFT else 0
        self._told_ns = now
        runs = self.registration.run_ids()
        event = ProgressEvent(
            stage=STAGE_WORDS.get(self._phase, self._phase.lower()),
            block=self._block,
            run_id=self._run_id,
            run_number=runs.index(self._run_id) + 1 if self._run_id in runs else 0,
            run_count=len(runs),
            rounds=self._rounds,
            tokens=self._tokens,
            elapsed_ns=max(0, now),
            budget_ns=self.registration.walls.closed_ns,
            stage_elapsed_ns=max(0, now - self._stage_started_ns),
            stage_budget_ns=self._stage_budget_ns,
            outcome=outcome,
        )
        if self._deaf:
            return
        try:
            self.listener(event)
        except Exception:  # noqa: BLE001 - a view that breaks is left alone; it must never stop a window or a restore
            self._deaf = True
