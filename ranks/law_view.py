"""What a person reads of a law check: a line a prefix, the power in words, the exit code. Must never print.

Source: DESIGN sections 5 (exit codes) and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ranks.law_check import FALSE_ALARM, LawFinding

__all__ = ["finding_line", "findings_data", "law_exit_code", "power_lines"]

PASS, SAFETY, UNKNOWN = 0, 1, 2


def finding_line(finding: LawFinding) -> str:
    """Return one prefix in one line: what was sampled, the worst cell, the word."""
    word = "holds" if finding.passed else "BROKEN" if finding.deviations else "UNKNOWN"
    line = (
        f"{finding.prefix}: {word}; {finding.samples} rounds, {finding.cells} cells, a shift of "
        f"{finding.caught_shift:.3f} into any one cell is caught"
    )
    if finding.deviations:
        worst = finding.deviations[0]
        line += f"; cell {worst.cell} has {worst.count} rounds, its law gives {worst.probability * worst.samples:.1f}"
    if finding.unusable_rounds:
        line += f"; {finding.unusable_rounds} rounds were missing or lost drafts"
    return line


def law_exit_code(findings: Sequence[LawFinding]) -> int:
    """Return 1 when a cell broke its bound, 2 when something was not exercised, else 0."""
    if any(finding.deviations for finding in findings):
        return SAFETY
    return PASS if findings and all(finding.passed for finding in findings) else UNKNOWN


def power_lines(findings: Sequence[LawFinding]) -> list[str]:
    """Return the closing lines: verdict, bound and power."""
    verdict = {PASS: "the law holds", SAFETY: "THE LAW IS BROKEN", UNKNOWN: "unknown"}[law_exit_code(findings)]
    samples = sum(finding.samples for finding in findings)
    smallest = max((finding.caught_shift for finding in findings), default=1.0)
    return [
        f"Verdict: {verdict}, {samples} rounds over {len(findings)} prefixes and arms.",
        f"False alarm of the whole command at most {FALSE_ALARM:g} (Chernoff, union over all cells and prefixes).",
        f"Smallest total variation that is caught with 99 %, put into the worst single cell: {smallest:.3f}.",
        "A red is final: seeds are registered, and a second run gives the same counts.",
    ]


def findings_data(findings: Sequence[LawFinding]) -> dict[str, Any]:
    """Return the findings as plain data for JSON."""
    return {
        "false_alarm": str(FALSE_ALARM),
        "passed": law_exit_code(findings) == PASS,
        "findings": [
            {
                **asdict(finding),
                "passed": finding.passed,
                "deviations": [
                    {
                        "cell": str(each.cell),
                        "count": each.count,
                        "samples": each.samples,
                        "probability": each.probability,
                    }
                    for each in finding.deviations
                ],
            }
            for finding in findings
        ],
    }
