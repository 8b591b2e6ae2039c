"""How a row ends in device memory and on the wire: valid, or one number for each reason why it has no law.

Must never give two reasons one number. Source: DESIGN section 3, "Draft law".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from selector.candidates import InvalidReason

__all__ = ["REASON_OF_STATUS", "STATUS_OF_REASON", "RowStatus"]


class RowStatus(IntEnum):
    """Whether a row has a law, else why not. PREFIX_UNUSABLE: an earlier depth of the same walk has no token."""

    VALID = 0
    NAN_OR_POSITIVE_INFINITY = 1
    NONE_FINITE = 2
    ONE_TOKEN_TWO_LOGITS = 3
    PREFIX_UNUSABLE = 4


STATUS_OF_REASON: Final = {
    InvalidReason.NAN_OR_POSITIVE_INFINITY: RowStatus.NAN_OR_POSITIVE_INFINITY,
    InvalidReason.NONE_FINITE: RowStatus.NONE_FINITE,
    InvalidReason.ONE_TOKEN_TWO_LOGITS: RowStatus.ONE_TOKEN_TWO_LOGITS,
}
REASON_OF_STATUS: Final = {status: reason for reason, status in STATUS_OF_REASON.items()}
