"""The shim that a rank is started with so that scheduled faults strike its outgoing frames.

Named MODULE:OBJECT in the rank's settings. Must never invent a fault that is not in the schedule.
Source: DESIGN section 5, "message-aware shim on the link".
"""

from __future__ import annotations

from collections.abc import Callable

from faults.schedule import apply_faults, parse_schedule
from ranks.frames import Header

__all__ = ["LINK_SHIM", "make_link_filter"]

LINK_SHIM = "faults.link_shim:make_link_filter"


def make_link_filter(rank: int, schedule_json: str) -> Callable[[Header, bytes], bytes | None]:
    """Return the outgoing frame filter of one rank under a schedule given as JSON. Raises ScheduleError."""
    faults = parse_schedule(schedule_json)

    def link_filter(header: Header, data: bytes) -> bytes | None:
        return apply_faults(faults, rank, header, data)

    return link_filter
