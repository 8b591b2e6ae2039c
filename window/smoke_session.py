"""The paired smoke: both arms at temperature 0 in processes of their own, compared token by token.

Token ids are held in memory for the comparison and forgotten; the receipt holds indices and counts. A part
that its time did not allow is INCOMPLETE, never a match. Source: plan, "T0 uses paired identical prompts/seeds".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ranks.records import RequestStatus
from window.arms import Arm
from window.bed_protocol import Engine, EngineFault, WindowBed
from window.block_session import source_spec
from window.identity_check import identity_mismatches, rank_identity_of
from window.records import SmokePartResult
from window.registration import Registration
from window.rehearsal_inputs import Prompts
from window.start_state import ProcessKey
from window.token_compare import compare_sampled_rows

__all__ = ["SmokeSession"]

Row = tuple[int, ...]


@dataclass(slots=True)
class SmokeSession:
    """The smoke while it runs; `deadline_ns` is a CLOCK_MONOTONIC time."""

    registration: Registration
    prompts: Prompts
    engine: Engine
    clock: Callable[[], int]
    deadline_ns: int
    seen: list[ProcessKey]
    _bed: WindowBed | None = None

    def run(self) -> tuple[SmokePartResult, ...]:
        """Return one result a registered case; only the greedy part can be run on the embedded bed."""
        results: list[SmokePartResult] = []
        rows: dict[str, dict[str, Row]] = {}
        reason = ""
        for arm in self.registration.arms:
            rows[arm.name] = {}
            try:
                reason = self._greedy_rows(arm, rows[arm.name])
            except EngineFault as fault:
                reason = f"arm {arm.name}: {fault}"
            finally:
                self.stop()
            if reason:
                break
        for source_id in self.registration.smoke.source_ids:
            results.append(_greedy_result(source_id, rows, reason or "this case was not reached"))
        for part in self.registration.smoke.parts:
            if part != "greedy":
                results.append(_incomplete(part, part, "the embedded bed has no such part"))
        return tuple(results)

    def stop(self) -> tuple[int, ...]:
        """Stop the smoke's own ranks and return the pids that outlived it; idempotent."""
        if self._bed is None:
            return ()
        bed, self._bed = self._bed, None
        return bed.stop().survivors

    def _greedy_rows(self, arm: Arm, rows: dict[str, Row]) -> str:
        """Fill in the sampled ids of every case in one arm; return why that ended early, "" when it did not."""
        if self.clock() >= self.deadline_ns:
            return "the smoke's time was over"
        self._bed = self.engine.start(arm)
        identities = [rank_identity_of(attestation) for attestation in self._bed.attest()]
        wrong = identity_mismatches(self.registration, arm, identities, self.seen)
        self.seen += [(identity.pid, identity.process_start_ticks) for identity in identities]
        if wrong:
            return wrong[0]
        for source_id in self.registration.smoke.source_ids:
            left_ns = self.deadline_ns - self.clock()
            if left_ns <= 0:
                return "the smoke's time was over"
            spec = source_spec(
                self.registration,
                self.prompts,
                source_id,
                temperature=0,
                max_new_tokens=self.registration.smoke.max_new_tokens,
                granted_ns=left_ns,
            )
            results = self._bed.run([replace(spec, seed=self.registration.smoke.seed)])
            if len(results) != 1 or results[0].status not in (RequestStatus.EOS, RequestStatus.BUDGET):
                return f"arm {arm.name} did not finish {source_id}"
            rows[source_id] = results[0].token_ids
        return ""


def _greedy_result(source_id: str, rows: dict[str, dict[str, Row]], reason: str) -> SmokePartResult:
    """Return the comparison of one case, INCOMPLETE when an arm has no row for it."""
    row_a, row_b = rows.get("A", {}).get(source_id), rows.get("B", {}).get(source_id)
    if row_a is None or row_b is None:
        return _incomplete("greedy", source_id, reason)
    compared = compare_sampled_rows(row_a, len(row_a), row_b, len(row_b))
    return SmokePartResult(
        part="greedy",
        case=source_id,
        outcome="MATCH" if compared.equal else "MISMATCH",
        compared_tokens=compared.compared,
        first_difference=compared.first_difference,
        reason="" if compared.equal else "the arms differ at temperature 0",
    )


def _incomplete(part: str, case: str, reason: str) -> SmokePartResult:
    """Return a part that came to no comparison."""
    return SmokePartResult.model_validate(
        {
            "part": part,
            "case": case,
            "outcome": "INCOMPLETE",
            "compared_tokens": 0,
            "first_difference": None,
            "reason": reason,
        }
    )


def outcomes(results: Sequence[SmokePartResult]) -> str:
    """Return the outcomes as one line, for a progress view."""
    return ", ".join(f"{result.case} {result.outcome}" for result in results)
