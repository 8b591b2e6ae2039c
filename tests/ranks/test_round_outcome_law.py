"""The exact law of a round's outcome: it sums to one, equals brute force, and every outcome finds its cell."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ranks.law_check import RoundSample, check_prefix
from ranks.round_outcome_law import NodeLaw, OutcomeCell, OutcomeLaw, outcome_law
from selector.draft_law import GRID, DraftCounts, draft_law
from tests.ranks.toy_model import DRAFTER, TARGET, VOCABULARY, Logits

PREFIX = (1, 2, 3)


def target_probs(path: tuple[int, ...]) -> np.ndarray:
    weights = np.exp(TARGET((*PREFIX, *path)).astype(np.float64))
    probabilities: np.ndarray = weights / weights.sum()
    return probabilities


def draft_counts(path: tuple[int, ...], drafter: Logits = DRAFTER) -> DraftCounts:
    law = draft_law(drafter((*PREFIX, *path)))
    assert isinstance(law, DraftCounts)
    return law


def evaluate_at(depth: int) -> object:
    def evaluate(paths: list[tuple[int, ...]]) -> list[NodeLaw]:
        return [NodeLaw(target_probs(path), draft_counts(path) if len(path) < depth else None) for path in paths]

    return evaluate


def all_outcomes(depth: int) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """Yield every outcome with its probability, by brute force over all drafts."""
    for length in range(depth + 1):
        for path in itertools.product(range(VOCABULARY), repeat=length):
            weight = 1.0
            for index in range(length):
                counts = draft_counts(path[:index])
                weight *= min(target_probs(path[:index])[path[index]], counts.count_of(path[index]) / GRID)
            if weight == 0.0:
                continue
            shares = target_probs(path)
            for token in range(VOCABULARY):
                share = shares[token]
                if length < depth:
                    share = max(0.0, share - draft_counts(path).count_of(token) / GRID)
                if share > 0.0:
                    yield length, (*path, token), weight * share


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("least", [0.0, 0.003, 0.05])
def test_every_outcome_has_one_cell_and_cells_have_the_weight_of_their_outcomes(depth: int, least: float) -> None:
    law = outcome_law(evaluate_at(depth), depth, least)  # type: ignore[arg-type]
    found: Counter[OutcomeCell] = Counter()
    for accepted, token_ids, weight in all_outcomes(depth):
        cell = law.cell_of(accepted, token_ids)
        assert cell is not None, (accepted, token_ids)
        found[cell] += weight  # type: ignore[assignment]
    assert sum(law.probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    assert found.keys() == law.probabilities.keys()
    for cell, weight in law.probabilities.items():
        assert found[cell] == pytest.approx(weight, abs=1e-12), cell


def test_an_outcome_with_a_token_of_no_mass_has_no_cell() -> None:
    def evaluate(paths: list[tuple[int, ...]]) -> list[NodeLaw]:
        probs = np.array([0.5, 0.5, 0.0])
        one = DraftCounts(np.array([0], np.int32), np.array([GRID], np.int64))
        return [NodeLaw(probs, one if len(path) < 1 else None) for path in paths]

    law = outcome_law(evaluate, 1, 0.01)
    assert law.cell_of(0, (1,)) is not None
    assert law.cell_of(0, (2,)) is None
    assert law.cell_of(1, (0, 2)) is None


def draw_round(rng: np.random.Generator, depth: int, drawn_from: Logits, declared: Logits) -> RoundSample:
    """One round by the textbook; drafts come from one law and are declared to come from another."""
    path: tuple[int, ...] = ()
    for _ in range(depth):
        shares = target_probs(path)
        true, said = draft_counts(path, drawn_from), draft_counts(path, declared)
        token = int(rng.choice(true.token_ids, p=true.counts / GRID))
        q = np.zeros(VOCABULARY)
        q[said.token_ids] = said.counts / GRID
        if rng.random() * q[token] >= shares[token]:
            residual = np.maximum(shares - q, 0.0)
            return len(path), (*path, int(rng.choice(VOCABULARY, p=residual / residual.sum()))), True
        path = (*path, token)
    return depth, (*path, int(rng.choice(VOCABULARY, p=target_probs(path)))), True


@pytest.fixture(scope="module")
def law() -> OutcomeLaw:
    return outcome_law(evaluate_at(3), 3, 0.004)  # type: ignore[arg-type]


def rounds(drawn_from: Logits, declared: Logits = DRAFTER) -> list[RoundSample]:
    rng = np.random.default_rng(4103)
    return [draw_round(rng, 3, drawn_from, declared) for _ in range(3000)]


def test_a_sound_sampler_passes(law: OutcomeLaw) -> None:
    finding = check_prefix("sound", law, lambda: rounds(DRAFTER), 3000, 4, 256)
    assert finding.passed
    assert finding.cells > 20
    assert finding.caught_shift < 0.1


def test_a_planted_wrong_q_is_caught_although_it_looks_like_the_right_one(law: OutcomeLaw) -> None:
    def hotter(prefix: tuple[int, ...]) -> np.ndarray:
        return (DRAFTER(prefix) * np.float32(0.6)).astype(np.float32)

    finding = check_prefix("wrong q", law, lambda: rounds(hotter), 3000, 4, 256)
    assert not finding.passed
    assert finding.deviations


def test_no_sample_lost_rounds_and_unusable_rounds_are_no_pass(law: OutcomeLaw) -> None:
    sound = rounds(DRAFTER)
    assert not check_prefix("none", law, list, 3000, 4, 256).passed
    assert not check_prefix("lost", law, lambda: sound[:-1], 3000, 4, 256).passed
    spoiled = [(accepted, token_ids, index != 7) for index, (accepted, token_ids, _) in enumerate(sound)]
    assert not check_prefix("unusable", law, lambda: spoiled, 3000, 4, 256).passed


def test_cells_are_pooled_before_a_sample_is_drawn(law: OutcomeLaw) -> None:
    copied = replace(law, probabilities=dict(law.probabilities))
    order: list[str] = []

    class Watched(dict[OutcomeCell, float]):
        def items(self) -> object:  # type: ignore[override]
            order.append("pooled")
            return super().items()

    copied.probabilities = Watched(law.probabilities)

    def sample() -> list[RoundSample]:
        order.append("sampled")
        return rounds(DRAFTER)

    check_prefix("order", copied, sample, 3000, 4, 256)
    assert order == ["pooled", "sampled"]
