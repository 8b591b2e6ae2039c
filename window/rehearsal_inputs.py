"""Prompts, digests and identity of a rehearsal on the embedded bed, and the registration made from them.

Prompt ids stay in memory; only their digests and counts are registered. Must never take a source that the
model was trained on. Source: plan, "Two frozen public task families"; DESIGN section 6.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from ranks.draw_depth import law_id_of
from ranks.errors import UserError
from ranks.frames import ABI_MARKER
from ranks.process_identity import source_digest
from ranks.profiles import profile_named
from ranks.records import DraftMode
from ranks.tokenizer import ByteTokenizer, TokenizerError, load_tokenizer
from ranks.weights import EMBEDDED_TOKENIZER, EMBEDDED_WEIGHTS, LoadedWeights, WeightsError, load_weights
from window.arms import BLOCK_NAMES, Arm, ArmName, EngineIdentity, TargetPolicy
from window.canonical import canonical_json, sha256_hex
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.gain import IndexMatrices
from window.index_matrix import draw_index_matrix, matrix_digest
from window.public_sources import PublicPrompts
from window.public_text import Family, PublicPrompt, PublicTextError
from window.registration import (
    Registration,
    RegistrationKind,
    RunPlan,
    SmokePlan,
    Source,
    SourceFile,
    WarmUpPlan,
    request_digest_of,
)
from window.rules import decided_rules
from window.stages import SECOND_NS, StageBudgets, Walls

__all__ = ["Prompts", "RehearsalInputs", "RehearsalOptions", "gather_inputs", "reduced_stages"]

ORDER = ("f1-short", "f2-mid", "f1-long", "f2-short", "f1-mid", "f2-long")
FAMILIES = {"f1": (Family.CODE, "standard-library code"), "f2": (Family.PROSE, "documentation prose")}
CONTEXT_LIMIT_TOKENS = 163_840
WARM_UP_TOKENS = 64
BOOTSTRAP_SEED = 4103
RESAMPLES = 2000

Prompts = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    """What a user may choose; everything else is registered as decided. Times in ns, contexts in tokens."""

    out_folder: Path
    profile: str = "cpu"
    weights_path: Path = EMBEDDED_WEIGHTS
    tokenizer_path: Path = EMBEDDED_TOKENIZER
    depth: int = 5
    run_budget_ns: int = 3_500_000_000
    max_new_tokens: int = 4096
    short_tokens: int = 256
    mid_tokens: int = 2048
    long_tokens: int = 8192
    seed: int = 20_260
    minimum_rounds: int = 90
    label: str = "reduced rehearsal"


@dataclass(frozen=True, slots=True)
class RehearsalInputs:
    """A lawful registration with the prompt ids that it only names by digest; key "warm-up" beside the sources."""

    registration: Registration
    prompts: Prompts
    matrices: IndexMatrices


def gather_inputs(options: RehearsalOptions) -> RehearsalInputs:
    """Read weights, tokenizer and public texts, and return the registration. Raises WindowError."""
    _check_options(options)
    try:
        profile = profile_named(options.profile)
        weights = load_weights(options.weights_path)
        tokenizer = load_tokenizer(options.tokenizer_path)
    except UserError as error:
        raise WindowError(error.sentence, ExitCode(error.exit_code)) from error
    except (WeightsError, TokenizerError) as error:
        raise WindowError(" ".join(str(error).split()), ExitCode.BAD_DATA) from error
    if weights.tokenizer_digest != tokenizer.digest:
        raise WindowError(
            f"{options.weights_path} was trained with another tokenizer than {options.tokenizer_path}; use its own",
            ExitCode.BAD_DATA,
        )
    cut = _cut_prompts(options, tokenizer)
    _refuse_trained_sources(options.weights_path, cut)
    matrices = IndexMatrices(
        draw_index_matrix(len(FAMILIES), RESAMPLES, BOOTSTRAP_SEED),
        draw_index_matrix(len(ORDER), RESAMPLES, BOOTSTRAP_SEED),
    )
    engine = _engine_identity(profile.name, profile.device, weights)
    registration = _registration(options, cut, engine, matrices, tokenizer.end_token_id)
    return RehearsalInputs(registration, {name: prompt.token_ids for name, prompt in cut.items()}, matrices)


def _check_options(options: RehearsalOptions) -> None:
    """Refuse values that no registration could hold. Raises WindowError."""
    if not options.short_tokens < options.mid_tokens < options.long_tokens:
        raise WindowError(
            f"contexts must rise, not {options.short_tokens}, {options.mid_tokens}, {options.long_tokens} tokens",
            ExitCode.USAGE,
        )
    if not 1 <= options.depth <= 8:
        raise WindowError(f"depth is {options.depth}, must be from 1 to 8", ExitCode.USAGE)
    if options.run_budget_ns < SECOND_NS // 10:
        raise WindowError("a run needs a time budget of at least 0.1 s", ExitCode.USAGE)


def _cut_prompts(options: RehearsalOptions, tokenizer: ByteTokenizer) -> dict[str, PublicPrompt]:
    """Return the seven prompts, long ones first in each family's stream, so that none overlaps another."""
    public = PublicPrompts(tokenizer)
    lengths = {"long": options.long_tokens, "mid": options.mid_tokens, "short": options.short_tokens}
    cut: dict[str, PublicPrompt] = {}
    try:
        for family, (kind, _) in FAMILIES.items():
            taken = 0
            for context, length in lengths.items():
                index = -(-taken // length)
                cut[f"{family}-{context}"] = public.prompt(kind, length, index)
                taken = (index + 1) * length
            if family == "f1":
                cut["warm-up"] = public.prompt(kind, WARM_UP_TOKENS, -(-taken // WARM_UP_TOKENS))
    except PublicTextError as error:
        raise WindowError(" ".join(str(error).split()), ExitCode.BAD_DATA) from error
    return cut


def _refuse_trained_sources(weights_path: Path, cut: Mapping[str, PublicPrompt]) -> None:
    """Refuse a source whose digest the training receipt beside the weights names. Raises WindowError."""
    receipt = weights_path.parent / "training_receipt.json"
    if not receipt.is_file():
        return
    text = receipt.read_text(encoding="utf-8")
    for name, prompt in cut.items():
        for part in prompt.parts:
            if part.sha256 in text:
                raise WindowError(
                    f"source {name} uses {part.name}, which the model was trained on; use frozen sources only",
                    ExitCode.BAD_DATA,
                )


def _engine_identity(profile: str, device: str, weights: LoadedWeights) -> EngineIdentity:
    """Return what every rank must report."""
    return EngineIdentity(
        profile=profile,
        device=device,
        source_sha256=source_digest(),
        weights_sha256=weights.weights_digest,
        ngram_memory_sha256=weights.ngram_memory_digest,
        tokenizer_sha256=weights.tokenizer_digest,
        abi_marker=ABI_MARKER,
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
    )


def _arm(name: ArmName, mode: DraftMode, depth: int) -> Arm:
    """Return one arm with every switch written out."""
    sampled = mode is DraftMode.SAMPLED
    return Arm(
        name=name,
        engine_sampled_drafts=sampled,
        worker_sampled_drafts=sampled,
        draft_law_id=law_id_of(mode),
        acceptance="standard rejection",
        depth=depth,
        adaptive_admission=False,
        confidence_admission=False,
        prompt_lookup=False,
        dynamic_depth=False,
        depth_file_reload=False,
    )


def _policy(options: RehearsalOptions) -> TargetPolicy:
    """Return the target policy of both arms."""
    return TargetPolicy(
        temperature="1",
        top_p="1",
        reasoning_effort="high",
        priority=10,
        context_profile=f"embedded-{options.profile}",
        context_limit_tokens=CONTEXT_LIMIT_TOKENS,
        reasoning_reserve_tokens=0,
        output_reserve_tokens=options.max_new_tokens,
    )


def _tokens_sha256(token_ids: tuple[int, ...]) -> str:
    """Return the digest of prompt ids."""
    return sha256_hex(canonical_json(list(token_ids)))


def _source(source_id: str, prompt: PublicPrompt, policy: TargetPolicy, seed: int) -> Source:
    """Return one registered source."""
    family, context = source_id.split("-")
    digests = {part.name: part.sha256 for part in prompt.parts}
    return Source.model_validate(
        {
            "source_id": source_id,
            "family": family,
            "family_title": FAMILIES[family][1],
            "context": context,
            "occupied_tokens": len(prompt.token_ids),
            "prompt_tokens_sha256": _tokens_sha256(prompt.token_ids),
            "files": tuple(SourceFile(name=name, sha256=digest) for name, digest in digests.items()),
            "request_digest": request_digest_of(prompt.token_ids, 0, policy),
            "sample_index": 0,
            "seed": seed,
        }
    )


def _registration(
    options: RehearsalOptions,
    cut: Mapping[str, PublicPrompt],
    engine: EngineIdentity,
    matrices: IndexMatrices,
    end_token_id: int,
) -> Registration:
    """Return the whole registration of a reduced window."""
    policy = _policy(options)
    stages, walls = reduced_stages(options.run_budget_ns)
    warm_up = cut["warm-up"].token_ids
    return Registration(
        format="specbed-registration-1",
        kind=RegistrationKind.REDUCED,
        label=options.label,
        registered_at_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        code_sha256=_code_digest(),
        arms=(_arm("A", DraftMode.GREEDY, options.depth), _arm("B", DraftMode.SAMPLED, options.depth)),
        policy=policy,
        engine=engine,
        sources=tuple(_source(name, cut[name], policy, options.seed) for name in ORDER),
        order=ORDER,
        blocks=BLOCK_NAMES,
        run=RunPlan(
            time_budget_ns=options.run_budget_ns,
            max_new_tokens=options.max_new_tokens,
            stop_token_ids=(end_token_id,),
            batch_size=1,
        ),
        warm_up=WarmUpPlan(
            prompt_tokens_sha256=_tokens_sha256(warm_up),
            occupied_tokens=len(warm_up),
            request_digest=request_digest_of(warm_up, 0, policy),
            requests=2,
            seed=options.seed,
            max_new_tokens=12,
        ),
        smoke=SmokePlan(parts=("greedy",), source_ids=("f1-short", "f2-short"), max_new_tokens=24, seed=options.seed),
        stages=stages,
        walls=walls,
        rules=decided_rules(
            matrix_digest(matrices.families),
            matrix_digest(matrices.sources),
            structured_smoke=False,
            minimum_rounds=options.minimum_rounds,
        ),
    )


def reduced_stages(run_budget_ns: int) -> tuple[StageBudgets, Walls]:
    """Return budgets and walls of a reduced window: the plan's stages on a scale of seconds.

    With runs of 3.5 s the last wall stands at 4 minutes; longer runs move every wall behind them by as much.
    """
    runs = 6 * run_budget_ns + SECOND_NS
    block = 14 * SECOND_NS + 11 * SECOND_NS + runs
    before_smoke = 12 * SECOND_NS + 4 * block
    stages = StageBudgets(
        drain_ns=12 * SECOND_NS,
        start_and_warm_ns=14 * SECOND_NS,
        prime_ns=11 * SECOND_NS,
        runs_ns=runs,
        block_limit_ns=block,
        smoke_ns=20 * SECOND_NS,
        restore_ns=10 * SECOND_NS,
        close_ns=8 * SECOND_NS,
    )
    # As in the plan, the stop after an overrun falls just before the end of the last block.
    latest_restore = before_smoke + 20 * SECOND_NS
    walls = Walls(
        stop_admission_if_overrun_ns=before_smoke - SECOND_NS,
        latest_restore_start_ns=latest_restore,
        escalate_restore_ns=latest_restore + 11 * SECOND_NS,
        closed_ns=latest_restore + 20 * SECOND_NS,
    )
    return stages, walls


def _code_digest() -> str:
    """Return the sha-256 over names and bytes of every source file of the four packages, as imported here."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in ("selector", "ranks", "faults", "window"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
