"""The one error that a window raises to its caller: a sentence and an exit code.

Must never carry prompt or generated text.
Source: DESIGN section 7, "errors as one sentence".
"""

from __future__ import annotations

from window.exit_codes import ExitCode

__all__ = ["WindowError"]


class WindowError(Exception):
    """A window cannot go on; `sentence` says what, where and what would be right."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        """Keep the sentence and the code. Raises ValueError when the sentence has more than one line."""
        if "\n" in sentence:
            raise ValueError("a window error is one sentence on one line")
        super().__init__(sentence)
        self.sentence = sentence
        self.exit_code = exit_code
