"""What the numbers of a window do not say, in words, with its own numbers filled in.

Must never claim more than two families and four sessions can carry.
Source: plan, "report both task families and the small-family limit".
"""

from __future__ import annotations

from window.exact_numbers import geometric_gain_text
from window.gain import Bounds
from window.rates import block_ratio_product
from window.records import WindowRecords
from window.registration import Registration, RegistrationKind

__all__ = ["DESIGN_TEXT", "kind_stamp", "limits_text"]

DESIGN_TEXT = (
    "Arms were interleaved in four engine sessions A1, B1, B2, A2, not exchanged from round to round. "
    "Rounds of one run are not independent samples; the unit of every statistic is a source."
)
_NUMBER_WORDS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def kind_stamp(kind: RegistrationKind) -> str:
    """Return the sentence that a window's kind puts on every page."""
    return {
        RegistrationKind.PLAN: "PLAN: a candidate still needs the coordinator's own approval and promotion.",
        RegistrationKind.REDUCED: "REDUCED rehearsal on the embedded bed: never promotable, whatever the rule says.",
        RegistrationKind.EXERCISE: "EXERCISE with other arms or engines: never promotable, whatever the rule says.",
    }[kind]


def limits_text(registration: Registration, records: WindowRecords, bounds: Bounds | None) -> str:
    """Return the limits of the result as one paragraph."""
    families = len(registration.families())
    head = f"{_NUMBER_WORDS.get(families, str(families))} task families were measured."
    if bounds is None:
        return f"{head} At least one source has no rate in one arm, so there is neither a gain nor a bound."
    by_family = geometric_gain_text(bounds.families.ratio_product, bounds.families.factors)
    by_source = geometric_gain_text(bounds.sources.ratio_product, bounds.sources.factors)
    contrasts = [
        "unknown" if whole is None else geometric_gain_text(whole, len(registration.sources))
        for whole in (
            block_ratio_product(registration, records, "B1", "A1"),
            block_ratio_product(registration, records, "B2", "A2"),
        )
    ]
    return (
        f"{head} The family bootstrap of two clusters can take three values; its lower bound is the smaller family's "
        f"effect ({by_family}). If family effects vary symmetrically around zero, this bound is above zero by chance "
        "in one window of four, not one in twenty, and the interval covers the mean over families half of the time. "
        f"The six-source bound ({by_source}) treats contexts as exchangeable and families as fixed. Both arms ran in "
        "two engine sessions each; no interval here contains session-to-session variation; the two session contrasts "
        f"were {contrasts[0]} and {contrasts[1]}. The result speaks for these two families, these six inputs and these "
        "four sessions. It is evidence for a coordinator, not an estimate for other workloads."
    )
