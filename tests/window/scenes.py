"""Registrations and scripted answers for the window's tests: exact, tiny, and made through the real code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ranks.records import RankTimes, RequestResult, RequestStatus, RoundRecord
from window.arms import ARM_OF_BLOCK, Arm, BlockName, EngineIdentity, TargetPolicy
from window.canonical import sha256_hex
from window.decision import Decision, decide
from window.dispositions import Disposition
from window.gain import IndexMatrices
from window.index_matrix import draw_index_matrix, matrix_digest
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
from window.registration import (
    Registration,
    RegistrationKind,
    RunPlan,
    SmokePlan,
    Source,
    SourceFile,
    WarmUpPlan,
)
from window.rules import decided_rules
from window.stages import SECOND_NS, StageBudgets, Walls, plan_stage_budgets, plan_walls

ORDER = ("f1-short", "f2-mid", "f1-long", "f2-short", "f1-mid", "f2-long")
TOKENS = {"short": 256, "mid": 2048, "long": 8192}
PLAN_TOKENS = {"short": 512, "mid": 32_768, "long": 153_600}
MATRICES = IndexMatrices(draw_index_matrix(2, 2000, 4103), draw_index_matrix(6, 2000, 4103))
LAW = "top32/tau0.7/dyadic24-floor-first-v1"
ROUND_NS = 40_000_000
STOP_TOKEN = 7
DEPTH = 5


def digest(name: str) -> str:
    """Return a digest that stands for something by its name."""
    return sha256_hex(name.encode())


def arm(name: str, **changes: Any) -> Arm:
    """Return arm A or B at depth 5."""
    sampled = name == "B"
    fields: dict[str, Any] = {
        "name": name,
        "engine_sampled_drafts": sampled,
        "worker_sampled_drafts": sampled,
        "draft_law_id": LAW if sampled else "greedy/one-hot-v1",
        "acceptance": "standard rejection",
        "depth": DEPTH,
        "adaptive_admission": False,
        "confidence_admission": False,
        "prompt_lookup": False,
        "dynamic_depth": False,
        "depth_file_reload": False,
    }
    return Arm(**{**fields, **changes})


def source(source_id: str, tokens: int) -> Source:
    """Return one registered source."""
    family, context = source_id.split("-")
    return Source(
        source_id=source_id,
        family=family,
        family_title={"f1": "standard-library code", "f2": "documentation prose"}[family],
        context=context,  # type: ignore[arg-type]
        occupied_tokens=tokens,
        prompt_tokens_sha256=digest(f"prompt {source_id}"),
        files=(SourceFile(name=f"{family}.py", sha256=digest(f"file {source_id}")),),
        request_digest=digest(f"request {source_id}"),
        sample_index=0,
        seed=11,
    )


def small_stages() -> tuple[StageBudgets, Walls]:
    """Return budgets and walls of a reduced window in whole seconds."""
    stages = StageBudgets(
        drain_ns=7 * SECOND_NS,
        start_and_warm_ns=14 * SECOND_NS,
        prime_ns=10 * SECOND_NS,
        runs_ns=22 * SECOND_NS,
        block_limit_ns=46 * SECOND_NS,
        smoke_ns=24 * SECOND_NS,
        restore_ns=12 * SECOND_NS,
        close_ns=8 * SECOND_NS,
    )
    walls = Walls(
        stop_admission_if_overrun_ns=188 * SECOND_NS,
        latest_restore_start_ns=216 * SECOND_NS,
        escalate_restore_ns=230 * SECOND_NS,
        closed_ns=240 * SECOND_NS,
    )
    return stages, walls


def registration_fields(kind: RegistrationKind = RegistrationKind.REDUCED, minimum_rounds: int = 90) -> dict[str, Any]:
    """Return the fields of a lawful registration, to be changed by a test."""
    plan = kind is RegistrationKind.PLAN
    stages, walls = (plan_stage_budgets(), plan_walls()) if plan else small_stages()
    tokens = PLAN_TOKENS if plan else TOKENS
    rules = decided_rules(
        matrix_digest(MATRICES.families),
        matrix_digest(MATRICES.sources),
        structured_smoke=plan,
        minimum_rounds=minimum_rounds,
    )
    return {
        "format": "specbed-registration-1",
        "kind": kind,
        "label": "a test window",
        "registered_at_utc": "2026-01-02T03:04:05Z",
        "code_sha256": digest("code"),
        "arms": (arm("A"), arm("B")),
        "policy": TargetPolicy(
            temperature="1",
            top_p="1",
            reasoning_effort="high",
            priority=10,
            context_profile="test",
            context_limit_tokens=163_840,
            reasoning_reserve_tokens=2048,
            output_reserve_tokens=4096,
        ),
        "engine": EngineIdentity(
            profile="cpu",
            device="cpu",
            source_sha256=digest("source"),
            weights_sha256=digest("weights"),
            ngram_memory_sha256=digest("ngram"),
            tokenizer_sha256=digest("tokenizer"),
            abi_marker="abi-1",
            python_version="3.11.7",
            torch_version="2.13.0",
        ),
        "sources": tuple(source(name, tokens[name.split("-")[1]]) for name in ORDER),
        "order": ORDER,
        "blocks": ("A1", "B1", "B2", "A2"),
        "run": RunPlan(
            time_budget_ns=30 * SECOND_NS if plan else 3 * SECOND_NS,
            max_new_tokens=4096,
            stop_token_ids=(STOP_TOKEN,),
            batch_size=1,
        ),
        "warm_up": WarmUpPlan(
            prompt_tokens_sha256=digest("warm-up"),
            occupied_tokens=64,
            request_digest=digest("request warm-up"),
            requests=2,
            seed=11,
            max_new_tokens=16,
        ),
        "smoke": SmokePlan(
            parts=("greedy", "failure", "structured") if plan else ("greedy",),
            source_ids=("f1-short", "f2-short"),
            max_new_tokens=24,
            seed=11,
        ),
        "stages": stages,
        "walls": walls,
        "rules": rules,
    }


def registration(
    kind: RegistrationKind = RegistrationKind.REDUCED, minimum_rounds: int = 90, **changes: Any
) -> Registration:
    """Return a lawful registration with some fields changed."""
    return Registration(**{**registration_fields(kind, minimum_rounds), **changes})


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
    round_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ttft_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
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
