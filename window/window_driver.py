"""Carries out what the driver's core asks for: real ranks, real time, a journal before every effect.

Whatever an effect raises becomes an event, so that the core can lead every window to its restore. Must never
decide anything itself, and never start something that the core did not ask for. Source: DESIGN section 6.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from ranks.records import StopReceipt
from window import driver_events as on
from window.arms import BlockName
from window.bed_protocol import Engine, EngineFault
from window.block_session import INTERRUPTED, BlockSession
from window.bundle import Bundle
from window.canonical import SealedModel, plain_json
from window.dispositions import Disposition
from window.driver_core import step
from window.driver_state import DriverState, Phase, first_state
from window.errors import WindowError
from window.identity_check import prime_mismatches
from window.interrupt_gate import InterruptGate
from window.journal import Journal
from window.measure import RunIdentity, run_without_result
from window.progress import ProgressListener
from window.records import RestoreItem, RestoreReceipt, RunRecord, SmokePartResult, SmokeReceipt
from window.registration import Registration
from window.rehearsal_inputs import Prompts
from window.run_progress import RunProgress
from window.smoke_session import SmokeSession
from window.start_state import ProcessKey, StartState, compare_states, living, look

__all__ = ["WindowDriver"]

RETRY_WAIT_S = 0.2
UNHEALTHY = (
    Disposition.ENGINE_FAILED,
    Disposition.TRANSPORT_FAILED,
    Disposition.WATCHDOG,
    Disposition.LOST,
)
BlockOutcome = Literal["COMPLETE", "TRUNCATED", "FAILED"]


class WindowDriver:
    """One window from its freeze to its restore; `go` returns when the core asked for the decision."""

    def __init__(
        self,
        registration: Registration,
        prompts: Prompts,
        engine: Engine,
        journal: Journal,
        bundle: Bundle,
        files: Sequence[Path],
        listener: ProgressListener,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep everything; nothing happens before `go`. `files` are observed for the restore."""
        self.registration, self.prompts, self.engine = registration, prompts, engine
        self.journal, self.bundle, self.files = journal, bundle, files
        self.state: DriverState = first_state()
        self.interrupted = False
        self._clock, self._sleep = clock, sleep
        self._opened_ns = clock()
        self._progress = RunProgress(registration, listener, self.elapsed_ns)
        self._seen: list[ProcessKey] = []
        self._baseline: StartState | None = None
        self._session: BlockSession | None = None
        self._smoke: SmokeSession | None = None
        self._smoke_started_ns: int | None = None
        self._restore_started_ns = 0
        self._restore_problem = ""
        self._sealed_runs: set[str] = set()
        self._smoke_sealed = False
        self._gate = InterruptGate()
        self._spans_written = 0

    def elapsed_ns(self) -> int:
        """Return the time since elapsed 0."""
        return self._clock() - self._opened_ns

    def go(self) -> None:
        """Run the whole window; returns after the restore ended, one way or the other."""
        with self._gate.held():
            self._go()

    def _go(self) -> None:
        """Feed the core until it asks for the decision."""
        self._note("registration", {"sha256": self.registration.window_id()})
        waiting: deque[on.DriverEffect] = deque()
        waiting += self._feed(on.FrozenNow())
        waiting += self._feed(on.RehearsalAdmitted())
        self._opened_ns = self._clock()
        self._note("opened", {})
        waiting += self._feed(on.DrainOpened())
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, on.SealDecision):
                break
            for event in self._carry_out(effect):
                waiting += self._feed(event)
        if self.state.stop_reason:
            self._note("stop", {"reason": self.state.stop_reason})

    def finish(self) -> None:
        """Tell the core that decision and report are sealed."""
        self._feed(on.DecisionSealed())

    # -- events and effects --------------------------------------------------------------------------------

    def _note(self, kind: str, body: dict[str, object]) -> None:
        """Write one journal record, durable when this returns."""
        self.journal.append(kind, plain_json(body))

    def _seal(self, kind: str, record: SealedModel) -> None:
        """Write one sealed record into the journal."""
        self._note(kind, record.model_dump(mode="json"))

    def _feed(self, event: on.DriverEvent) -> tuple[on.DriverEffect, ...]:
        """Give the core an event and write down event, finished stages and effects before any of them acts."""
        elapsed = self.elapsed_ns() if self.state.phase is not Phase.DRAFT else 0
        self.state, effects = step(self.registration, self.state, event, elapsed)
        if not isinstance(event, on.Tick):
            self._note("event", {"name": type(event).__name__, "fields": asdict(event), "phase": self.state.phase})
        for span in self.state.spans[self._spans_written :]:
            self._seal("span", span)
        self._spans_written = len(self.state.spans)
        for effect in effects:
            self._note("effect", {"name": type(effect).__name__, "fields": asdict(effect)})
        self._progress.phase(self.state)
        return effects

    def _carry_out(self, effect: on.DriverEffect) -> list[on.DriverEvent]:
        """Act, and turn whatever comes of it into events."""
        if isinstance(effect, on.BeginRestore):
            return self._restore(effect.fencing_epoch)
        try:
            return self._act(effect)
        except KeyboardInterrupt:
            self._account_for(effect, Disposition.CANCELED_CLIENT, INTERRUPTED)
            return [self._interrupt()]
        except EngineFault as fault:
            self._account_for(effect, Disposition.ENGINE_FAILED, str(fault))
            return [on.StageFailed(str(fault))]
        except WindowError:
            raise
        except Exception as error:  # noqa: BLE001 - any fault must lead to the restore; it is journaled, never hidden
            reason = _one_line(error)
            self._note("finding", {"where": type(effect).__name__, "what": f"the driver failed with {reason}"})
            self._account_for(effect, Disposition.ENGINE_FAILED, reason)
            return [on.StageFailed(reason)]

    def _interrupt(self) -> on.Interrupted:
        """Remember that somebody asked to stop."""
        self.interrupted = True
        return on.Interrupted(INTERRUPTED)

    def _act(self, effect: on.DriverEffect) -> list[on.DriverEvent]:
        """Carry out one effect and return what it observed."""
        match effect:
            case on.OpenDrain():
                return self._drain()
            case on.StartRanks(block):
                return self._start(block)
            case on.WarmUpRanks(block):
                with self._gate.interruptible():
                    mismatches = self._current().warm_up_ranks()
                return _checked(mismatches, on.WarmUpDone(block))
            case on.PrimePrefixOf(block, source_id):
                with self._gate.interruptible():
                    record = self._current().prime(source_id)
                self._progress.step(f"{source_id}: {record.occupied_tokens} tokens held")
                return _checked(prime_mismatches(record), on.PrefixPrimed(block, source_id))
            case on.AdmitRun():
                return self._run(effect)
            case on.MarkNotAdmitted(run_ids, reason):
                for run_id in run_ids:
                    self._seal_run(run_without_result(self._identity_of(run_id), Disposition.NOT_ADMITTED, reason))
                return []
            case on.StopRanks():
                return self._stop_ranks()
            case on.RunSmoke(granted_ns):
                return self._run_smoke(granted_ns)
            case on.EscalateRestore(epoch, reason):
                self._seal_restore("ESCALATED", epoch, f"{reason}: {self._restore_problem or 'no reason observed'}")
                return []
            case _:
                return []

    def _account_for(self, effect: on.DriverEffect, disposition: Disposition, reason: str) -> None:
        """Give what an effect left without a record its record."""
        if isinstance(effect, on.AdmitRun) and effect.run_id not in self._sealed_runs:
            self._seal_run(run_without_result(self._identity_of(effect.run_id), disposition, reason))
        if isinstance(effect, on.RunSmoke) and not self._smoke_sealed:
            self._seal_smoke([_unfinished(part, reason) for part in self.registration.smoke.parts])

    def _seal_run(self, record: RunRecord) -> None:
        """Seal the one record of a run."""
        self._seal("run", record)
        self._sealed_runs.add(record.run_id)

    # -- stages --------------------------------------------------------------------------------------------

    def _drain(self) -> list[on.DriverEvent]:
        """Record the start state twice, see that nothing moves in it, then open the engine."""
        first = look(self.files)
        second = look(self.files)
        if first != second:
            return [on.DrainRefused("the start state changed while it was looked at")]
        if "unreadable" in first.files.values():
            return [on.DrainRefused("a file of the start state cannot be read")]
        self._baseline = second
        self._note("baseline", {"processes": len(second.processes), "files": dict(second.files)})
        with self._gate.interruptible():
            self.engine.open()
        return [on.DrainReceiptGiven()]

    def _start(self, block: BlockName) -> list[on.DriverEvent]:
        """Start and attest the ranks of one block."""
        self._session = BlockSession(
            self.registration, self.prompts, block, self.engine, self._clock, self._opened_ns, self._seen
        )
        with self._gate.interruptible():
            mismatches = self._session.start()
        return _checked(mismatches, on.RanksUp(block))

    def _current(self) -> BlockSession:
        """Return the block in hand. Raises EngineFault when there is none."""
        if self._session is None:
            raise EngineFault("no block is running")
        return self._session

    def _run(self, effect: on.AdmitRun) -> list[on.DriverEvent]:
        """Run one registered request, then seal its rounds before its record."""
        session = self._current()
        self._progress.run_begins(effect.run_id, effect.granted_ns)
        with self._gate.interruptible():
            record, rounds = session.run(effect.source_id, effect.granted_ns, self._progress.released)
        self.bundle.append_rounds(effect.block, rounds)
        self._seal_run(record)
        self._progress.run_ended(record)
        if record.disposition is Disposition.CANCELED_CLIENT and record.disposition_reason == INTERRUPTED:
            return [_run_ended(record), self._interrupt()]
        return [_run_ended(record)]

    def _stop_ranks(self) -> list[on.DriverEvent]:
        """Stop the block's ranks and seal its receipt."""
        session, self._session = self._session, None
        if session is None:
            return [on.RanksStopped(0)]
        outcome, failure = self._block_outcome()
        try:
            stopped = session.stop()
        except Exception as error:  # noqa: BLE001 - a stop that breaks is a failed block; the restore ends what is left
            stopped = StopReceipt((), living(self._seen))
            outcome, failure = "FAILED", f"stopping the ranks failed with {_one_line(error)}"
        self._seal("block", session.receipt(outcome, failure, stopped))
        return [on.RanksStopped(len(stopped.survivors))]

    def _block_outcome(self) -> tuple[BlockOutcome, str]:
        """Return how a block ended: what was cut by plan or by hand is truncated, a fault is failed."""
        reason = self.state.stop_reason
        if not reason:
            return "COMPLETE", ""
        by_plan = ("interrupted", "block_over_limit", "overrun_at_admission_stop", "latest_restore_start")
        truncated = reason in by_plan or reason.startswith("policy_or_weight_mismatch")
        return ("TRUNCATED" if truncated else "FAILED"), reason

    def _run_smoke(self, granted_ns: int) -> list[on.DriverEvent]:
        """Run the paired smoke and seal its receipt."""
        self._smoke_started_ns = self.elapsed_ns()
        self._smoke = SmokeSession(
            self.registration, self.prompts, self.engine, self._clock, self._clock() + granted_ns, self._seen
        )
        with self._gate.interruptible():
            results = self._smoke.run()
        self._seal_smoke(results)
        return [on.SmokeEnded()]

    def _seal_smoke(self, results: Sequence[SmokePartResult]) -> None:
        """Seal the smoke's one receipt."""
        started = self.elapsed_ns() if self._smoke_started_ns is None else self._smoke_started_ns
        self._seal("smoke", SmokeReceipt(started_ns=started, ended_ns=self.elapsed_ns(), results=tuple(results)))

    # -- restore -------------------------------------------------------------------------------------------

    def _restore(self, epoch: int) -> list[on.DriverEvent]:
        """Stop whatever runs, end the engine, look, and seal the receipt when the start state is back."""
        self._restore_started_ns = self._restore_started_ns or self.elapsed_ns()
        reason = ""
        try:
            if self._session is not None:
                self._stop_ranks()
            if self._smoke is not None:
                self._smoke.stop()
            self.engine.close()
        except WindowError:
            raise
        except Exception as error:  # noqa: BLE001 - the restore is tried again until its wall, with the reason journaled
            reason = f"ending the engine failed with {_one_line(error)}"
        wrong = [item for item in self._items() if not item.equal]
        if not reason and not wrong:
            self._seal_restore("RESTORED", epoch, "")
            return [on.RestoreObserved(True, 0, "")]
        reason = reason or f"{wrong[0].name}: {wrong[0].after}"
        self._restore_problem = reason
        self._note("restore_attempt", {"epoch": epoch, "reason": reason})
        self._sleep(RETRY_WAIT_S)
        return [on.RestoreObserved(False, len(living(self._seen)), reason)]

    def _items(self) -> tuple[RestoreItem, ...]:
        """Return what differs from the start state; without one, because the drain saw none, only the ranks count."""
        before = self._baseline if self._baseline is not None else StartState(look(()).processes, {})
        return compare_states(before, look(self.files), self._seen)

    def _seal_restore(self, outcome: Literal["RESTORED", "ESCALATED"], epoch: int, reason: str) -> None:
        """Seal the one restore receipt of this window."""
        self._seal(
            "restore",
            RestoreReceipt(
                outcome=outcome,
                fencing_epoch=epoch,
                started_ns=self._restore_started_ns,
                ended_ns=self.elapsed_ns(),
                items=self._items(),
                reason=reason,
            ),
        )

    def _identity_of(self, run_id: str) -> RunIdentity:
        """Return the identity of a registered run that has no session."""
        name, _, source_id = run_id.partition("/")
        block = next(block for block in self.registration.blocks if block == name)
        session = BlockSession(
            self.registration, self.prompts, block, self.engine, self._clock, self._opened_ns, self._seen
        )
        return session.run_identity(source_id, self.registration.run.time_budget_ns)


def _checked(mismatches: Sequence[str], done: on.DriverEvent) -> list[on.DriverEvent]:
    """Return the good event only when nothing differs from the registration."""
    return [on.StageFailed(f"policy_or_weight_mismatch: {mismatches[0]}")] if mismatches else [done]


def _one_line(error: Exception) -> str:
    """Return an error with its kind on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _run_ended(record: RunRecord) -> on.RunEnded:
    """Return the event of a finished run."""
    return on.RunEnded(record.run_id, record.disposition not in UNHEALTHY, record.disposition_reason)


def _unfinished(part: str, reason: str) -> SmokePartResult:
    """Return a smoke part that was broken off."""
    return SmokePartResult.model_validate(
        {
            "part": part,
            "case": part,
            "outcome": "INCOMPLETE",
            "compared_tokens": 0,
            "first_difference": None,
            "reason": reason,
        }
    )
