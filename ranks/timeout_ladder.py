"""The ladder of timeouts, checked once at start.

A vote that is missed costs a round its drafts, a commit that is missed ends the epoch, and each
outer bound must be able to see the inner one fail first. Must never be changed while a bed runs.
Source: DESIGN section 4, "Ladder".
"""

from __future__ import annotations

from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["CPU_LADDER", "TimeoutLadder"]


class TimeoutLadder(BaseModel):
    """Five strictly increasing bounds in milliseconds, each at least 1.

    vote: rank 0 waits so long for drafts and votes (missed: target-only). commit: the driver waits so long
    for verdict and acks (missed: the epoch ends). group: a collective's own bound. ray_get: a call to an actor.
    watchdog: a round that nothing else ended.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    vote_timeout_ms: int = Field(ge=1)
    commit_timeout_ms: int = Field(ge=1)
    group_timeout_ms: int = Field(ge=1)
    ray_get_timeout_ms: int = Field(ge=1)
    watchdog_timeout_ms: int = Field(ge=1)

    @model_validator(mode="after")
    def _strictly_increasing(self) -> TimeoutLadder:
        names = list(type(self).model_fields)
        for lower, upper in pairwise(names):
            if getattr(self, lower) >= getattr(self, upper):
                raise ValueError(
                    f"{lower}={getattr(self, lower)} must be below {upper}={getattr(self, upper)}: "
                    "an outer bound must see the inner one fail first"
                )
        return self


# Measured on two cores: a round's p99 was 19 ms alone and 69 ms beside a job that used both cores, so commit and above
# hold more than 50 times that. A vote is given as long as a stall of the machine may honestly take.
CPU_LADDER = TimeoutLadder(
    vote_timeout_ms=3000,
    commit_timeout_ms=10000,
    group_timeout_ms=20000,
    ray_get_timeout_ms=60000,
    watchdog_timeout_ms=90000,
)
