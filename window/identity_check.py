"""Does a rank's own word match the registration?

Compares what the running processes report, never what they were started with. An arm may differ from the
other in its two sampled switches and its draft law, in nothing else. Source: plan, "Begin every block only
after its worker/engine identity ... are attested".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ranks.records import Attestation
from window.arms import Arm
from window.records import PrimeRecord, RankIdentity, WarmUpRecord
from window.registration import Registration

__all__ = ["identity_mismatches", "prime_mismatches", "rank_identity_of", "same_processes", "warm_up_mismatches"]


def rank_identity_of(attestation: Attestation) -> RankIdentity:
    """Return an attestation in the window's names."""
    return RankIdentity(
        rank=attestation.rank,
        pid=attestation.pid,
        process_start_ticks=attestation.process_start_ticks,
        incarnation=attestation.incarnation,
        weights_sha256=attestation.weights_digest,
        ngram_memory_sha256=attestation.ngram_memory_digest,
        source_sha256=attestation.source_digest,
        law_id=attestation.law_id,
        abi_marker=attestation.abi_marker,
        sampled_drafts=attestation.sampled_drafts,
        depth=attestation.depth,
        profile=attestation.profile,
        device=attestation.device,
        python_version=attestation.python_version,
        torch_version=attestation.torch_version,
        target_temperature=attestation.target_temperature,
        target_top_p=attestation.target_top_p,
        row_invariant=attestation.row_invariant,
    )


def identity_mismatches(
    registration: Registration, arm: Arm, identities: Sequence[RankIdentity], seen: Iterable[tuple[int, int]]
) -> tuple[str, ...]:
    """Return one phrase for each difference; `seen` holds (pid, start ticks) of every earlier rank."""
    wrong: list[str] = []
    if [identity.rank for identity in identities] != [0, 1]:
        return ("the pair does not consist of rank 0 and rank 1",)
    for identity in identities:
        switch = arm.worker_sampled_drafts if identity.rank else arm.engine_sampled_drafts
        wanted = {
            **_engine_fields(registration),
            "law_id": arm.draft_law_id,
            "depth": arm.depth,
            "sampled_drafts": switch,
            "target_temperature": registration.policy.temperature,
            "target_top_p": registration.policy.top_p,
            "row_invariant": True,
        }
        for name, value in wanted.items():
            reported = getattr(identity, name)
            if reported != value:
                wrong.append(f"rank {identity.rank} reports {name} {_short(reported)}, registered is {_short(value)}")
    processes = [(identity.pid, identity.process_start_ticks) for identity in identities]
    if len(set(processes)) != len(processes):
        wrong.append("both ranks are one process")
    if set(processes) & set(seen):
        wrong.append("a rank is a process of an earlier session; every block needs a fresh start")
    return tuple(wrong)


def _engine_fields(registration: Registration) -> dict[str, object]:
    """Return what the registration fixes for every rank of either arm."""
    engine = registration.engine
    return {
        "weights_sha256": engine.weights_sha256,
        "ngram_memory_sha256": engine.ngram_memory_sha256,
        "source_sha256": engine.source_sha256,
        "abi_marker": engine.abi_marker,
        "profile": engine.profile,
        "device": engine.device,
        "python_version": engine.python_version,
        "torch_version": engine.torch_version,
    }


def _short(value: object) -> str:
    """Return a value for a sentence; long digests by their beginning."""
    text = str(value)
    return f"{text[:12]}.." if len(text) == 64 else text


def same_processes(before: Sequence[RankIdentity], after: Sequence[RankIdentity]) -> tuple[str, ...]:
    """Return a phrase when the ranks changed while a block ran."""
    if list(before) == list(after):
        return ()
    return ("the ranks after the runs are not those that were attested before them",)


def prime_mismatches(prime: PrimeRecord) -> tuple[str, ...]:
    """Return a phrase when a prefix is not held exactly, or not alike on both ranks."""
    if prime.occupied_tokens != prime.expected_tokens:
        return (f"{prime.source_id} occupies {prime.occupied_tokens} tokens, registered are {prime.expected_tokens}",)
    if not prime.state_equal:
        return (f"the ranks hold different states for {prime.source_id}",)
    return ()


def warm_up_mismatches(arm: Arm, warm_up: WarmUpRecord) -> tuple[str, ...]:
    """Return one phrase for each way in which the warm-up rounds behaved like another arm."""
    wrong: list[str] = []
    if warm_up.rounds_with_drafts == 0:
        wrong.append("no warm-up round drafted anything")
    if warm_up.rounds_off_depth:
        wrong.append(f"{warm_up.rounds_off_depth} warm-up rounds did not draft the fixed depth {arm.depth}")
    if arm.engine_sampled_drafts and warm_up.rounds_with_q != warm_up.rounds_with_drafts:
        missing = warm_up.rounds_with_drafts - warm_up.rounds_with_q
        wrong.append(f"{missing} warm-up rounds of arm {arm.name} drafted without q")
    if not arm.engine_sampled_drafts and warm_up.rounds_with_q:
        wrong.append(f"{warm_up.rounds_with_q} warm-up rounds of arm {arm.name} carried q frames")
    return tuple(wrong)
