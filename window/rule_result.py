"""One evaluated rule: what was compared, with what, and what came of it.

Operands are rounded decimals for reading; the outcome came from exact numbers. Must never hold a verdict.
Source: DESIGN section 6; plan, "frozen decision".
"""

from __future__ import annotations

from enum import StrEnum

from window.canonical import SealedModel

__all__ = ["Operand", "RuleOutcome", "RuleResult", "operand"]


class RuleOutcome(StrEnum):
    """PASS: shown to hold. FIRED: shown not to hold. UNKNOWN: the evidence is missing or too thin.

    NOT_REGISTERED: the registration does not ask for it; it passes nothing and blocks nothing.
    """

    PASS = "PASS"
    FIRED = "FIRED"
    UNKNOWN = "UNKNOWN"
    NOT_REGISTERED = "NOT_REGISTERED"


class Operand(SealedModel):
    """One compared number by name, rounded for reading."""

    name: str
    value: str


class RuleResult(SealedModel):
    """One rule with its operands, its registered threshold, its outcome, and the records it was fed from."""

    rule: str
    group: str
    operands: tuple[Operand, ...]
    threshold: str
    outcome: RuleOutcome
    reason: str
    records: tuple[str, ...]


def operand(name: str, value: object) -> Operand:
    """Return an operand; the value is written as text."""
    return Operand(name=name, value=str(value))
