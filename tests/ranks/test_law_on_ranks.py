"""Sampled rounds on real ranks follow the engine's own exact law; a planted wrong q on the same engine is caught."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from ranks.law_check import RoundSample, check_prefix, engine_nodes, exact_outcome_law
from ranks.law_run import LARGEST_CELLS, LawRequest, run_law_check
from ranks.law_view import finding_line, law_exit_code, power_lines
from ranks.ray_session import RaySession
from ranks.records import DraftMode
from ranks.reference_pair import ReferencePair
from ranks.round_outcome_law import NodeLaw
from ranks.weights import EMBEDDED_WEIGHTS, load_weights
from selector.draft_law import GRID
from tests.ranks.real_requests import prompts

DEPTH = 5
PREFIXES = (0, 3, 6, 9)
SAMPLES = 500
PLANTED_SAMPLES = 4000


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_round_on_real_ranks_follows_the_exact_law_in_both_arms_behind_four_prefixes(
    ray_session: RaySession,
) -> None:
    request = LawRequest(
        profile="cpu",
        weights_path=EMBEDDED_WEIGHTS,
        depth=DEPTH,
        arms=(DraftMode.GREEDY, DraftMode.SAMPLED),
        prefixes={f"prompt-{index}": prompts(96)[index] for index in PREFIXES},
        samples=SAMPLES,
        seed=4103,
    )
    findings = run_law_check(request, lambda finding: sys.stdout.write(finding_line(finding) + "\n"), ray_session)
    sys.stdout.write("\n".join(power_lines(findings)))
    # A red here is never rerun to green: the seeds are registered and give the same counts again.
    assert law_exit_code(findings) == 0, [finding_line(finding) for finding in findings]
    assert len(findings) == 2 * len(PREFIXES)
    assert all(finding.samples == SAMPLES and finding.cells >= 4 for finding in findings)


def test_drafts_that_are_the_argmax_but_declared_soft_are_caught_on_the_same_engine() -> None:
    with ReferencePair(load_weights(EMBEDDED_WEIGHTS), 4) as pair:
        prompt = prompts(96)[PREFIXES[0]]
        law = exact_outcome_law(pair, 4, prompt, DraftMode.SAMPLED, DEPTH, 0.004)
        evaluate = engine_nodes(pair, 4, prompt, DraftMode.SAMPLED, DEPTH)

        @cache
        def node(path: tuple[int, ...]) -> NodeLaw:
            return evaluate([path])[0]

        def rounds() -> list[RoundSample]:
            rng = np.random.default_rng(4103)
            return [argmax_round(rng, node) for _ in range(PLANTED_SAMPLES)]

        finding = check_prefix("wrong q", law, rounds, PLANTED_SAMPLES, 8, LARGEST_CELLS)
    assert law_exit_code([finding]) == 1
    assert finding.deviations


def argmax_round(rng: np.random.Generator, node: Callable[[tuple[int, ...]], NodeLaw]) -> RoundSample:
    """One round by the textbook on the engine's own rows, but every draft is q's greatest token."""
    path: tuple[int, ...] = ()
    for _ in range(DEPTH):
        law = node(path)
        assert law.draft_counts is not None
        q = law.draft_counts.counts / GRID
        index = int(q.argmax())
        token = int(law.draft_counts.token_ids[index])
        if rng.random() * q[index] >= law.target_probs[token]:
            residual = law.target_probs.copy()
            residual[law.draft_counts.token_ids] = np.maximum(residual[law.draft_counts.token_ids] - q, 0.0)
            return len(path), (*path, int(rng.choice(len(residual), p=residual / residual.sum()))), True
        path = (*path, token)
    last = node(path).target_probs
    return DEPTH, (*path, int(rng.choice(len(last), p=last / last.sum()))), True
