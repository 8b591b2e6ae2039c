"""The main job: one reduced window on the embedded bed, from frozen registration to report.

Nothing starts before the bundle can be written and the machine can run the profile. Whatever happens after
that ends in a restore, a decision from the sealed records and a readable bundle. Source: DESIGN sections 6, 7.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from window.bed_protocol import Engine
from window.bundle import DECISION_FILE, REPORT_FILE, Bundle
from window.bundle_reader import SealedWindow, read_window
from window.canonical import canonical_bytes, sha256_hex
from window.decision import Decision, decide, exit_code_of
from window.embedded_engine import EmbeddedEngine
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.journal import Journal
from window.progress import ProgressListener
from window.registration import Registration
from window.rehearsal_inputs import RehearsalInputs, RehearsalOptions, gather_inputs
from window.report import render_report
from window.window_driver import WindowDriver

__all__ = ["RehearsalResult", "rehearse", "run_window"]


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """How a rehearsal ended and where its bundle is."""

    folder: Path
    report_path: Path
    sealed: SealedWindow
    decision: Decision
    exit_code: ExitCode
    interrupted: bool

    @property
    def registration(self) -> Registration:
        """Return the window's registration."""
        return self.sealed.registration


def rehearse(options: RehearsalOptions, progress: ProgressListener) -> RehearsalResult:
    """Run one reduced window and return its result. Raises WindowError before anything was started."""
    inputs = gather_inputs(options)
    engine = EmbeddedEngine(options.profile, options.weights_path)
    engine.check()
    return run_window(inputs, engine, options.out_folder, (options.weights_path, options.tokenizer_path), progress)


def run_window(
    inputs: RehearsalInputs,
    engine: Engine,
    out_folder: Path,
    files: tuple[Path, ...],
    progress: ProgressListener,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> RehearsalResult:
    """Run a registered window on any engine; `files` are held equal before and after. Raises WindowError."""
    bundle = Bundle.create(out_folder, inputs.registration, inputs.matrices)
    with Journal(bundle.journal_path) as journal:
        driver = WindowDriver(
            inputs.registration, inputs.prompts, engine, journal, bundle, files, progress, clock, sleep
        )
        try:
            driver.go()
        finally:
            engine.close()
        return _seal(bundle, journal, driver)


def _seal(bundle: Bundle, journal: Journal, driver: WindowDriver) -> RehearsalResult:
    """Decide from what is on the disk, write decision, report and seal. Raises WindowError on a full disk."""
    sealed = read_window(bundle.folder)
    decision = decide(sealed.registration, sealed.records, sealed.matrices)
    data = canonical_bytes(decision) + b"\n"
    try:
        bundle.write(DECISION_FILE, data)
        journal.append("decision", {"sha256": sha256_hex(data), "verdict": decision.verdict.value})
        driver.finish()
        report = render_report(sealed, decision)
        bundle.write(REPORT_FILE, report)
        bundle.seal(journal.head, journal.count, {"window_id": decision.window_id})
    except OSError as error:
        raise WindowError(
            f"the window is over and restored, but {bundle.folder} cannot be written ({error.strerror}); "
            "its journal holds every record",
            ExitCode.CANNOT_WRITE,
        ) from error
    code = exit_code_of(decision, sealed.records.opened)
    if driver.interrupted and code is not ExitCode.RESTORE_ESCALATED:
        code = ExitCode.INTERRUPTED
    return RehearsalResult(bundle.folder, bundle.folder / REPORT_FILE, sealed, decision, code, driver.interrupted)
