"""The numbers that a window command ends with, one an outcome.

Scripts and CI read them, so a number is never reused for something else.
Source: the README's table of exit codes; 64 to 73 follow the BSD sysexits names.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """How a window command ended."""

    CANDIDATE = 0
    INCONCLUSIVE = 10
    REJECT = 11
    NO_GO = 12
    RESTORE_ESCALATED = 13
    EVIDENCE_FAILED = 14
    USAGE = 64
    BAD_DATA = 65
    UNAVAILABLE = 69
    INTERNAL = 70
    CANNOT_WRITE = 73
    INTERRUPTED = 130
