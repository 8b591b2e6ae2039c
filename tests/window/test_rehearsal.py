"""Whole windows on scripted ranks: honest ones end as they should, and no lie, crash or interrupt gets through."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.window.registrations import MATRICES, registration
from tests.window.scripted_engine import (
    SECRET_TOKEN,
    Rehearsal,
    ScriptedBed,
    ScriptedEngine,
    VirtualClock,
    rehearse_scripted,
)
from window.arms import Arm
from window.bundle import Bundle, file_digests
from window.bundle_reader import read_window
from window.canonical import canonical_bytes
from window.decision import Verdict, decide
from window.dispositions import Disposition
from window.errors import WindowError
from window.exit_codes import ExitCode
from window.interrupt_gate import InterruptGate
from window.journal import read_journal
from window.progress import ProgressEvent
from window.rehearsal_inputs import RehearsalInputs
from window.rehearse import run_window
from window.rule_result import RuleOutcome

PLAN = registration(minimum_rounds=28)


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small windows are written here; none of them has to survive a power loss."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """One honest window for all tests that only read it."""
    folder = tmp_path_factory.mktemp("honest")
    held = folder / "weights.bin"
    held.write_bytes(b"weights")
    return rehearse_scripted(PLAN, folder / "out", files=(held,))


def fired(window: Rehearsal) -> list[str]:
    """Return the names of the rules that fired."""
    return [rule.rule for rule in window.result.decision.rules if rule.outcome is RuleOutcome.FIRED]


def test_an_honest_window_ends_restored_with_24_dispositions_and_a_verdict(honest: Rehearsal) -> None:
    records = honest.result.sealed.records
    assert [run.run_id for run in records.runs] == list(PLAN.run_ids())
    assert {run.disposition for run in records.runs} == {Disposition.CENSORED_DEADLINE}
    assert [receipt.block for receipt in records.blocks] == ["A1", "B1", "B2", "A2"]
    assert records.restore is not None
    assert records.restore.outcome == "RESTORED"
    assert honest.result.decision.verdict is Verdict.CANDIDATE
    assert honest.result.exit_code is ExitCode.CANDIDATE
    assert not honest.result.decision.promotable


def test_every_block_has_ranks_of_its_own_and_every_request_goes_out_once_in_the_frozen_order(
    honest: Rehearsal,
) -> None:
    pids = [rank.pid for receipt in honest.result.sealed.records.blocks for rank in receipt.identity_before]
    assert len(set(pids)) == 8
    wanted = []
    for start in range(1, 5):
        wanted += [f"{start}:warm-up-{index}:1" for index in range(2)]
        wanted += [f"{start}:{source_id}:1" for source_id in PLAN.order]
    wanted += [f"{start}:{source_id}:0" for start in (5, 6) for source_id in PLAN.smoke.source_ids]
    assert honest.engine.sent == wanted


def test_the_bundle_is_decided_again_to_the_same_bytes(honest: Rehearsal) -> None:
    folder = honest.result.folder
    sealed = read_window(folder)
    again = decide(sealed.registration, sealed.records, sealed.matrices)
    assert canonical_bytes(again) + b"\n" == (folder / "decision.json").read_bytes()


def test_the_seal_names_every_file_and_the_journal_s_last_head(honest: Rehearsal) -> None:
    folder = honest.result.folder
    seal = json.loads((folder / "seal.json").read_bytes())
    assert seal["files"] == file_digests(folder)
    reading = read_journal((folder / "journal.jsonl").read_bytes(), "journal")
    assert (seal["journal_head"], seal["journal_records"]) == (reading.head, len(reading.lines))


def test_no_prompt_or_output_token_is_in_any_file(honest: Rehearsal) -> None:
    for path in honest.result.folder.iterdir():
        assert str(SECRET_TOKEN).encode() not in path.read_bytes(), path.name
        assert b'"token_ids"' not in path.read_bytes(), path.name


def test_effects_are_in_the_journal_before_what_they_caused(honest: Rehearsal) -> None:
    lines = read_journal((honest.result.folder / "journal.jsonl").read_bytes(), "journal").lines
    assert lines[0].kind == "registration"
    for run_id in PLAN.run_ids():
        ordered = next(
            line.seq for line in lines if line.body.get("name") == "AdmitRun" and run_id in str(line.body["fields"])
        )
        recorded = next(line.seq for line in lines if line.kind == "run" and line.body["run_id"] == run_id)
        assert ordered < recorded


def test_progress_names_every_stage_and_every_run(honest: Rehearsal) -> None:
    assert {event.run_id for event in honest.events if event.outcome == "CENSORED_DEADLINE"} == set(PLAN.run_ids())
    stages = [event.stage for event in honest.events]
    assert stages[0] == "drain"
    assert {"warm up", "prime prefixes", "decode", "paired smoke", "restore"} <= set(stages)
    assert all(
        earlier.elapsed_ns <= later.elapsed_ns for earlier, later in zip(honest.events, honest.events[1:], strict=False)
    )


MISMATCH = ["reject/policy_or_weight_mismatch"]


@pytest.mark.parametrize(
    ("lie", "wanted"),
    [
        ("weights", MISMATCH),
        ("one_switch", MISMATCH),
        ("wrong_arm", MISMATCH),
        ("depth", MISMATCH),
        ("law", MISMATCH),
        ("temperature", MISMATCH),
        ("old_process", MISMATCH),
        ("restarted_inside", MISMATCH),
        ("prime_short", MISMATCH),
        ("prime_differs", MISMATCH),
        ("q_swapped", MISMATCH),
        ("q_gone_later", MISMATCH),
        ("depth_moves", MISMATCH),
        ("target_only", ["reject/q_law"]),
        ("damaged", ["reject/corruption"]),
        ("watchdog", ["reject/lifecycle"]),
        ("bad_target_row", ["reject/target_law", "reject/lifecycle"]),
        ("silent_loss", ["reject/lifecycle", "reject/lost_request"]),
        ("wrong_request", ["reject/lifecycle", "reject/lost_request"]),
        ("after_stop", ["reject/stop"]),
        ("epoch_lost", ["reject/recovery"]),
        ("survivor", ["reject/lifecycle"]),
        ("stop_breaks", ["reject/lifecycle"]),
        ("engine_fault", ["reject/lifecycle"]),
        ("start_fails", ["reject/lifecycle"]),
        ("greedy", ["reject/greedy_identity"]),
    ],
)
def test_every_lie_is_caught_by_its_reason_and_leaves_nothing_running(
    lie: str, wanted: list[str], tmp_path: Path
) -> None:
    window = rehearse_scripted(PLAN, tmp_path, lie)
    assert window.result.decision.verdict is Verdict.REJECT
    assert [name for name in fired(window) if name.startswith("reject/")] == wanted
    assert_ended_whole(window)


def assert_ended_whole(window: Rehearsal) -> None:
    """24 dispositions, one restore receipt, no ranks, no start after the restore."""
    records = window.result.sealed.records
    assert sorted(run.run_id for run in records.runs) == sorted(PLAN.run_ids())
    assert records.restore is not None
    assert records.restore.outcome == "RESTORED"
    assert window.engine.running == []
    assert window.engine.closed >= 1
    assert (window.result.folder / "report.html").is_file()


def test_an_attestation_that_does_not_match_stops_before_the_first_measured_run(tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, "weights", lie_start=0)
    assert window.engine.sent == []
    assert {run.disposition for run in window.result.sealed.records.runs} == {Disposition.NOT_ADMITTED}


@pytest.mark.parametrize("lie", ["interrupt_start", "interrupt_prime", "interrupt_run"])
def test_ctrl_c_anywhere_ends_restored_with_a_readable_bundle(lie: str, tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, lie)
    assert window.result.exit_code is ExitCode.INTERRUPTED
    assert window.result.decision.verdict is Verdict.INCONCLUSIVE
    assert window.result.sealed.records.stop_reason == "interrupted"
    assert_ended_whole(window)


def test_ctrl_c_in_a_run_keeps_the_rounds_received_so_far(tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, "interrupt_run")
    cut = next(run for run in window.result.sealed.records.runs if run.run_id == "B1/f1-short")
    assert (cut.disposition, cut.complete_rounds) == (Disposition.CANCELED_CLIENT, 3)


def test_a_fault_of_the_driver_itself_is_journaled_and_ends_restored(tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, "driver_bug")
    assert "evidence" in fired(window)
    assert any("ZeroDivisionError" in finding.what for finding in window.result.decision.findings)
    assert_ended_whole(window)


def test_a_block_over_its_limit_is_truncated_and_keeps_its_partial_records(tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, "slow_start", lie_start=1)
    records = window.result.sealed.records
    assert records.stop_reason == "block_over_limit"
    assert [run.disposition for run in records.runs][6:] == [Disposition.NOT_ADMITTED] * 18
    assert [receipt.outcome for receipt in records.blocks] == ["COMPLETE", "TRUNCATED"]
    assert window.result.decision.verdict is Verdict.INCONCLUSIVE
    assert_ended_whole(window)


def test_an_engine_that_does_not_open_starts_no_block_and_still_restores(tmp_path: Path) -> None:
    window = rehearse_scripted(PLAN, tmp_path, "no_session")
    assert window.engine.starts == 0
    assert window.result.decision.verdict is Verdict.INCONCLUSIVE
    assert_ended_whole(window)


def test_a_process_that_stays_alive_is_not_restored_and_the_window_escalates(tmp_path: Path) -> None:
    clock = VirtualClock()
    orphans: list[subprocess.Popen[bytes]] = []

    class Orphaning(ScriptedEngine):
        def open(self) -> None:
            super().open()
            orphans.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

    engine = Orphaning(PLAN, clock, "weights", 0)
    try:
        result = run_window(inputs(), engine, tmp_path, (), lambda event: None, clock, clock.sleep)
    finally:
        for orphan in orphans:
            orphan.kill()
            orphan.wait()
    restore = result.sealed.records.restore
    assert restore is not None
    assert restore.outcome == "ESCALATED"
    assert str(orphans[0].pid) in restore.reason
    assert result.exit_code is ExitCode.RESTORE_ESCALATED
    assert restore.ended_ns - restore.started_ns >= PLAN.stages.restore_ns


def test_a_file_that_changed_meanwhile_is_not_restored(tmp_path: Path) -> None:
    clock = VirtualClock()
    held = tmp_path / "weights.bin"
    held.write_bytes(b"weights")

    class Writing(ScriptedEngine):
        def start(self, arm: Arm) -> ScriptedBed:
            held.write_bytes(b"other weights")
            return super().start(arm)

    result = run_window(
        inputs(), Writing(PLAN, clock), tmp_path / "out", (held,), lambda event: None, clock, clock.sleep
    )
    assert result.exit_code is ExitCode.RESTORE_ESCALATED
    assert "weights.bin" in result.sealed.records.restore.reason  # type: ignore[union-attr]


def test_a_file_that_cannot_be_read_refuses_the_drain(tmp_path: Path) -> None:
    window = rehearse_scripted_with_files(tmp_path, tmp_path / "absent")
    assert window.engine.opened == 0
    assert "cannot be read" in window.result.sealed.records.stop_reason


def rehearse_scripted_with_files(folder: Path, held: Path) -> Rehearsal:
    """Run a window that holds one file equal."""
    return rehearse_scripted(PLAN, folder / "out", files=(held,))


def test_a_view_that_breaks_does_not_break_the_window(tmp_path: Path) -> None:
    def broken(event: ProgressEvent) -> None:
        raise OSError("the terminal is gone")

    clock = VirtualClock()
    result = run_window(inputs(), ScriptedEngine(PLAN, clock), tmp_path, (), broken, clock, clock.sleep)
    assert result.decision.verdict is Verdict.CANDIDATE


def inputs() -> RehearsalInputs:
    """Return prompts for the test registration."""
    prompts = {row.source_id: (SECRET_TOKEN,) * row.occupied_tokens for row in PLAN.sources}
    prompts["warm-up"] = (SECRET_TOKEN,) * PLAN.warm_up.occupied_tokens
    return RehearsalInputs(PLAN, prompts, MATRICES)


def test_one_registration_has_one_window(tmp_path: Path) -> None:
    Bundle.create(tmp_path, PLAN, MATRICES)
    with pytest.raises(WindowError, match="exists already") as caught:
        Bundle.create(tmp_path, PLAN, MATRICES)
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    engine = ScriptedEngine(PLAN, VirtualClock())
    with pytest.raises(WindowError, match="cannot be written") as caught:
        run_window(inputs(), engine, blocked / "out", (), lambda event: None)
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE
    assert engine.opened == 0
    assert list(tmp_path.iterdir()) == [blocked]


def test_a_full_disk_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("window.bundle.NEEDED_BYTES", 1 << 62)
    engine = ScriptedEngine(PLAN, VirtualClock())
    with pytest.raises(WindowError, match="MiB free"):
        run_window(inputs(), engine, tmp_path, (), lambda event: None)
    assert (engine.opened, list(tmp_path.iterdir())) == (0, [])


def tamper_rounds(data: bytes) -> bytes:
    """Return a round file with one emitted count changed."""
    return data.replace(b'"emitted":10', b'"emitted":11', 1)


def drop_line(data: bytes) -> bytes:
    """Return a file without its last line."""
    return b"\n".join(data.split(b"\n")[:-2]) + b"\n"


@pytest.mark.parametrize(("name", "edit"), [("rounds-A1.jsonl", tamper_rounds), ("rounds-A2.jsonl", drop_line)])
def test_rounds_that_are_not_the_sealed_ones_fail_the_evidence(
    name: str, edit: Callable[[bytes], bytes], honest: Rehearsal, tmp_path: Path
) -> None:
    folder = copy_of(honest, tmp_path)
    (folder / name).write_bytes(edit((folder / name).read_bytes()))
    sealed = read_window(folder)
    decision = decide(sealed.registration, sealed.records, sealed.matrices)
    assert decision.evidence_failed
    assert decision.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("registration.json", lambda data: data.replace(b"a test window", b"b test window")),
        ("journal.jsonl", lambda data: data.replace(b'"delivered_tokens":', b'"delivered_tokens":1', 1)),
        ("indices-sources.i64", lambda data: b"\x01" + data[1:]),
    ],
)
def test_a_changed_byte_elsewhere_makes_the_bundle_unreadable(
    name: str, edit: Callable[[bytes], bytes], honest: Rehearsal, tmp_path: Path
) -> None:
    folder = copy_of(honest, tmp_path)
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(edit(before))
    assert (folder / name).read_bytes() != before
    with pytest.raises(WindowError) as caught:
        read_window(folder)
    assert caught.value.exit_code is ExitCode.EVIDENCE_FAILED


def copy_of(window: Rehearsal, folder: Path) -> Path:
    """Return a copy of a bundle."""
    copied = folder / "copy"
    copied.mkdir()
    for path in window.result.folder.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    return copied


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_closed_place_waits_for_the_next_open_one(second: signal.Signals) -> None:
    gate = InterruptGate()
    with gate.held():
        signal.raise_signal(signal.SIGINT)
        assert gate.pending
        with pytest.raises(KeyboardInterrupt), gate.interruptible():
            raise AssertionError("nothing may run once a signal waits")
        with pytest.raises(KeyboardInterrupt), gate.interruptible():
            signal.raise_signal(second)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
