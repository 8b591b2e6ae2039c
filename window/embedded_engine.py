"""Pairs of ranks on the embedded bed: one private Ray session, fresh rank processes for every start.

Source: DESIGN section 4; window.bed_protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ranks.bed import Bed, BedError, start_bed
from ranks.bed_records import ReleaseEvent
from ranks.doctor import gather_machine_facts
from ranks.errors import UserError
from ranks.link import LinkClosed
from ranks.profiles import profile_named, why_not
from ranks.ray_session import RaySession
from ranks.records import Attestation, DraftMode, PrimeReceipt, RequestResult, RequestSpec, StopReceipt
from window.arms import Arm
from window.bed_protocol import EngineFault
from window.errors import WindowError
from window.exit_codes import ExitCode

__all__ = ["EmbeddedBed", "EmbeddedEngine"]


class EmbeddedBed:
    """A bed whose failures speak the window's language."""

    def __init__(self, bed: Bed) -> None:
        """Take over a started bed."""
        self._bed = bed

    def attest(self) -> tuple[Attestation, Attestation]:
        """Return what each rank's process says of itself."""
        return self._bed.attest()

    def prime(self, spec: RequestSpec) -> PrimeReceipt:
        """Hold a request's prompt on both ranks. Raises EngineFault."""
        try:
            return self._bed.prime(spec)
        except (BedError, LinkClosed, UserError) as error:
            raise EngineFault(_sentence(error)) from error

    def run(
        self, specs: Sequence[RequestSpec], on_release: Callable[[ReleaseEvent], None] | None = None
    ) -> list[RequestResult]:
        """Serve requests to their end. Raises EngineFault."""
        try:
            return self._bed.run(specs, on_release)
        except (BedError, LinkClosed, UserError) as error:
            raise EngineFault(_sentence(error)) from error

    def stop(self) -> StopReceipt:
        """Stop both ranks and wait until they are gone."""
        return self._bed.stop()


class EmbeddedEngine:
    """Starts embedded beds under one profile and one weights file."""

    def __init__(self, profile: str, weights_path: Path) -> None:
        """Keep what every start needs; nothing is started yet."""
        self._profile = profile_named(profile)
        self._weights_path = weights_path
        self._session: RaySession | None = None

    def check(self) -> None:
        """Say whether this machine can run the profile, before anything starts. Raises WindowError."""
        reason = why_not(self._profile, gather_machine_facts())
        if reason is not None:
            raise WindowError(f"profile {self._profile.name} cannot run here: {reason}", ExitCode.UNAVAILABLE)

    def open(self) -> None:
        """Start the private Ray session. Raises EngineFault."""
        try:
            address = os.environ.get("RAY_ADDRESS") if self._profile.node_count > 1 else None
            self._session = RaySession(gpus=self._profile.gpus_per_node, address=address)
        except UserError as error:
            raise EngineFault(error.sentence) from error

    def start(self, arm: Arm) -> EmbeddedBed:
        """Start two fresh ranks of one arm. Raises EngineFault."""
        if self._session is None:
            raise EngineFault("the Ray session is not open")
        mode = DraftMode.SAMPLED if arm.engine_sampled_drafts else DraftMode.GREEDY
        try:
            return EmbeddedBed(
                start_bed(self._profile.name, self._weights_path, mode, arm.depth, session=self._session)
            )
        except (BedError, LinkClosed, UserError) as error:
            raise EngineFault(_sentence(error)) from error

    def close(self) -> None:
        """End the Ray session and every process under it; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()


def _sentence(error: Exception) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__
