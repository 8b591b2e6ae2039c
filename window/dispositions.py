"""How a registered run can end, and why a window can be rejected: two closed lists.

Every registered run ends with exactly one disposition, whatever happened to the window.
Source: plan, "include canceled/failed/timeout requests in the disposition"; plan, rule REJECT.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Disposition", "DispositionEffect", "RejectReason"]


class Disposition(StrEnum):
    """How one registered run ended."""

    EOS = "EOS"
    BUDGET = "BUDGET"
    CENSORED_DEADLINE = "CENSORED_DEADLINE"
    CANCELED_PLAN = "CANCELED_PLAN"
    CANCELED_CLIENT = "CANCELED_CLIENT"
    WATCHDOG = "WATCHDOG"
    ENGINE_FAILED = "ENGINE_FAILED"
    TRANSPORT_FAILED = "TRANSPORT_FAILED"
    LOST = "LOST"
    NOT_ADMITTED = "NOT_ADMITTED"


class DispositionEffect(StrEnum):
    """What a disposition does to the verdict; the table that maps one to the other is registered."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    REJECT_LIFECYCLE = "reject_lifecycle"
    REJECT_LOST_REQUEST = "reject_lost_request"


class RejectReason(StrEnum):
    """The ten reasons for REJECT."""

    Q_LAW = "q_law"
    TARGET_LAW = "target_law"
    GREEDY_IDENTITY = "greedy_identity"
    GRAMMAR = "grammar"
    STOP = "stop"
    LIFECYCLE = "lifecycle"
    CORRUPTION = "corruption"
    RECOVERY = "recovery"
    LOST_REQUEST = "lost_request"
    POLICY_OR_WEIGHT_MISMATCH = "policy_or_weight_mismatch"
