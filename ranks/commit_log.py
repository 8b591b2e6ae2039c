"""The driver's commit log: verdicts before anyone acts on them, tokens once both ranks agree.

Pure, in the driver's memory: it survives the death of any rank, not of the driver. Released means appended
here; only this log feeds clients, and slots are rebuilt from it. Must never take two different tokens for one
place of one request. Source: DESIGN section 4, "The driver".
"""

from __future__ import annotations

from dataclasses import dataclass

from ranks.round_plan import RoundVerdict

__all__ = ["CommitConflict", "CommitLog", "CommittedToken"]


class CommitConflict(RuntimeError):
    """Two different tokens were about to be released for one place: the log refuses the second."""


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """One released token: where, in which round, under which k, and both ranks' state digests."""

    request: int
    position: int
    token_id: int
    round_number: int
    usable_depth: int
    state_digests: tuple[int, int]


class CommitLog:
    """Append-only record of verdicts and released tokens."""

    def __init__(self) -> None:
        """Start empty."""
        self.verdicts: list[RoundVerdict] = []
        self.tokens: list[CommittedToken] = []
        self._places: dict[int, dict[int, int]] = {}

    def record_verdict(self, verdict: RoundVerdict) -> None:
        """Append a verdict; it may be relayed only after this returns."""
        self.verdicts.append(verdict)

    def release(self, token: CommittedToken) -> bool:
        """Append a token unless it is already there; return whether it is new. Raises CommitConflict."""
        places = self._places.setdefault(token.request, {})
        known = places.get(token.position)
        if known is None:
            places[token.position] = token.token_id
            self.tokens.append(token)
            return True
        if known != token.token_id:
            raise CommitConflict(
                f"request {token.request:016x} position {token.position}: token {token.token_id} after token {known}"
            )
        return False

    def forget_request(self, request: int) -> None:
        """Close a request's places so that the same registered request can be run again from its prompt."""
        self._places.pop(request, None)
