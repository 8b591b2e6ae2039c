"""Scripted answers and whole scripted windows for the tests: exact, tiny, and made through the real code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ranks.records import RankTimes, RequestResult, RequestStatus, RoundRecord
from tests.window.registrations import DEPTH, MATRICES, ORDER, STOP_TOKEN, registration
from window.arms import ARM_OF_BLOCK, BlockName
from window.decision import Decision, decide
from window.dispositions import Disposition
from window.measure import RunIdentity, columns_of, measure_run, run_without_result
from window.records import (
    BlockReceipt,
    PrimeRecord,
    RankIdentity,
    RestoreReceipt,
    RoundColumns,
    RunRecord,
    SmokePartResult,
    SmokeReceipt,
    StageSpan,
    WarmUpRecord,
    WindowRecords,
)
from window.registration import Registration
from window.stages import SECOND_NS

ROUND_NS = 40_000_000


def round_record(number: int, started_ns: int, duration_ns: int, emitted: int, sampled: bool) -> RoundRecord:
    """Return one healthy round."""
    times = RankTimes(1000, 2000, 3000 if sampled else 0, 500, duration_ns // 2, 4000, duration_ns)
    return RoundRecord(
        request_id="r",
        round_number=number,
        epoch=1,
        attempt=0,
        batch_size=1,
        position=number * emitted,
        drafted=DEPTH,
        usable_depth=DEPTH,
        accepted=min(DEPTH, emitted - 1),
        emitted=emitted,
        reason="",
        q_frames=DEPTH if sampled else 0,
        started_ns=started_ns,
        released_ns=started_ns + duration_ns,
        rank0=times,
        rank1=times,
    )


def answer(
    *,
    durations_ns: tuple[int, ...],
    emitted: int,
    sampled: bool,
    status: RequestStatus = RequestStatus.BUDGET,
    admitted_ns: int = 1_000_000,
    failure: str = "",
    finished_ns: int | None = None,
    open_round_age_ns: int | None = None,
) -> RequestResult:
    """Return a request's answer with back-to-back rounds, `emitted` tokens each."""
    rounds: list[RoundRecord] = []
    now = admitted_ns
    for number, duration in enumerate(durations_ns):
        rounds.append(round_record(number, now, duration, emitted, sampled))
        now += duration
    return RequestResult(
        request_id="r",
        status=status,
        failure=failure,
        token_ids=(5,) * (emitted * len(rounds)),
        admitted_ns=admitted_ns,
        first_token_ns=rounds[0].released_ns if rounds else None,
        finished_ns=now if finished_ns is None else finished_ns,
        open_round_age_ns=open_round_age_ns,
        rounds=tuple(rounds),
        epochs_survived=0,
    )


def identity(plan: Registration, block: BlockName, source_id: str, granted_ns: int | None = None) -> RunIdentity:
    """Return the registered identity of one run."""
    row = plan.source(source_id)
    return RunIdentity(
        run_id=f"{block}/{source_id}",
        block=block,
        source_id=source_id,
        order_index=plan.order.index(source_id),
        request_digest=row.request_digest,
        sample_index=row.sample_index,
        seed=row.seed,
        depth=plan.arm_of(block).depth,
        sampled_drafts=plan.arm_of(block).engine_sampled_drafts,
        stop_token_ids=(STOP_TOKEN,),
        registered_ns=plan.run.time_budget_ns,
        granted_ns=plan.run.time_budget_ns if granted_ns is None else granted_ns,
        opened_ns=0,
    )


def rank_identity(plan: Registration, block: BlockName, rank: int) -> RankIdentity:
    """Return what an honest rank attests."""
    own = plan.arm_of(block)
    return RankIdentity(
        rank=rank,
        pid=100 * (plan.blocks.index(block) + 1) + rank,
        process_start_ticks=5,
        incarnation=f"{block}-{rank}",
        weights_sha256=plan.engine.weights_sha256,
        ngram_memory_sha256=plan.engine.ngram_memory_sha256,
        source_sha256=plan.engine.source_sha256,
        law_id=own.draft_law_id,
        abi_marker=plan.engine.abi_marker,
        sampled_drafts=own.engine_sampled_drafts,
        depth=own.depth,
        profile=plan.engine.profile,
        device=plan.engine.device,
        python_version=plan.engine.python_version,
        torch_version=plan.engine.torch_version,
        target_temperature="1",
        target_top_p="1",
        row_invariant=True,
    )


@dataclass
class Scene:
    """A whole window's records, made through the measuring code; change a field, then decide.

    `percent[source]` is how many tokens a round of B emits more than 100; `session_percent[block]` adds to it.
    """

    plan: Registration
    percent: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ORDER, 8))
    session_percent: Mapping[str, int] = field(default_factory=dict)
    rounds_per_run: int = 50
    round_ns: Mapping[tuple[BlockName, str], int] = field(default_factory=dict)
    ttft_ns: Mapping[tuple[BlockName, str], int] = field(default_factory=dict)
    cold_ttft_ns: Mapping[str, int] = field(default_factory=dict)
    edit_run: Callable[[RunRecord], RunRecord | None] = lambda run: run
    edit_result: Callable[[str, RequestResult], RequestResult] = lambda run_id, result: result
    edit_block: Callable[[BlockReceipt], BlockReceipt | None] = lambda receipt: receipt
    greedy_outcome: str = "MATCH"
    restored: bool = True
    opened: bool = True
    smoke: bool = True

    def run(self, block: BlockName, source_id: str) -> tuple[RunRecord, RoundColumns]:
        """Return one measured run."""
        sampled = ARM_OF_BLOCK[block] == "B"
        emitted = 100 + self.session_percent.get(block, 0) + (self.percent[source_id] if sampled else 0)
        duration = self.round_ns.get((block, source_id), ROUND_NS)
        first = self.ttft_ns.get((block, source_id), 100_000_000)
        result = answer(
            durations_ns=(first, *([duration] * (self.rounds_per_run - 1))), emitted=emitted, sampled=sampled
        )
        result = self.edit_result(f"{block}/{source_id}", result)
        record, rounds = measure_run(identity(self.plan, block, source_id), result)
        return record, columns_of(rounds)

    def block(self, block: BlockName) -> BlockReceipt:
        """Return an honest block receipt."""
        own = self.plan.arm_of(block)
        ranks = (rank_identity(self.plan, block, 0), rank_identity(self.plan, block, 1))
        start = 7 * SECOND_NS + self.plan.blocks.index(block) * 40 * SECOND_NS
        return BlockReceipt(
            block=block,
            arm=own.name,
            outcome="COMPLETE",
            failure="",
            started_ns=start,
            ended_ns=start + 38 * SECOND_NS,
            identity_before=ranks,
            identity_after=ranks,
            mismatches=(),
            warm_up=WarmUpRecord(
                requests=2,
                rounds=8,
                rounds_with_drafts=8,
                rounds_with_q=8 if own.engine_sampled_drafts else 0,
                rounds_off_depth=0,
                cold_ttft_ns=self.cold_ttft_ns.get(block, 700_000_000),
                elapsed_ns=2 * SECOND_NS,
            ),
            primes=tuple(
                PrimeRecord(
                    source_id=name,
                    expected_tokens=self.plan.source(name).occupied_tokens,
                    occupied_tokens=self.plan.source(name).occupied_tokens,
                    elapsed_ns=SECOND_NS,
                    state_equal=True,
                )
                for name in self.plan.order
            ),
            stopped_pids=tuple(rank.pid for rank in ranks),
            survivors=(),
        )

    def records(self) -> WindowRecords:
        """Return the sealed records."""
        runs: list[RunRecord] = []
        columns: dict[str, RoundColumns] = {}
        for block in self.plan.blocks:
            for source_id in self.plan.order:
                record, rows = self.run(block, source_id)
                columns[record.run_id] = rows
                edited = self.edit_run(record)
                if edited is not None:
                    runs.append(edited)
        receipts = (self.edit_block(self.block(block)) for block in self.plan.blocks)
        smoke = SmokeReceipt(
            started_ns=168 * SECOND_NS,
            ended_ns=180 * SECOND_NS,
            results=tuple(
                SmokePartResult(
                    part=part,
                    case=f"{part} case",
                    outcome=self.greedy_outcome if part == "greedy" else "MATCH",  # type: ignore[arg-type]
                    compared_tokens=24,
                    first_difference=3 if part == "greedy" and self.greedy_outcome == "MISMATCH" else None,
                    reason="",
                )
                for part in self.plan.smoke.parts
            ),
        )
        restore = RestoreReceipt(
            outcome="RESTORED" if self.restored else "ESCALATED",
            fencing_epoch=2,
            started_ns=180 * SECOND_NS,
            ended_ns=183 * SECOND_NS,
            items=(),
            reason="" if self.restored else "a rank process is still alive",
        )
        return WindowRecords(
            opened=self.opened,
            runs=tuple(runs),
            rounds=columns,
            blocks=tuple(receipt for receipt in receipts if receipt is not None),
            smoke=smoke if self.smoke else None,
            restore=restore if self.opened else None,
            spans=self.spans(),
            findings=(),
            stop_reason="" if self.opened else "a gate is open",
        )

    def spans(self) -> tuple[StageSpan, ...]:
        """Return a plausible time line."""
        spans = [StageSpan(stage="drain", block=None, started_ns=0, ended_ns=7 * SECOND_NS, budget_ns=7 * SECOND_NS)]
        for index, block in enumerate(self.plan.blocks):
            start = (7 + 40 * index) * SECOND_NS
            for stage, begin, end, budget in (("start", 0, 9, 14), ("prime", 9, 15, 10), ("runs", 15, 38, 22)):
                spans.append(
                    StageSpan(
                        stage=stage,
                        block=block,
                        started_ns=start + begin * SECOND_NS,
                        ended_ns=start + end * SECOND_NS,
                        budget_ns=budget * SECOND_NS,
                    )
                )
        for stage, begin, end, budget in (("smoke", 168, 180, 24), ("restore", 180, 183, 12), ("close", 183, 184, 8)):
            spans.append(
                StageSpan(
                    stage=stage,
                    block=None,
                    started_ns=begin * SECOND_NS,
                    ended_ns=end * SECOND_NS,
                    budget_ns=budget * SECOND_NS,
                )
            )
        return tuple(spans)

    def decide(self) -> Decision:
        """Return the decision."""
        return decide(self.plan, self.records(), MATRICES)


def scene(**changes: Any) -> Scene:
    """Return a reduced window in which every rule holds, with some fields changed."""
    return replace(Scene(registration()), **changes)


def lost(plan: Registration, run: RunRecord, disposition: Disposition, reason: str) -> RunRecord:
    """Return the record of the same run without an answer."""
    return run_without_result(identity(plan, run.block, run.source_id), disposition, reason)
