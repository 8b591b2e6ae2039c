"""One block on real ranks: start and attest, warm up, prime, run, stop, and the receipt of it.

Each step asks the ranks what they are instead of believing its own orders. Must never reuse ranks of an
earlier block or repeat a run. Source: plan, "separate engine session for each arm block".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ranks.bed_records import ReleaseEvent
from ranks.records import RequestResult, RequestSpec, RequestStatus, StopReceipt
from window.arms import BlockName
from window.bed_protocol import Engine, EngineFault, WindowBed
from window.dispositions import Disposition
from window.identity_check import identity_mismatches, rank_identity_of, same_processes, warm_up_mismatches
from window.measure import RunIdentity, measure_run, run_without_result
from window.records import BlockReceipt, PrimeRecord, RankIdentity, RunRecord, WarmUpRecord, WindowRound
from window.registration import Registration
from window.rehearsal_inputs import Prompts
from window.start_state import ProcessKey

__all__ = ["INTERRUPTED", "BlockSession", "OnRelease", "source_spec"]

INTERRUPTED = "interrupted"

OnRelease = Callable[[ReleaseEvent], None]
Clock = Callable[[], int]


def source_spec(
    registration: Registration,
    prompts: Prompts,
    source_id: str,
    *,
    temperature: int,
    max_new_tokens: int,
    granted_ns: int | None,
) -> RequestSpec:
    """Return the registered request of one source; `temperature` is 0 or 1."""
    source = registration.source(source_id)
    return RequestSpec(
        request_id=source_id,
        request_digest=bytes.fromhex(source.request_digest),
        sample_index=source.sample_index,
        seed=source.seed,
        prompt_token_ids=prompts[source_id],
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        stop_token_ids=registration.run.stop_token_ids,
        time_budget_ns=granted_ns,
    )


@dataclass(slots=True)
class BlockSession:
    """One block while it runs; `opened_ns` is the CLOCK_MONOTONIC time of elapsed 0."""

    registration: Registration
    prompts: Prompts
    block: BlockName
    engine: Engine
    clock: Clock
    opened_ns: int
    seen: list[ProcessKey]
    started_ns: int = 0
    mismatches: list[str] = field(default_factory=list)
    identity_before: tuple[RankIdentity, ...] = ()
    identity_after: tuple[RankIdentity, ...] = ()
    warm_up: WarmUpRecord | None = None
    primes: list[PrimeRecord] = field(default_factory=list)
    _bed: WindowBed | None = None

    def start(self) -> tuple[str, ...]:
        """Start fresh ranks, attest them, and return what does not match. Raises EngineFault."""
        self.started_ns = self.clock() - self.opened_ns
        arm = self.registration.arm_of(self.block)
        self._bed = self.engine.start(arm)
        self.identity_before = self._attest()
        self.mismatches += identity_mismatches(self.registration, arm, self.identity_before, self.seen)
        self._remember(self.identity_before)
        return tuple(self.mismatches)

    def warm_up_ranks(self) -> tuple[str, ...]:
        """Send the registered warm-up requests and return what does not match the arm. Raises EngineFault."""
        plan, began = self.registration.warm_up, self.clock()
        results: list[RequestResult] = []
        for index in range(plan.requests):
            spec = RequestSpec(
                request_id=f"warm-up-{index}",
                request_digest=bytes.fromhex(plan.request_digest),
                sample_index=index,
                seed=plan.seed,
                prompt_token_ids=self.prompts["warm-up"],
                max_new_tokens=plan.max_new_tokens,
                temperature=1,
            )
            results += self._ranks().run([spec])
        self.warm_up = _warm_up_record(results, self.registration.arm_of(self.block).depth, self.clock() - began)
        wrong = warm_up_mismatches(self.registration.arm_of(self.block), self.warm_up)
        self.mismatches += wrong
        return wrong

    def prime(self, source_id: str) -> PrimeRecord:
        """Prime one prefix and return what both ranks hold. Raises EngineFault."""
        spec = source_spec(
            self.registration,
            self.prompts,
            source_id,
            temperature=1,
            max_new_tokens=self.registration.run.max_new_tokens,
            granted_ns=None,
        )
        receipt = self._ranks().prime(spec)
        record = PrimeRecord(
            source_id=source_id,
            expected_tokens=self.registration.source(source_id).occupied_tokens,
            occupied_tokens=receipt.occupied_tokens,
            elapsed_ns=receipt.elapsed_ns,
            state_equal=receipt.state_digests[0] == receipt.state_digests[1],
        )
        self.primes.append(record)
        return record

    def run_identity(self, source_id: str, granted_ns: int) -> RunIdentity:
        """Return the registered identity of one run of this block."""
        arm, source = self.registration.arm_of(self.block), self.registration.source(source_id)
        return RunIdentity(
            run_id=f"{self.block}/{source_id}",
            block=self.block,
            source_id=source_id,
            order_index=self.registration.order.index(source_id),
            request_digest=source.request_digest,
            sample_index=source.sample_index,
            seed=source.seed,
            depth=arm.depth,
            sampled_drafts=arm.engine_sampled_drafts,
            stop_token_ids=self.registration.run.stop_token_ids,
            registered_ns=self.registration.run.time_budget_ns,
            granted_ns=granted_ns,
            opened_ns=self.opened_ns,
        )

    def run(self, source_id: str, granted_ns: int, on_release: OnRelease) -> tuple[RunRecord, tuple[WindowRound, ...]]:
        """Run one registered request alone and return its record.

        An interrupt ends the run as canceled, a fault as failed, both with the rounds received so far; an engine that
        answers without this request lost it.
        """
        identity = self.run_identity(source_id, granted_ns)
        spec = source_spec(
            self.registration,
            self.prompts,
            source_id,
            temperature=1,
            max_new_tokens=self.registration.run.max_new_tokens,
            granted_ns=granted_ns,
        )
        heard: list[ReleaseEvent] = []

        def hear(event: ReleaseEvent) -> None:
            heard.append(event)
            on_release(event)

        began_ns = self.clock()
        try:
            results = self._ranks().run([spec], hear)
        except EngineFault as fault:
            return measure_run(identity, self._partial(spec, heard, began_ns, RequestStatus.FAILED, str(fault)))
        except KeyboardInterrupt:
            return measure_run(identity, self._partial(spec, heard, began_ns, RequestStatus.CANCELED, INTERRUPTED))
        if len(results) != 1 or results[0].request_id != spec.request_id:
            return run_without_result(identity, Disposition.LOST, "the engine gave no answer for this request"), ()
        return measure_run(identity, results[0])

    def _partial(
        self, spec: RequestSpec, heard: list[ReleaseEvent], began_ns: int, status: RequestStatus, failure: str
    ) -> RequestResult:
        """Return what was received of a run that has no answer: its complete rounds are kept."""
        return RequestResult(
            request_id=spec.request_id,
            status=status,
            failure=failure,
            token_ids=tuple(token_id for event in heard for token_id in event.token_ids),
            admitted_ns=began_ns,
            first_token_ns=heard[0].released_ns if heard else None,
            finished_ns=self.clock(),
            open_round_age_ns=None,
            rounds=tuple(event.round for event in heard),
            epochs_survived=0,
        )

    def stop(self) -> StopReceipt:
        """Attest once more if possible, then stop the ranks; idempotent."""
        if self._bed is None:
            return StopReceipt((), ())
        if self.identity_before and not self.identity_after:
            self.identity_after = self._attest()
            self.mismatches += same_processes(self.identity_before, self.identity_after)
            self._remember(self.identity_after)
        return self._bed.stop()

    def receipt(
        self, outcome: Literal["COMPLETE", "TRUNCATED", "FAILED"], failure: str, stopped: StopReceipt
    ) -> BlockReceipt:
        """Return the block's receipt."""
        return BlockReceipt(
            block=self.block,
            arm=self.registration.arm_of(self.block).name,
            outcome=outcome,
            failure=failure,
            started_ns=self.started_ns,
            ended_ns=self.clock() - self.opened_ns,
            identity_before=self.identity_before,
            identity_after=self.identity_after,
            mismatches=tuple(self.mismatches),
            warm_up=self.warm_up,
            primes=tuple(self.primes),
            stopped_pids=stopped.stopped_pids,
            survivors=stopped.survivors,
        )

    def _ranks(self) -> WindowBed:
        """Return the running ranks. Raises EngineFault when there are none."""
        if self._bed is None:
            raise EngineFault(f"block {self.block} has no running ranks")
        return self._bed

    def _attest(self) -> tuple[RankIdentity, ...]:
        """Return who both ranks say they are."""
        return tuple(rank_identity_of(attestation) for attestation in self._ranks().attest())

    def _remember(self, identities: tuple[RankIdentity, ...]) -> None:
        """Add rank processes to those that must be gone at the end."""
        for identity in identities:
            key = (identity.pid, identity.process_start_ticks)
            if key not in self.seen:
                self.seen.append(key)


def _warm_up_record(results: list[RequestResult], depth: int, elapsed_ns: int) -> WarmUpRecord:
    """Return what the warm-up rounds showed; the first request's first token is the cold one."""
    rounds = [record for result in results for record in result.rounds]
    drafted = [record for record in rounds if record.drafted > 0]
    first = results[0].first_token_ns if results else None
    return WarmUpRecord(
        requests=len(results),
        rounds=len(rounds),
        rounds_with_drafts=len(drafted),
        rounds_with_q=sum(record.q_frames > 0 for record in rounds),
        rounds_off_depth=sum(record.drafted != depth for record in rounds),
        cold_ttft_ns=None if first is None else first - results[0].admitted_ns,
        elapsed_ns=elapsed_ns,
    )
