"""Errors that a user can do something about, each one sentence with the exit code it ends in.

The only error type that the command line shows without a traceback. Must never wrap
a fault of our own: those stay ordinary exceptions and end as an internal error.
Codes follow sysexits(3), so that a script can tell a typing error from a missing GPU.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BAD_DATA", "CANNOT_WRITE", "INTERNAL", "INTERRUPTED", "UNAVAILABLE", "USAGE", "UserError"]

USAGE: Final = 64
"""The command line itself is wrong: unknown option, unknown profile, value out of range."""

BAD_DATA: Final = 65
"""An input file is wrong: truncated, altered, of another layout."""

UNAVAILABLE: Final = 69
"""Something the command needs is not here: no GPU, a port in use, Ray does not start."""

INTERNAL: Final = 70
"""A fault of this program."""

CANNOT_WRITE: Final = 73
"""The output cannot be written: no permission, disk full, path is a file."""

INTERRUPTED: Final = 130
"""Stopped by Ctrl-C; everything that was started has been stopped."""


class UserError(Exception):
    """Input or surroundings are wrong; `sentence` says what, where, and what would be right."""

    def __init__(self, sentence: str, exit_code: int = USAGE) -> None:
        """Keep one sentence for stderr and the exit code (64..78) of the process."""
        if not 64 <= exit_code <= 78:
            raise ValueError(f"a user error ends with an exit code from 64 to 78, not {exit_code}")
        super().__init__(sentence)
        self.sentence = " ".join(sentence.split())
        self.exit_code = exit_code
