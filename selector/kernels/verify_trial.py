"""One verify on one device beside its numpy reference, step by step; tests and the GPU script both use it.

Every step is fed with the reference's numbers, so that one wrong step is not taken for three.
Must never compare before outputs were poisoned. Source: DESIGN section 3, "TP2 needs no gathered logits".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from selector.kernels.launch_count import LaunchLog
from selector.kernels.verify_cases import round_on
from selector.kernels.verify_decide import DecisionBuffers, launch_decision
from selector.kernels.verify_masses import MassesBuffers, launch_masses
from selector.kernels.verify_reference import (
    Decision,
    VerifyCase,
    decision_reference,
    masses_reference,
    statistics_reference,
)
from selector.kernels.verify_round import VerifyTile
from selector.kernels.verify_statistics import StatisticsBuffers, launch_statistics

__all__ = ["VerifyTrial"]

_GARBAGE = 7.25


class VerifyTrial:
    """Both shards' buffers of one case on one device, filled with garbage, and the three steps of a verify over them.

    tile: None for the one that the width asks for. device: cpu (the interpreter) or cuda.
    """

    def __init__(
        self, case: VerifyCase, device: str, dtype: torch.dtype = torch.float32, tile: VerifyTile | None = None
    ) -> None:
        """Put the case onto the device."""
        rows = len(case.logits)
        self.case, self.device = case, device
        self.round = round_on(case, device)
        self.shards = [(torch.from_numpy(part).to(device).to(dtype), first) for part, first in case.shards()]
        widths = [part.shape[1] for part, _ in self.shards]
        self.statistics_buffers = [StatisticsBuffers.allocate(rows, width, device, tile) for width in widths]
        self.masses_buffers = [MassesBuffers.allocate(rows, width, device, tile) for width in widths]
        self.decision_buffers = DecisionBuffers.allocate(self.round.requests, case.depth, device)
        self.log = LaunchLog()
        self.poison()

    def poison(self) -> None:
        """Fill every output and scratch with garbage."""
        for statistics in self.statistics_buffers:
            statistics.statistics.fill_(_GARBAGE)
            statistics.keys.fill_(1 << 61)
            statistics.limbs.fill_(-5)
        for masses in self.masses_buffers:
            masses.masses.fill_(_GARBAGE)
            masses.sums.fill_(-5)
        found = self.decision_buffers
        for output in (found.accepted, found.token_ids, found.forced, found.invalid_row, found.status):
            output.fill_(77)

    def statistics(self) -> torch.Tensor:
        """Return both shards' part of the first exchange, float64 (2, rows, 5)."""
        parts = zip(self.shards, self.statistics_buffers, strict=True)
        return torch.stack(
            [launch_statistics(part, first, self.round, buffers, self.log) for (part, first), buffers in parts]
        )

    def masses(self, statistics: torch.Tensor) -> torch.Tensor:
        """Return both shards' part of the second exchange, float64 (2, rows, 4)."""
        parts = zip(self.shards, self.masses_buffers, strict=True)
        return torch.stack(
            [launch_masses(part, first, statistics, self.round, buffers, self.log) for (part, first), buffers in parts]
        )

    def decisions(self, statistics: torch.Tensor, masses: torch.Tensor) -> list[Decision]:
        """Return what every request emits, from the exchanged numbers."""
        found = launch_decision(statistics, masses, self.round, self.decision_buffers, self.log)
        tokens = [tuple(row) for row in found.token_ids.tolist()]
        columns = (found.accepted.tolist(), tokens, found.forced.tolist(), found.invalid_row.tolist())
        return [Decision(*row) for row in zip(*columns, found.status.tolist(), strict=True)]

    def differences(self, decision_only: bool = False) -> list[str]:
        """Return which of the three steps gives other bytes than numpy."""
        case, wrong = self.case, []
        statistics = statistics_reference(case)
        masses = masses_reference(case, statistics)
        if not decision_only:
            if self.statistics().cpu().numpy().tobytes() != statistics.tobytes():
                wrong.append("statistics")
            if self.masses(self._sent(statistics)).cpu().numpy().tobytes() != masses.tobytes():
                wrong.append("masses")
        decisions = self.decisions(self._sent(statistics), self._sent(masses))
        return wrong + ([] if decisions == decision_reference(case, statistics, masses) else ["decisions"])

    def _sent(self, numbers: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self.device)
