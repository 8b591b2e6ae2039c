"""The exact law of one round's outcome, from the engine's own p and counts at every node of the draft tree.

An outcome is (accepted drafts, emitted tokens cut to three; a shorter run is its own outcome). Heavy branches are
followed; light ones are pooled at the node that they leave, by weights alone, and every pool's probability is exact.
Pure: nodes are evaluated by the caller. Must never look at a sample.
Source: DESIGN section 3, "Acceptance"; Leviathan et al. 2023, appendix A.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from selector.draft_law import GRID, DraftCounts

__all__ = ["SHOWN_TOKENS", "NodeLaw", "OutcomeCell", "OutcomeLaw", "outcome_law"]

SHOWN_TOKENS = 3
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """p (float64 over the vocabulary) behind a drafted path, and the law of the next draft (None behind the last)."""

    target_probs: NDArray[np.float64]
    draft_counts: DraftCounts | None


@dataclass(frozen=True, slots=True)
class OutcomeCell:
    """All outcomes with `low` to `high` accepted drafts and these first tokens.

    `other`: those of them that no other cell names.
    """

    low: int
    high: int
    token_ids: Path
    other: bool = False


@dataclass(slots=True)
class OutcomeLaw:
    """Cells with their exact probabilities, which sum to one, and the paths that were followed."""

    depth: int
    probabilities: dict[OutcomeCell, float] = field(default_factory=dict)
    followed: set[Path] = field(default_factory=set)
    nodes: int = 0

    def cell_of(self, accepted: int, token_ids: Sequence[int]) -> OutcomeCell | None:
        """Return the cell of an observed outcome, None for an impossible one.

        `token_ids` is all that the round emitted: accepted + 1 ids.
        """
        shown = tuple(token_ids[:SHOWN_TOKENS])
        for length in range(min(accepted, SHOWN_TOKENS)):
            if shown[: length + 1] not in self.followed:
                return self._known(OutcomeCell(length + 1, self.depth, shown[:length], other=True))
        if accepted < SHOWN_TOKENS:
            listed = OutcomeCell(accepted, accepted, shown)
            return (
                listed
                if listed in self.probabilities
                else self._known(OutcomeCell(accepted, accepted, shown[:accepted], other=True))
            )
        for low, high in ((accepted, accepted), *((low, self.depth) for low in range(SHOWN_TOKENS, accepted + 1))):
            if OutcomeCell(low, high, shown) in self.probabilities:
                return OutcomeCell(low, high, shown)
        return None

    def _known(self, cell: OutcomeCell) -> OutcomeCell | None:
        return cell if cell in self.probabilities else None

    def add(self, low: int, high: int, token_ids: Path, weight: float, other: bool = False) -> None:
        """Add weight to a cell; a weight of 0 makes none."""
        if weight <= 0.0:
            return
        cell = OutcomeCell(low, high, token_ids[:SHOWN_TOKENS], other)
        self.probabilities[cell] = self.probabilities.get(cell, 0.0) + weight


def outcome_law(evaluate: Callable[[list[Path]], list[NodeLaw]], depth: int, least: float) -> OutcomeLaw:
    """Return the law of a round with `depth` usable drafts.

    `evaluate` returns the node behind each drafted path, all of one length a call. `least` (0..1): branches and
    tokens of a smaller weight are pooled at their node.
    """
    law = OutcomeLaw(depth)
    level: dict[Path, float] = {(): 1.0}
    for length in range(min(SHOWN_TOKENS, depth + 1)):
        level = _shallow_level(law, evaluate, level, length, least)
    if depth >= SHOWN_TOKENS:
        _deep_levels(law, evaluate, level, least)
    return law


def _evaluated(
    law: OutcomeLaw, evaluate: Callable[[list[Path]], list[NodeLaw]], level: dict[Path, float]
) -> list[tuple[Path, float, NodeLaw]]:
    paths = list(level)
    law.nodes += len(paths)
    nodes = evaluate(paths) if paths else []
    return [(path, level[path], node) for path, node in zip(paths, nodes, strict=True)]


def _shallow_level(
    law: OutcomeLaw,
    evaluate: Callable[[list[Path]], list[NodeLaw]],
    level: dict[Path, float],
    length: int,
    least: float,
) -> dict[Path, float]:
    """Take one level whose next token is still shown: rejected tokens end an outcome, accepted ones go on."""
    following: dict[Path, float] = {}
    for path, weight, node in _evaluated(law, evaluate, level):
        kept = _accepted_mass(node)
        ending = weight * np.maximum(node.target_probs - _dense(kept, len(node.target_probs)), 0.0)
        listed = ending >= least
        for token_id in np.flatnonzero(listed).tolist():
            law.add(length, length, (*path, token_id), float(ending[token_id]))
        law.add(length, length, path, float(ending[~listed].sum()), other=True)
        heavy = {(*path, token): weight * mass for token, mass in kept.items() if weight * mass >= least}
        law.followed |= heavy.keys()
        light = [weight * mass for token, mass in kept.items() if weight * mass < least]
        law.add(length + 1, law.depth, path, sum(light), other=True)
        following |= heavy
    return following


def _deep_levels(
    law: OutcomeLaw, evaluate: Callable[[list[Path]], list[NodeLaw]], level: dict[Path, float], least: float
) -> None:
    """Split heavy accepted triples by how many drafts stood; a split is exact or not made at all."""
    for length in range(SHOWN_TOKENS, law.depth):
        following: dict[Path, float] = {}
        for group in _by_shown(level).values():
            total = sum(group.values())
            shown = next(iter(group))[:SHOWN_TOKENS]
            if total < least * (1 if length == SHOWN_TOKENS else 4):
                law.add(length, law.depth, shown, total)
                continue
            stand = 0.0
            for path, weight, node in _evaluated(law, evaluate, group):
                for token, mass in _accepted_mass(node).items():
                    following[(*path, token)] = weight * mass
                    stand += weight * mass
            law.add(length, length, shown, total - stand)
        level = following
    for group in _by_shown(level).values():
        law.add(law.depth, law.depth, next(iter(group))[:SHOWN_TOKENS], sum(group.values()))


def _by_shown(level: dict[Path, float]) -> dict[Path, dict[Path, float]]:
    groups: dict[Path, dict[Path, float]] = {}
    for path, weight in level.items():
        groups.setdefault(path[:SHOWN_TOKENS], {})[path] = weight
    return groups


def _accepted_mass(node: NodeLaw) -> dict[int, float]:
    """Return min(p, q) over the draft law's support: drafted and accepted."""
    if node.draft_counts is None:
        return {}
    shares = node.draft_counts.counts / GRID
    kept = np.minimum(node.target_probs[node.draft_counts.token_ids], shares)
    pairs = zip(node.draft_counts.token_ids.tolist(), kept.tolist(), strict=True)
    return {token: mass for token, mass in pairs if mass > 0.0}


def _dense(masses: dict[int, float], size: int) -> NDArray[np.float64]:
    dense = np.zeros(size)
    for token, mass in masses.items():
        dense[token] = mass
    return dense
