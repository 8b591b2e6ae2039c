"""The law check as a run: fixed prefixes, both arms, one bed an arm, findings as data.

The shell around `ranks.law_check`; prefixes are token ids that the caller registered. Must never run a red again.
Source: DESIGN section 3; README, `specbed ranks law`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ranks.bed import start_bed
from ranks.law_check import LawFinding, check_prefix, exact_outcome_law, sample_on_bed
from ranks.ray_session import RaySession
from ranks.records import DraftMode
from ranks.reference_pair import ReferencePair
from ranks.weights import load_weights

__all__ = ["LARGEST_CELLS", "LawRequest", "run_law_check"]

LARGEST_CELLS = 1024
_LEAST_WEIGHT = 1e-3
_SLOTS = 4


@dataclass(frozen=True, slots=True)
class LawRequest:
    """What is checked: every prefix in every arm, `samples` registered sample indices each."""

    profile: str
    weights_path: Path
    depth: int
    arms: tuple[DraftMode, ...]
    prefixes: Mapping[str, Sequence[int]]
    samples: int
    seed: int


def run_law_check(
    request: LawRequest, progress: Callable[[LawFinding], object], session: RaySession | None = None
) -> list[LawFinding]:
    """Return a finding for every arm and prefix, each reported as it is made. Raises UserError, BedError."""
    findings = []
    configurations = len(request.arms) * len(request.prefixes)
    least = max(_LEAST_WEIGHT, 2.0 / request.samples)
    with ReferencePair(load_weights(request.weights_path), _SLOTS) as pair:
        for arm in request.arms:
            laws = {
                name: exact_outcome_law(pair, _SLOTS, prompt, arm, request.depth, least)
                for name, prompt in request.prefixes.items()
            }
            with start_bed(request.profile, request.weights_path, arm, request.depth, session=session) as bed:
                for name, prompt in request.prefixes.items():
                    full_name = f"{arm}/{name}"
                    sample = partial(sample_on_bed, bed, prompt, full_name, request.samples, request.seed, _SLOTS)
                    finding = check_prefix(
                        full_name, laws[name], sample, request.samples, configurations, LARGEST_CELLS
                    )
                    findings.append(finding)
                    progress(finding)
    return findings
