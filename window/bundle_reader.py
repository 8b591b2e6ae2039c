"""From a bundle's files back to sealed records: what anyone needs to decide again, offline.

Reads the journal's chain to its end and holds every round file to the digests in the run records. Must never
repair anything. Source: DESIGN section 6, "anyone can recompute it offline from the bundle".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from window.bundle import FAMILIES_FILE, JOURNAL_FILE, REGISTRATION_FILE, SOURCES_FILE, rounds_file
from window.canonical import SealedModel, canonical_json, parse_document
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.gain import IndexMatrices
from window.index_matrix import read_index_matrix
from window.journal import JournalLine, read_journal
from window.measure import columns_of, rounds_digest
from window.records import (
    BlockReceipt,
    Finding,
    RestoreReceipt,
    RoundColumns,
    RunRecord,
    SmokeReceipt,
    StageSpan,
    WindowRecords,
    WindowRound,
)
from window.registration import Registration, parse_registration

__all__ = ["SealedWindow", "read_window"]

Record = TypeVar("Record", bound=SealedModel)


@dataclass(frozen=True, slots=True)
class SealedWindow:
    """A bundle as read: what was registered, what was recorded, and the journal's head."""

    registration: Registration
    records: WindowRecords
    rounds: Mapping[str, tuple[WindowRound, ...]]
    matrices: IndexMatrices
    journal_head: str
    journal_records: int


def read_window(folder: Path) -> SealedWindow:
    """Return everything that a decision and a report are made from. Raises WindowError when it contradicts itself."""
    data = _bytes_of(folder / REGISTRATION_FILE)
    registration = parse_registration(data, REGISTRATION_FILE)
    rule = registration.rules.bootstrap
    families, sources = len(registration.families()), len(registration.sources)
    matrices = IndexMatrices(
        read_index_matrix(_bytes_of(folder / FAMILIES_FILE), families, rule.resamples, rule.families_index_sha256),
        read_index_matrix(_bytes_of(folder / SOURCES_FILE), sources, rule.resamples, rule.sources_index_sha256),
    )
    reading = read_journal(_bytes_of(folder / JOURNAL_FILE), JOURNAL_FILE)
    _check_first(reading.lines, registration)
    runs = _all(RunRecord, reading.lines, "run")
    rounds, findings = _rounds(folder, registration, runs)
    if reading.torn_bytes:
        findings.append(Finding(where=JOURNAL_FILE, what=f"the last line is torn ({reading.torn_bytes} bytes)"))
    return SealedWindow(
        registration=registration,
        records=_records(reading.lines, runs, {name: columns_of(rows) for name, rows in rounds.items()}, findings),
        rounds=rounds,
        matrices=matrices,
        journal_head=reading.head,
        journal_records=len(reading.lines),
    )


def _bytes_of(path: Path) -> bytes:
    """Return a file's bytes. Raises WindowError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise WindowError(
            f"{path} cannot be read ({error.strerror}); a bundle holds this file", ExitCode.EVIDENCE_FAILED
        ) from error


def _check_first(lines: tuple[JournalLine, ...], registration: Registration) -> None:
    """Refuse a journal that does not begin with this registration. Raises WindowError."""
    if not lines or lines[0].kind != "registration" or lines[0].body != {"sha256": registration.window_id()}:
        raise WindowError(
            f"{JOURNAL_FILE} does not begin with the digest of {REGISTRATION_FILE}", ExitCode.EVIDENCE_FAILED
        )


def _all(model: type[Record], lines: tuple[JournalLine, ...], kind: str) -> tuple[Record, ...]:
    """Return the records of one kind in journal order."""
    return tuple(
        parse_document(model, canonical_json(line.body), f"{JOURNAL_FILE} record {line.seq}")
        for line in lines
        if line.kind == kind
    )


def _records(
    lines: tuple[JournalLine, ...],
    runs: tuple[RunRecord, ...],
    columns: Mapping[str, RoundColumns],
    findings: list[Finding],
) -> WindowRecords:
    """Return the sealed records of a journal; a second smoke or restore receipt is a finding."""
    smoke, restore = _all(SmokeReceipt, lines, "smoke"), _all(RestoreReceipt, lines, "restore")
    for name, found in (("smoke", smoke), ("restore", restore)):
        if len(found) > 1:
            findings.append(Finding(where=JOURNAL_FILE, what=f"{len(found)} {name} receipts; exactly one is lawful"))
    stops = [str(line.body["reason"]) for line in lines if line.kind == "stop"]
    return WindowRecords(
        opened=any(line.kind == "opened" for line in lines),
        runs=runs,
        rounds=columns,
        blocks=_all(BlockReceipt, lines, "block"),
        smoke=smoke[0] if smoke else None,
        restore=restore[0] if restore else None,
        spans=_all(StageSpan, lines, "span"),
        findings=tuple(findings) + _all(Finding, lines, "finding"),
        stop_reason=stops[0] if stops else "",
    )


def _rounds(
    folder: Path, registration: Registration, runs: tuple[RunRecord, ...]
) -> tuple[dict[str, tuple[WindowRound, ...]], list[Finding]]:
    """Return the rounds by run id, and a finding for every run whose rounds are not the sealed ones."""
    rounds: dict[str, list[WindowRound]] = {}
    for block in registration.blocks:
        path = folder / rounds_file(block)
        if not path.exists():
            continue
        for number, line in enumerate(_bytes_of(path).splitlines(), start=1):
            row = parse_document(WindowRound, line, f"{path.name} line {number}")
            rounds.setdefault(row.run_id, []).append(row)
    findings = [
        Finding(where=run.run_id, what="the sealed rounds are not those of the run record")
        for run in runs
        if rounds_digest(rounds.get(run.run_id, [])) != run.rounds_sha256
    ]
    known = {run.run_id for run in runs}
    findings += [Finding(where=name, what="rounds without a run record") for name in rounds if name not in known]
    return {name: tuple(rows) for name, rows in rounds.items()}, findings
