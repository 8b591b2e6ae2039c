"""What a round must emit, in rational numbers: the reference that shipped arithmetic is measured against.

Two rules share one walk over the round. The continuous rule draws u from the unit interval: its emitted law *is* the
target law. The ceil rule draws every integer of a small grid: it predicts shipped arithmetic exactly, grid and all.
Must never call the code that it judges and never use floating point.
Source: DESIGN section 3, "Two statements are held"; Leviathan et al. 2023, appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

__all__ = [
    "CONTINUOUS_RULE",
    "JointLaw",
    "Law",
    "Prefix",
    "RoundRule",
    "RowLaw",
    "ceil_rule",
    "completed_law",
    "emitted_law",
    "residual_law",
    "target_joint_law",
    "total_variation",
]

Prefix = tuple[int, ...]
Law = Mapping[int, Fraction]
"""Token id to probability; ids that are absent have probability 0."""
RowLaw = Callable[[Prefix], Law]
"""The law of the next token after the tokens that this round has emitted or drafted so far."""
JointLaw = dict[Prefix, Fraction]
"""Emitted token ids to probability; tuples of one law may differ in length."""

_ZERO, _ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True, slots=True)
class RoundRule:
    """How draws become decisions: chance that x stands given (p(x), q(x)), and the law drawn from masses."""

    acceptance: Callable[[Fraction, Fraction], Fraction]
    drawn: Callable[[Law], Law]


def residual_law(target: Law, draft: Law) -> Law:
    """Return the masses of (p - q)+, not normalised; empty when there is none."""
    masses = {token: mass - draft.get(token, _ZERO) for token, mass in target.items()}
    return {token: mass for token, mass in masses.items() if mass > 0}


def ceil_rule(acceptance_bits: int, shard_bits: int, token_bits: int, shard_size: int) -> RoundRule:
    """Return the rule of integer draws of the given widths, on two shards of shard_size tokens each.

    A draw of b bits stands with min(1, ceil(2^b p/q) / 2^b); the shard, then the token within it, is the inverse of a
    cumulative law on 2^shard_bits and 2^token_bits draws. Masses must be whole multiples of 2^-63 whose sums fit
    53 bits, so that no rounding is hidden in the prediction.
    """

    def acceptance(target_prob: Fraction, draft_prob: Fraction) -> Fraction:
        return min(_ONE, Fraction(math.ceil(target_prob / draft_prob * (1 << acceptance_bits)), 1 << acceptance_bits))

    def drawn(masses: Law) -> Law:
        lower = {token: mass for token, mass in masses.items() if token < shard_size}
        upper = {token: mass for token, mass in masses.items() if token >= shard_size}
        shard_masses = {0: sum(lower.values(), _ZERO), 1: sum(upper.values(), _ZERO)}
        shard_law = _inverse_law(shard_masses, shard_bits)
        law: dict[int, Fraction] = {}
        for shard, members in enumerate((lower, upper)):
            if shard_law[shard] > 0:
                within = _inverse_law(members, token_bits)
                law.update({token: shard_law[shard] * chance for token, chance in within.items() if chance > 0})
        return law

    return RoundRule(acceptance, drawn)


def emitted_law(
    depth: int,
    usable_depth: int,
    draft_row: RowLaw,
    target_row: RowLaw,
    rule: RoundRule,
    drawn_row: RowLaw | None = None,
) -> JointLaw:
    """Return the exact law of what one round emits.

    usable_depth: 0 .. depth drafts are verified; depth itself changes nothing, since bonus and forced rejection are
    both drawn from p. draft_row: the declared q; drawn_row: what drafts are really drawn from, the same unless told.
    Raises ValueError for a usable depth out of range. Source: DESIGN section 3.
    """
    if not 0 <= usable_depth <= depth:
        raise ValueError(f"usable_depth is {usable_depth}, must be in 0 .. depth {depth}")
    emitted: JointLaw = {}
    standing: JointLaw = {(): _ONE}
    for _ in range(usable_depth):
        further: JointLaw = {}
        for prefix, weight in standing.items():
            _verify_row(prefix, weight, (draft_row, target_row, drawn_row or draft_row), rule, emitted, further)
        standing = further
    for prefix, weight in standing.items():
        for token, chance in rule.drawn(target_row(prefix)).items():
            _add(emitted, (*prefix, token), weight * chance)
    return emitted


def completed_law(emitted: JointLaw, target_row: RowLaw, length: int) -> JointLaw:
    """Return the law of the first `length` tokens when what a round left open is drawn from p itself.

    An exact method makes this equal target_joint_law. Longer tuples are cut, so length 1 is the first token's law.
    """
    whole: JointLaw = {}
    open_laws = [(tokens[:length], weight) for tokens, weight in emitted.items()]
    while open_laws:
        tokens, weight = open_laws.pop()
        if len(tokens) == length:
            _add(whole, tokens, weight)
        else:
            open_laws.extend(((*tokens, token), weight * chance) for token, chance in target_row(tokens).items())
    return whole


def target_joint_law(target_row: RowLaw, length: int) -> JointLaw:
    """Return the law of `length` tokens drawn one after the other from p: what every exact round must equal."""
    return completed_law({(): _ONE}, target_row, length)


def total_variation(first: JointLaw, second: JointLaw) -> Fraction:
    """Return the total variation between two laws: half the sum of absolute differences, 0 .. 1."""
    keys = first.keys() | second.keys()
    return sum((abs(first.get(key, _ZERO) - second.get(key, _ZERO)) for key in keys), _ZERO) / 2


def _normalised(masses: Law) -> Law:
    total = sum(masses.values(), _ZERO)
    return {token: mass / total for token, mass in masses.items() if mass > 0}


def _inverse_law(masses: Law, bits: int) -> dict[int, Fraction]:
    # Draw a of 2^bits falls to the first entry whose cumulative mass exceeds a * total / 2^bits (rounded down to the
    # mass unit, which moves no boundary); so a cumulative mass C owns the first ceil(2^bits * C / total) draws.
    total = sum(masses.values(), _ZERO)
    law: dict[int, Fraction] = {}
    cumulative, owned = _ZERO, 0
    for token in sorted(masses):
        cumulative += masses[token]
        reach = math.ceil(cumulative / total * (1 << bits))
        law[token] = Fraction(reach - owned, 1 << bits)
        owned = reach
    return law


def _verify_row(
    prefix: Prefix,
    weight: Fraction,
    rows: tuple[RowLaw, RowLaw, RowLaw],
    rule: RoundRule,
    emitted: JointLaw,
    further: JointLaw,
) -> None:
    draft, target, drawn = (row(prefix) for row in rows)
    residual = residual_law(target, draft)
    replacement = rule.drawn(residual) if residual else {}
    for token, chance in drawn.items():
        if chance == 0:
            continue
        stands = rule.acceptance(target.get(token, _ZERO), draft[token]) if residual else _ONE
        _add(further, (*prefix, token), weight * chance * stands)
        for other, share in replacement.items():
            _add(emitted, (*prefix, other), weight * chance * (1 - stands) * share)


def _add(law: JointLaw, tokens: Prefix, weight: Fraction) -> None:
    if weight > 0:
        law[tokens] = law.get(tokens, _ZERO) + weight


CONTINUOUS_RULE = RoundRule(
    acceptance=lambda target_prob, draft_prob: min(_ONE, target_prob / draft_prob), drawn=_normalised
)
"""u, and every other draw, from the unit interval."""
