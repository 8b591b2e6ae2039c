"""What one rank process is started with; everything that decides is named, nothing defaults.

Must never hold a handle. Travels to the actor as JSON. Source: DESIGN section 4.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ranks.records import DraftMode
from ranks.timeout_ladder import TimeoutLadder

__all__ = ["MAX_SLOT_COUNT", "RankSettings"]

MAX_SLOT_COUNT = 16


class RankSettings(BaseModel):
    """Identity, switches, files and addresses of one rank.

    `draft_mode` is the engine switch on rank 0 and the worker switch on rank 1. `link_faults` is a
    MODULE:OBJECT that makes an outgoing frame filter, with its argument; "" for none.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rank: Literal[0, 1]
    profile: str
    device: str
    backend: Literal["socket", "gloo", "nccl"]
    draft_mode: DraftMode
    depth: Annotated[int, Field(ge=0, le=8)]
    exchange: Literal["candidates"]
    weights_path: str
    weights_digest: str
    slot_count: Annotated[int, Field(ge=1, le=MAX_SLOT_COUNT)]
    ladder: TimeoutLadder
    driver_host: str
    driver_port: Annotated[int, Field(ge=1, le=65535)]
    incarnation: Annotated[int, Field(ge=1, lt=1 << 64)]
    link_faults: str
    link_faults_argument: str
