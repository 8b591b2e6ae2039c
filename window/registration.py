"""The frozen plan of one window; the sha-256 of its canonical bytes is the window's id.

Nothing in it changes after the freeze. Only kind PLAN can end in a promotable CANDIDATE; REDUCED and
EXERCISE are decided by the same code and stamped. Must never hold prompt or output text: sources are
named by digests and counts. Source: plan, "Frozen arms and schedule"; DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from window.arms import ARM_OF_BLOCK, BLOCK_NAMES, Arm, ArmName, BlockName, EngineIdentity, TargetPolicy
from window.canonical import (
    Count,
    Digest,
    SealedModel,
    canonical_bytes,
    canonical_json,
    parse_document,
    sha256_hex,
)
from window.dispositions import RejectReason
from window.rules import Rules
from window.stages import StageBudgets, Walls, plan_stage_budgets, plan_walls

__all__ = [
    "Registration",
    "RegistrationKind",
    "RunPlan",
    "SmokePlan",
    "Source",
    "SourceFile",
    "WarmUpPlan",
    "parse_registration",
    "request_digest_of",
]

CONTEXTS: tuple[Literal["short", "mid", "long"], ...] = ("short", "mid", "long")
# "32K" and "150K" are read as the smaller of both customs, so that either way of counting is lawful.
PLAN_LEAST_TOKENS = {"mid": 32_000, "long": 150_000}


class RegistrationKind(StrEnum):
    """What a window may lead to."""

    PLAN = "PLAN"
    REDUCED = "REDUCED"
    EXERCISE = "EXERCISE"


class SourceFile(SealedModel):
    """One public file that a prompt was cut from, by its name and digest."""

    name: Annotated[str, Field(min_length=1)]
    sha256: Digest


class Source(SealedModel):
    """One frozen request: family, context, exact occupied tokens, digests and seed."""

    source_id: Annotated[str, Field(pattern=r"^f[0-9]+-(short|mid|long)$")]
    family: Annotated[str, Field(pattern=r"^f[0-9]+$")]
    family_title: Annotated[str, Field(min_length=1)]
    context: Literal["short", "mid", "long"]
    occupied_tokens: Annotated[int, Field(ge=1, le=163_840)]
    prompt_tokens_sha256: Digest
    files: Annotated[tuple[SourceFile, ...], Field(min_length=1)]
    request_digest: Digest
    sample_index: Count
    seed: Count

    @model_validator(mode="after")
    def _name_matches(self) -> Self:
        if self.source_id != f"{self.family}-{self.context}":
            raise ValueError(f"source {self.source_id} must be named {self.family}-{self.context}")
        return self


class RunPlan(SealedModel):
    """The bound of every measured run; one request is in flight at a time."""

    time_budget_ns: Annotated[int, Field(ge=1_000_000)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    stop_token_ids: tuple[Count, ...]
    batch_size: Literal[1]


class WarmUpPlan(SealedModel):
    """The registered requests sent to every block before priming; the first one gives the cold TTFT."""

    prompt_tokens_sha256: Digest
    occupied_tokens: Annotated[int, Field(ge=1)]
    request_digest: Digest
    requests: Annotated[int, Field(ge=1, le=16)]
    seed: Count
    max_new_tokens: Annotated[int, Field(ge=2)]


class SmokePlan(SealedModel):
    """The paired smoke at temperature 0: which parts, on which sources, how many tokens."""

    parts: Annotated[tuple[Literal["greedy", "failure", "structured"], ...], Field(min_length=1)]
    source_ids: Annotated[tuple[str, ...], Field(min_length=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: Count


class Registration(SealedModel):
    """One window, whole."""

    format: Literal["specbed-registration-1"]
    kind: RegistrationKind
    label: Annotated[str, Field(min_length=1, max_length=120)]
    registered_at_utc: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    code_sha256: Digest
    arms: tuple[Arm, Arm]
    policy: TargetPolicy
    engine: EngineIdentity
    sources: Annotated[tuple[Source, ...], Field(min_length=2)]
    order: tuple[str, ...]
    blocks: tuple[BlockName, ...]
    run: RunPlan
    warm_up: WarmUpPlan
    smoke: SmokePlan
    stages: StageBudgets
    walls: Walls
    rules: Rules

    @model_validator(mode="after")
    def _arms_differ_only_by_drafts(self) -> Self:
        arm_a, arm_b = self.arms
        if (arm_a.name, arm_b.name) != ("A", "B"):
            raise ValueError("arms must be A, then B")
        if arm_a.engine_sampled_drafts or not arm_b.engine_sampled_drafts:
            raise ValueError("arm A must have both sampled switches off and arm B both on")
        if arm_a.depth != arm_b.depth:
            raise ValueError(f"arm A has depth {arm_a.depth} and arm B {arm_b.depth}; both need the same fixed depth")
        return self

    @model_validator(mode="after")
    def _sources_are_a_grid(self) -> Self:
        if len({source.source_id for source in self.sources}) != len(self.sources):
            raise ValueError("two sources have the same source_id")
        families, contexts = self.families(), self.contexts()
        if len(self.sources) != len(families) * len(contexts):
            raise ValueError("every family needs one source in every context")
        prompts = {source.prompt_tokens_sha256 for source in self.sources} | {self.warm_up.prompt_tokens_sha256}
        if len(prompts) != len(self.sources) + 1:
            raise ValueError("two prompts are the same; each source and the warm-up need a prompt of its own")
        return self

    @model_validator(mode="after")
    def _order_rotates(self) -> Self:
        if sorted(self.order) != sorted(source.source_id for source in self.sources):
            raise ValueError("order must name every source exactly once")
        rows = [self.source(name) for name in self.order]
        for earlier, later in pairwise(rows):
            if earlier.family == later.family or (len(self.contexts()) > 1 and earlier.context == later.context):
                raise ValueError(
                    f"order must rotate over families and contexts, but {earlier.source_id} stands before "
                    f"{later.source_id}"
                )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.blocks != BLOCK_NAMES:
            raise ValueError("blocks must be A1, B1, B2, A2 in this order")
        needed = self.run.time_budget_ns * len(self.order)
        if needed > self.stages.runs_ns:
            raise ValueError(f"{len(self.order)} runs need {needed} ns but stages.runs_ns is {self.stages.runs_ns}")
        restored = self.walls.latest_restore_start_ns + self.stages.restore_ns
        if restored > self.walls.escalate_restore_ns:
            raise ValueError("a restore begun at latest_restore_start_ns must fit before escalate_restore_ns")
        if restored + self.stages.close_ns > self.walls.closed_ns:
            raise ValueError("a restore begun at latest_restore_start_ns and the close must fit before closed_ns")
        return self

    @model_validator(mode="after")
    def _contexts_fit(self) -> Self:
        reserve = self.policy.reasoning_reserve_tokens + self.policy.output_reserve_tokens
        for source in self.sources:
            if source.occupied_tokens + reserve > self.policy.context_limit_tokens:
                raise ValueError(
                    f"source {source.source_id} occupies {source.occupied_tokens} tokens; with a reserve of {reserve} "
                    f"that is above context_limit_tokens {self.policy.context_limit_tokens}"
                )
        if self.run.max_new_tokens > reserve:
            raise ValueError(f"run.max_new_tokens is {self.run.max_new_tokens}, above the reserve of {reserve} tokens")
        unknown = set(self.smoke.source_ids) - {source.source_id for source in self.sources}
        if unknown:
            raise ValueError(f"smoke.source_ids names {sorted(unknown)[0]}, which is no registered source")
        return self

    @model_validator(mode="after")
    def _kind_allows(self) -> Self:
        structured = "structured" in self.smoke.parts
        if structured != bool(self.rules.records_of(RejectReason.GRAMMAR)):
            raise ValueError("the reason grammar is fed by the smoke exactly when the smoke has a structured part")
        if self.kind is RegistrationKind.EXERCISE:
            return self
        if (len(self.families()), self.contexts()) != (2, CONTEXTS):
            raise ValueError(f"kind {self.kind} needs 2 families and the contexts short, mid and long")
        if self.kind is RegistrationKind.PLAN:
            self._check_plan()
        return self

    def _check_plan(self) -> None:
        """Hold what only a full plan must have. Raises ValueError."""
        if any(not self.rules.records_of(reason) for reason in RejectReason):
            raise ValueError("kind PLAN needs records behind each of the ten reasons for REJECT")
        if set(self.smoke.parts) != {"greedy", "failure", "structured"}:
            raise ValueError("kind PLAN needs the smoke parts greedy, failure and structured")
        if self.arms[0].depth != 5:
            raise ValueError("kind PLAN runs at depth 5; a fixed depth 4 is a new registration of kind EXERCISE")
        if (self.stages, self.walls) != (plan_stage_budgets(), plan_walls()):
            raise ValueError("kind PLAN keeps the stage budgets and walls of the plan: 7, 4 x 11, 3, 12, 3 minutes")
        if self.rules.round_time.minimum_rounds < 90:
            raise ValueError("kind PLAN needs at least 90 rounds an arm and cell")
        for source in self.sources:
            least = PLAN_LEAST_TOKENS.get(source.context, 1)
            if source.occupied_tokens < least:
                raise ValueError(f"source {source.source_id} must occupy at least {least} tokens in kind PLAN")

    def families(self) -> tuple[str, ...]:
        """Return the family names, sorted."""
        return tuple(sorted({source.family for source in self.sources}))

    def contexts(self) -> tuple[str, ...]:
        """Return the contexts in use, short to long."""
        used = {source.context for source in self.sources}
        return tuple(name for name in CONTEXTS if name in used)

    def source(self, source_id: str) -> Source:
        """Return one source. Raises KeyError when it is not registered."""
        for source in self.sources:
            if source.source_id == source_id:
                return source
        raise KeyError(source_id)

    def source_grid(self) -> tuple[str, ...]:
        """Return the source ids family by family, contexts short to long: the row order of every statistic."""
        return tuple(f"{family}-{context}" for family in self.families() for context in self.contexts())

    def arm_of(self, block: BlockName) -> Arm:
        """Return the arm that runs in a block."""
        return self.arms[0] if ARM_OF_BLOCK[block] == "A" else self.arms[1]

    def blocks_of(self, arm: ArmName) -> tuple[BlockName, ...]:
        """Return the blocks of one arm in the order they run."""
        return tuple(block for block in self.blocks if ARM_OF_BLOCK[block] == arm)

    def run_ids(self) -> tuple[str, ...]:
        """Return the ids of all registered runs, in the order they run."""
        return tuple(f"{block}/{source_id}" for block in self.blocks for source_id in self.order)

    def window_id(self) -> str:
        """Return the sha-256 of the canonical bytes."""
        return sha256_hex(canonical_bytes(self))


def request_digest_of(prompt_token_ids: Sequence[int], sample_index: int, policy: TargetPolicy) -> str:
    """Return the digest that keys every draw of a request: prompt ids, sample index and target policy."""
    return sha256_hex(
        canonical_json(
            {
                "prompt_token_ids": list(prompt_token_ids),
                "sample_index": sample_index,
                "policy": policy.model_dump(mode="json"),
            }
        )
    )


def parse_registration(data: bytes, name: str) -> Registration:
    """Return a validated registration. Raises WindowError with one sentence when it is not one."""
    return parse_document(Registration, data, name)
