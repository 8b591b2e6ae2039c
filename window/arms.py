"""The two arms, the target policy both keep, and what every block must attest.

Must never hold a switch with a silent default. Source: plan, "Frozen arms and schedule".
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from selector.law_ids import EXACT_LAW_ID, GREEDY_LAW_ID, LawFamily, law_of_id
from window.canonical import Count, DecimalText, Digest, SealedModel

__all__ = ["ARM_OF_BLOCK", "BLOCK_NAMES", "Arm", "ArmName", "BlockName", "EngineIdentity", "TargetPolicy"]

ArmName = Literal["A", "B"]
BlockName = Literal["A1", "B1", "B2", "A2"]
BLOCK_NAMES: tuple[BlockName, ...] = ("A1", "B1", "B2", "A2")
ARM_OF_BLOCK: dict[BlockName, ArmName] = {"A1": "A", "B1": "B", "B2": "B", "A2": "A"}


class Arm(SealedModel):
    """Every switch of one arm, by name; only the two sampled switches and the law may differ between arms."""

    name: ArmName
    engine_sampled_drafts: bool
    worker_sampled_drafts: bool
    draft_law_id: Annotated[str, Field(min_length=1)]
    acceptance: Literal["standard rejection"]
    depth: Annotated[int, Field(ge=1, le=8)]
    adaptive_admission: Literal[False]
    confidence_admission: Literal[False]
    prompt_lookup: Literal[False]
    dynamic_depth: Literal[False]
    depth_file_reload: Literal[False]

    @model_validator(mode="after")
    def _switches_agree(self) -> Self:
        if self.engine_sampled_drafts != self.worker_sampled_drafts:
            raise ValueError(
                f"arm {self.name} has one sampled switch on and one off; engine_sampled_drafts and "
                "worker_sampled_drafts must be equal"
            )
        if self.engine_sampled_drafts and self.draft_law_id == GREEDY_LAW_ID:
            raise ValueError(f"arm {self.name} samples its drafts but names the one-hot law; name the sampled law")
        # The plan's law is exact: pruning is another law and needs another plan.
        if law_of_id(self.draft_law_id).family is LawFamily.PRUNED:
            raise ValueError(
                f"arm {self.name} names the pruned law {self.draft_law_id}; the plan's law is exact, so its "
                f"draft_law_id must be {EXACT_LAW_ID}"
            )
        if not self.engine_sampled_drafts and self.draft_law_id != GREEDY_LAW_ID:
            raise ValueError(f"arm {self.name} drafts greedily, so its draft_law_id must be {GREEDY_LAW_ID}")
        return self


class TargetPolicy(SealedModel):
    """What every request asks of the target, equal in both arms and read back as effective."""

    temperature: DecimalText
    top_p: DecimalText
    reasoning_effort: Literal["high"]
    priority: Literal[10]
    context_profile: Annotated[str, Field(min_length=1)]
    context_limit_tokens: Count
    reasoning_reserve_tokens: Count
    output_reserve_tokens: Count

    @model_validator(mode="after")
    def _unprocessed_target(self) -> Self:
        if self.temperature != "1" or self.top_p != "1":
            raise ValueError(f"the target runs at temperature 1 and top_p 1, not {self.temperature} and {self.top_p}")
        return self


class EngineIdentity(SealedModel):
    """Digests and names that the ranks of every block must report alike."""

    profile: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    source_sha256: Digest
    weights_sha256: Digest
    ngram_memory_sha256: Digest
    tokenizer_sha256: Digest
    abi_marker: Annotated[str, Field(min_length=1)]
    python_version: Annotated[str, Field(min_length=1)]
    torch_version: Annotated[str, Field(min_length=1)]
