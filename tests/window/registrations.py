"""Lawful registrations for the window's tests, to be changed field by field."""

from __future__ import annotations

from typing import Any

from window.arms import Arm, EngineIdentity, TargetPolicy
from window.canonical import sha256_hex
from window.gain import IndexMatrices
from window.index_matrix import draw_index_matrix, matrix_digest
from window.registration import (
    Registration,
    RegistrationKind,
    RunPlan,
    SmokePlan,
    Source,
    SourceFile,
    WarmUpPlan,
)
from window.rules import Rules, decided_rules
from window.stages import SECOND_NS, StageBudgets, Walls, plan_stage_budgets, plan_walls

ORDER = ("f1-short", "f2-mid", "f1-long", "f2-short", "f1-mid", "f2-long")
TOKENS = {"short": 256, "mid": 2048, "long": 8192}
PLAN_TOKENS = {"short": 512, "mid": 32_768, "long": 153_600}
MATRICES = IndexMatrices(draw_index_matrix(2, 2000, 4103), draw_index_matrix(6, 2000, 4103))
LAW = "top32/tau0.7/dyadic24-floor-first-v1"
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
    return {
        "format": "specbed-registration-1",
        "kind": kind,
        "label": "a test window",
        "registered_at_utc": "2026-01-02T03:04:05Z",
        "code_sha256": digest("code"),
        "arms": (arm("A"), arm("B")),
        "policy": policy(),
        "engine": engine(),
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
        "rules": rules(plan, minimum_rounds),
    }


def policy() -> TargetPolicy:
    """Return the target policy."""
    return TargetPolicy(
        temperature="1",
        top_p="1",
        reasoning_effort="high",
        priority=10,
        context_profile="test",
        context_limit_tokens=163_840,
        reasoning_reserve_tokens=2048,
        output_reserve_tokens=4096,
    )


def engine() -> EngineIdentity:
    """Return what every honest rank reports."""
    return EngineIdentity(
        profile="cpu",
        device="cpu",
        source_sha256=digest("source"),
        weights_sha256=digest("weights"),
        ngram_memory_sha256=digest("ngram"),
        tokenizer_sha256=digest("tokenizer"),
        abi_marker="abi-1",
        python_version="3.11.7",
        torch_version="2.13.0",
    )


def rules(plan: bool, minimum_rounds: int) -> Rules:
    """Return the decided rules."""
    return decided_rules(
        matrix_digest(MATRICES.families),
        matrix_digest(MATRICES.sources),
        structured_smoke=plan,
        minimum_rounds=minimum_rounds,
    )


def registration(
    kind: RegistrationKind = RegistrationKind.REDUCED, minimum_rounds: int = 90, **changes: Any
) -> Registration:
    """Return a lawful registration with some fields changed."""
    return Registration(**{**registration_fields(kind, minimum_rounds), **changes})
