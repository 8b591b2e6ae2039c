"""An engine of scripted ranks under a virtual clock: honest by default, and able to lie in one named way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ranks.bed_records import ReleaseEvent
from ranks.records import (
    Attestation,
    PrimeReceipt,
    RequestResult,
    RequestSpec,
    RequestStatus,
    RoundRecord,
    StopReceipt,
)
from selector.law_ids import pruned_law_id
from tests.window.registrations import MATRICES
from tests.window.scenes import round_record
from window.arms import Arm
from window.bed_protocol import EngineFault
from window.progress import ProgressEvent
from window.registration import Registration
from window.rehearsal_inputs import RehearsalInputs
from window.rehearse import RehearsalResult, run_window

SECRET_TOKEN = 48_151_623
FAKE_PID = 4_100_000
MILLISECOND = 1_000_000


@dataclass
class VirtualClock:
    """A clock that moves only when a script says so."""

    now_ns: int = 10**15

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@dataclass
class ScriptedEngine:
    """Starts scripted beds; `lie` names the one thing that is wrong, `lie_block` the start (0..3) where it is."""

    plan: Registration
    clock: VirtualClock
    lie: str = ""
    lie_start: int = 1
    round_ns: int = 200 * MILLISECOND
    tokens_a: int = 10
    tokens_b: int = 12
    starts: int = 0
    opened: int = 0
    closed: int = 0
    running: list[ScriptedBed] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def lies(self, name: str) -> bool:
        return self.lie == name and self.starts - 1 == self.lie_start

    def open(self) -> None:
        self.opened += 1
        self.clock.now_ns += 4_000 * MILLISECOND
        if self.lie == "no_session":
            raise EngineFault("the session did not start")

    def start(self, arm: Arm) -> ScriptedBed:
        self.starts += 1
        self.clock.now_ns += 3_000 * MILLISECOND
        if self.lies("start_fails"):
            raise EngineFault("the ranks did not come up")
        if self.lies("interrupt_start"):
            raise KeyboardInterrupt
        if self.lies("slow_start"):
            self.clock.now_ns += 60_000 * MILLISECOND
        bed = ScriptedBed(self, arm, self.starts)
        self.running.append(bed)
        return bed

    def close(self) -> None:
        self.closed += 1
        self.running.clear()


@dataclass
class ScriptedBed:
    """Two scripted ranks of one arm."""

    engine: ScriptedEngine
    arm: Arm
    number: int
    primed: set[str] = field(default_factory=set)

    def attest(self) -> tuple[Attestation, Attestation]:
        first, second = self._attestation(0), self._attestation(1)
        lies = self.engine.lies
        if lies("weights"):
            second = replace(second, weights_digest="0" * 64)
        if lies("one_switch"):
            second = replace(second, sampled_drafts=not second.sampled_drafts)
        if lies("wrong_arm"):
            sampled = not self.arm.engine_sampled_drafts
            first, second = replace(first, sampled_drafts=sampled), replace(second, sampled_drafts=sampled)
        if lies("depth"):
            first = replace(first, depth=first.depth - 1)
        if lies("law"):
            first = replace(first, law_id=pruned_law_id(32, 12))
        if lies("temperature"):
            first = replace(first, target_temperature="0.7")
        if lies("old_process"):
            first = replace(first, pid=FAKE_PID + 10, process_start_ticks=1)
        if lies("restarted_inside") and self.primed:
            first = replace(first, pid=first.pid + 5)
        return first, second

    def _attestation(self, rank: int) -> Attestation:
        engine = self.engine.plan.engine
        return Attestation(
            rank=rank,
            pid=FAKE_PID + 10 * self.number + rank,
            process_start_ticks=1,
            incarnation=f"{self.number}-{rank}",
            weights_digest=engine.weights_sha256,
            ngram_memory_digest=engine.ngram_memory_sha256,
            source_digest=engine.source_sha256,
            law_id=self.arm.draft_law_id,
            abi_marker=engine.abi_marker,
            sampled_drafts=self.arm.engine_sampled_drafts,
            depth=self.arm.depth,
            profile=engine.profile,
            device=engine.device,
            python_version=engine.python_version,
            torch_version=engine.torch_version,
            target_temperature="1",
            target_top_p="1",
            row_invariant=True,
        )

    def prime(self, spec: RequestSpec) -> PrimeReceipt:
        self.engine.clock.now_ns += 500 * MILLISECOND
        if self.engine.lies("interrupt_prime"):
            raise KeyboardInterrupt
        self.primed.add(spec.request_id)
        short = 1 if self.engine.lies("prime_short") else 0
        other = "b" if self.engine.lies("prime_differs") else "a"
        return PrimeReceipt(spec.request_id, len(spec.prompt_token_ids) - short, 500 * MILLISECOND, "p", ("a", other))

    def run(
        self, specs: Sequence[RequestSpec], on_release: Callable[[ReleaseEvent], None] | None = None
    ) -> list[RequestResult]:
        assert len(specs) == 1, "a window sends one request at a time"
        return [result for spec in specs for result in self._serve(spec, on_release)]

    def _serve(self, spec: RequestSpec, on_release: Callable[[ReleaseEvent], None] | None) -> list[RequestResult]:
        engine, clock = self.engine, self.engine.clock
        measured = spec.request_id in self.primed
        engine.sent.append(f"{engine.starts}:{spec.request_id}:{spec.temperature}")
        admitted, end = clock.now_ns, clock.now_ns + (spec.time_budget_ns or 10**18)
        sampled = self.arm.engine_sampled_drafts
        emitted = engine.tokens_b if sampled else engine.tokens_a
        rounds: list[RoundRecord] = []
        tokens: list[int] = []
        while len(tokens) < spec.max_new_tokens and clock.now_ns + engine.round_ns <= end:
            if measured and len(rounds) == 3:
                if engine.lies("engine_fault"):
                    raise EngineFault("five epochs ended without a committed round")
                if engine.lies("interrupt_run"):
                    raise KeyboardInterrupt
                if engine.lies("driver_bug"):
                    raise ZeroDivisionError("planted")
            row = round_record(len(rounds), clock.now_ns, engine.round_ns, emitted, sampled)
            row = self._lying_round(row, measured)
            clock.now_ns += engine.round_ns
            fresh = (SECRET_TOKEN,) * min(emitted, spec.max_new_tokens - len(tokens))
            if spec.temperature == 0 and engine.lie == "greedy" and sampled and len(tokens) == emitted:
                fresh = (SECRET_TOKEN + 1, *fresh[1:])
            row = replace(row, emitted=len(fresh))
            rounds.append(row)
            tokens += fresh
            if on_release is not None:
                on_release(ReleaseEvent(spec.request_id, fresh, fresh, clock.now_ns, row))
        if engine.lies("silent_loss") and measured:
            return []
        return [self._result(spec, rounds, tokens, admitted, end, measured)]

    def _lying_round(self, row: RoundRecord, measured: bool) -> RoundRecord:
        lies = self.engine.lies
        if lies("q_swapped") and not measured:
            row = replace(row, q_frames=0 if row.q_frames else 5)
        if lies("q_gone_later") and measured:
            row = replace(row, q_frames=0 if row.q_frames else 5)
        if lies("depth_moves") and measured and row.round_number == 2:
            row = replace(row, drafted=row.drafted - 1)
        if lies("target_only") and measured and row.round_number == 2:
            row = replace(row, usable_depth=0, accepted=0, reason="frame_missing")
        if lies("damaged") and measured and row.round_number == 2:
            row = replace(row, usable_depth=0, accepted=0, reason="frame_damaged")
        return row

    def _result(
        self, spec: RequestSpec, rounds: list[RoundRecord], tokens: list[int], admitted: int, end: int, measured: bool
    ) -> RequestResult:
        lies, clock = self.engine.lies, self.engine.clock
        status = RequestStatus.BUDGET if len(tokens) >= spec.max_new_tokens else RequestStatus.DEADLINE
        if status is RequestStatus.DEADLINE:
            clock.now_ns = end
        failure = ""
        if lies("watchdog") and measured:
            status, failure = RequestStatus.FAILED, "watchdog: nothing for 90 s"
        if lies("bad_target_row") and measured:
            status, failure = RequestStatus.FAILED, "target row 2 of round 9 is not finite"
        if lies("after_stop") and measured:
            status, tokens = RequestStatus.EOS, [7, *tokens[1:]]
        return RequestResult(
            request_id="somebody-else" if lies("wrong_request") and measured else spec.request_id,
            status=status,
            failure=failure,
            token_ids=tuple(tokens),
            admitted_ns=admitted,
            first_token_ns=rounds[0].released_ns if rounds else None,
            finished_ns=clock.now_ns,
            open_round_age_ns=None,
            rounds=tuple(rounds),
            epochs_survived=1 if lies("epoch_lost") and measured else 0,
        )

    def stop(self) -> StopReceipt:
        pids = (FAKE_PID + 10 * self.number, FAKE_PID + 10 * self.number + 1)
        if self in self.engine.running:
            self.engine.running.remove(self)
        if self.engine.lies("stop_breaks"):
            raise RuntimeError("planted stop")
        return StopReceipt(pids, pids[:1] if self.engine.lies("survivor") else ())


@dataclass
class Rehearsal:
    """What a scripted window left behind."""

    engine: ScriptedEngine
    result: RehearsalResult
    events: list[ProgressEvent]


def rehearse_scripted(
    plan: Registration, folder: Path, lie: str = "", lie_start: int = 1, files: tuple[Path, ...] = ()
) -> Rehearsal:
    """Run a whole window on scripted ranks."""
    clock = VirtualClock()
    engine = ScriptedEngine(plan, clock, lie, lie_start)
    prompts = {row.source_id: (SECRET_TOKEN,) * row.occupied_tokens for row in plan.sources}
    prompts["warm-up"] = (SECRET_TOKEN,) * plan.warm_up.occupied_tokens
    events: list[ProgressEvent] = []
    inputs = RehearsalInputs(plan, prompts, MATRICES)
    result = run_window(inputs, engine, folder, files, events.append, clock, clock.sleep)
    return Rehearsal(engine, result, events)
