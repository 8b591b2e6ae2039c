"""Events that go into a rank's protocol core and effects that come out of it.

Plain frozen values, shared by the simulator and the Ray actors. Must never hold a clock or a handle.
Source: DESIGN section 2, "Pure cores, thin shells".
"""

from __future__ import annotations

from dataclasses import dataclass

from ranks.draw_depth import DrawnDepth
from ranks.frames import BrokenFrame, Frame, Header
from ranks.round_plan import AckEntry, RoundPlan, RoundVerdict
from ranks.verdict import DepthReason
from selector.draft_law import DraftCounts, ShardCandidates

__all__ = [
    "ArmVoteDeadline",
    "BackboneDone",
    "CheckDigests",
    "ComputeRows",
    "DepthDrawn",
    "DigestsChecked",
    "DrawDepth",
    "DrawRequest",
    "Effect",
    "EngineFailed",
    "EpochBegan",
    "Event",
    "ForwardDone",
    "PeerBroken",
    "PeerClosed",
    "PeerFrame",
    "PlanArrived",
    "ProposeVerdict",
    "ReportFailure",
    "RowsComputed",
    "RunBackbone",
    "RunForward",
    "RunVerify",
    "SendAck",
    "SendPeer",
    "VerdictArrived",
    "Verified",
    "VerifyEntry",
    "VoteDeadline",
]


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """Both ranks agreed on a new epoch; everything older is void."""

    epoch: int
    own_incarnation: int
    peer_incarnation: int


@dataclass(frozen=True, slots=True)
class PlanArrived:
    """The driver wants a round."""

    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class BackboneDone:
    """The parallel backbone has this rank's half of U for all depths."""


@dataclass(frozen=True, slots=True)
class RowsComputed:
    """This rank's candidates at one depth, in plan order."""

    depth: int
    rows: tuple[ShardCandidates, ...]


@dataclass(frozen=True, slots=True)
class PeerFrame:
    """An intact frame came from the peer."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class PeerBroken:
    """Damaged bytes came from the peer."""

    broken: BrokenFrame


@dataclass(frozen=True, slots=True)
class DepthDrawn:
    """The law's answer at one depth, in plan order: a draw or a reason."""

    depth: int
    results: tuple[DrawnDepth | DepthReason, ...]


@dataclass(frozen=True, slots=True)
class DigestsChecked:
    """Digests taken again from the stored counts, in plan order and depth order (0 where nothing was drawn)."""

    digests: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class VoteDeadline:
    """The time for drafts and votes of a round is over."""

    epoch: int
    round_number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """The verify forward of the round is done."""


@dataclass(frozen=True, slots=True)
class VerdictArrived:
    """The driver logged and relayed the verdict."""

    verdict: RoundVerdict


@dataclass(frozen=True, slots=True)
class Verified:
    """Acceptance is decided on this rank, in plan order."""

    entries: tuple[AckEntry, ...]
    q_frames: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer link ended."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine or a collective failed, or a proof of an earlier failure was found."""

    reason: str
    detail: str


Event = (
    EpochBegan
    | PlanArrived
    | BackboneDone
    | RowsComputed
    | PeerFrame
    | PeerBroken
    | DepthDrawn
    | DigestsChecked
    | VoteDeadline
    | ForwardDone
    | VerdictArrived
    | Verified
    | PeerClosed
    | EngineFailed
)


@dataclass(frozen=True, slots=True)
class ArmVoteDeadline:
    """Deliver VoteDeadline for this round when the vote timeout has passed since now."""

    deadline: VoteDeadline


@dataclass(frozen=True, slots=True)
class RunBackbone:
    """Compute this rank's half of U for every entry and depth."""

    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class ComputeRows:
    """Add the Markov bias of `previous_token_ids` at `depth` and select this shard's candidates."""

    depth: int
    previous_token_ids: tuple[int, ...]
    greedy: bool


@dataclass(frozen=True, slots=True)
class SendPeer:
    """Send frames to the peer in this order."""

    frames: tuple[tuple[Header, bytes], ...]


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Both shards' candidates for one row and the key of its draw; None where the row cannot be drawn."""

    shard0: ShardCandidates
    shard1: ShardCandidates
    seed: int
    request: int
    position: int


@dataclass(frozen=True, slots=True)
class DrawDepth:
    """Draw one depth for every row that can be drawn."""

    depth: int
    requests: tuple[DrawRequest | None, ...]


@dataclass(frozen=True, slots=True)
class CheckDigests:
    """Take every digest again from the counts that acceptance will read."""

    drawn: tuple[tuple[DrawnDepth | None, ...], ...]


@dataclass(frozen=True, slots=True)
class RunForward:
    """Run the verify forward: one row block of depth + 1 tokens an entry, whatever was usable."""

    token_rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ProposeVerdict:
    """Rank 0 sends its decision to the driver's log."""

    verdict: RoundVerdict


@dataclass(frozen=True, slots=True)
class VerifyEntry:
    """What acceptance needs for one request: k, drafted tokens and the counts that they were drawn from."""

    usable_depth: int
    drafted: tuple[int, ...]
    draft_counts: tuple[DraftCounts | None, ...]
    drawn: tuple[DrawnDepth | None, ...]
    q_frames: int


@dataclass(frozen=True, slots=True)
class RunVerify:
    """Decide acceptance with the peer and commit the kept rows."""

    entries: tuple[VerifyEntry, ...]


@dataclass(frozen=True, slots=True)
class SendAck:
    """Tell the driver what this rank emitted."""

    entries: tuple[AckEntry, ...]
    q_frames: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Tell the driver that this rank's part of the epoch is over."""

    epoch: int
    reason: str
    detail: str


Effect = (
    ArmVoteDeadline
    | RunBackbone
    | ComputeRows
    | SendPeer
    | DrawDepth
    | CheckDigests
    | RunForward
    | ProposeVerdict
    | RunVerify
    | SendAck
    | ReportFailure
)
