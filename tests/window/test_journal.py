"""The journal: a chain that shows a changed, dropped or torn line, and one writer at a time."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from window.errors import WindowError
from window.exit_codes import ExitCode
from window.journal import FIRST_LINK, Journal, read_journal


def written(path: Path, count: int = 3) -> bytes:
    """Return the bytes of a journal with some records."""
    with Journal(path) as journal:
        for number in range(count):
            journal.append("note", {"number": number})
    return path.read_bytes()


def head_or_refusal(data: bytes) -> str:
    """Return a journal's head, or how it was refused."""
    try:
        return read_journal(data, "j").head
    except WindowError as error:
        return f"refused with {error.exit_code.name}"


def test_a_written_journal_reads_back_in_order_with_its_head(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        heads = [journal.append("note", {"number": number}) for number in range(3)]
        assert (journal.head, journal.count) == (heads[-1], 3)
    reading = read_journal((tmp_path / "j").read_bytes(), "j")
    assert [line.body["number"] for line in reading.lines] == [0, 1, 2]
    assert reading.lines[0].previous == FIRST_LINK
    assert [line.previous for line in reading.lines[1:]] == heads[:-1]
    assert (reading.head, reading.torn_bytes) == (heads[-1], 0)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_every_changed_byte_of_a_line_breaks_the_chain_or_the_head(tmp_path: Path, victim: int) -> None:
    data = written(tmp_path / "j")
    head = read_journal(data, "j").head
    start = sum(len(line) + 1 for line in data.split(b"\n")[:victim])
    end = start + len(data.split(b"\n")[victim])
    for place in range(start, end):
        changed = bytearray(data)
        changed[place] ^= 1
        assert head_or_refusal(bytes(changed)) != head


def test_a_line_taken_from_the_middle_breaks_the_chain(tmp_path: Path) -> None:
    lines = written(tmp_path / "j").split(b"\n")
    with pytest.raises(WindowError, match="chain is broken"):
        read_journal(b"\n".join([lines[0], *lines[2:]]), "j")


def test_two_lines_swapped_break_the_chain(tmp_path: Path) -> None:
    lines = written(tmp_path / "j").split(b"\n")
    with pytest.raises(WindowError, match="chain is broken"):
        read_journal(b"\n".join([lines[1], lines[0], *lines[2:]]), "j")


def test_a_torn_tail_is_reported_then_named_and_never_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = written(path)
    path.write_bytes(whole[:-20])
    assert read_journal(path.read_bytes(), "j").torn_bytes > 0
    with Journal(path) as journal:
        journal.append("note", {"number": 9})
    assert path.read_bytes().startswith(whole[:-20])
    reading = read_journal(path.read_bytes(), "j")
    assert [line.kind for line in reading.lines] == ["note", "note", "tear", "note"]


def test_a_fragment_that_no_record_names_is_refused(tmp_path: Path) -> None:
    lines = written(tmp_path / "j").split(b"\n")
    with pytest.raises(WindowError):
        read_journal(b"\n".join([lines[0], b'{"half', *lines[1:]]), "j")


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(WindowError, match="another writer") as caught:
        Journal(tmp_path / "j")
    assert caught.value.exit_code is ExitCode.UNAVAILABLE


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="cannot be written") as caught:
        Journal(tmp_path / "absent" / "j")
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE


def test_a_float_never_gets_into_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal, pytest.raises(ValueError, match="floating point"):
        journal.append("note", {"seconds": 0.5})


def test_a_disk_that_takes_no_more_is_one_sentence_and_closing_the_journal_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        journal.append("note", {"n": 1})
        written = path.stat().st_size
        # The kernel refuses every byte behind this size, half way through the record.
        resource.setrlimit(resource.RLIMIT_FSIZE, (written + 40, hard))
        try:
            with pytest.raises(WindowError, match="cannot be written") as caught:
                journal.append("note", {"n": 2})
            journal.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE
    reading = read_journal(path.read_bytes(), "journal")
    assert (len(reading.lines), reading.torn_bytes) == (1, 40)
