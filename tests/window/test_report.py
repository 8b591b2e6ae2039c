"""The report and the terminal views: one file, fixed bytes, nothing from outside, and what the decision says."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from tests.window.registrations import registration
from tests.window.scripted_engine import Rehearsal, rehearse_scripted
from window.live_view import LiveView, PlainLines, clock_text
from window.progress import ProgressEvent
from window.report import render_report
from window.rule_result import RuleOutcome
from window.summary import result_data, summary_data, summary_lines, summary_table


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rehearsal]:
    """A whole window, a rejected one and one that was cut in its first block."""
    plan = registration(minimum_rounds=28)
    return {
        name: rehearse_scripted(plan, tmp_path_factory.mktemp(name), lie, start)
        for name, lie, start in (("whole", "", 0), ("rejected", "damaged", 1), ("cut", "start_fails", 0))
    }


def page_of(window: Rehearsal) -> str:
    """Return the report of a window as text."""
    return window.result.report_path.read_text(encoding="utf-8")


NAMES = ["whole", "rejected", "cut"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Balanced(HTMLParser):
    """Follows open elements and collects ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.mark.parametrize("name", NAMES)
def test_equal_input_gives_equal_bytes(name: str, windows: dict[str, Rehearsal]) -> None:
    result = windows[name].result
    assert render_report(result.sealed, result.decision) == result.report_path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed_and_no_id_stands_twice(name: str, windows: dict[str, Rehearsal]) -> None:
    parser = Balanced()
    parser.feed(page_of(windows[name]))
    assert (parser.wrong, parser.open) == ([], [])
    assert len(parser.ids) == len(set(parser.ids))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_loads_nothing_and_runs_nothing(name: str, windows: dict[str, Rehearsal]) -> None:
    page = page_of(windows[name])
    assert "<script" not in page
    assert "@import" not in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


@pytest.mark.parametrize("name", NAMES)
def test_verdict_stamp_and_limits_stand_before_everything_else(name: str, windows: dict[str, Rehearsal]) -> None:
    page, decision = page_of(windows[name]), windows[name].result.decision
    places = [
        page.index(text) for text in (f">{decision.verdict.value}<", "never promotable", "not independent", "<h2>")
    ]
    assert places == sorted(places)


def test_every_rule_and_all_24_dispositions_are_on_the_page(windows: dict[str, Rehearsal]) -> None:
    page = page_of(windows["whole"])
    for rule in windows["whole"].result.decision.rules:
        assert f">{rule.rule}<" in page
    assert page.count(">CENSORED_DEADLINE<") == 24
    assert page.count("<svg") == 6
    assert page.count("<svg") == page.count('role="img"')


def test_a_cut_window_says_what_is_missing(windows: dict[str, Rehearsal]) -> None:
    page = page_of(windows["cut"])
    assert page.count(">NOT_ADMITTED<") == 24
    assert "The smoke was not reached." in page
    assert "the ranks did not come up" in page


@pytest.mark.parametrize("name", NAMES)
def test_no_page_claims_what_the_design_does_not_carry(name: str, windows: dict[str, Rehearsal]) -> None:
    page = page_of(windows[name]).lower()
    for word in ("randomised", "randomized", "p-value", "significant"):
        assert word not in page


def test_no_placeholder_colour_is_left_in_a_picture(windows: dict[str, Rehearsal]) -> None:
    page = page_of(windows["whole"])
    assert not re.findall(r"#0[1-7]0[1-7]0[1-7]", page)
    assert "#000000" not in page
    assert "prefers-color-scheme: dark" in page


def printed(renderable: object, width: int = 100) -> str:
    """Return what a terminal of that width would show."""
    shown = io.StringIO()
    Console(width=width, file=shown).print(renderable)
    return shown.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_the_table_the_lines_and_the_data_say_the_same_verdict(name: str, windows: dict[str, Rehearsal]) -> None:
    result = windows[name].result
    word = result.decision.verdict.value
    assert word in printed(summary_table(result.sealed, result.decision))
    assert "…" not in printed(summary_table(result.sealed, result.decision), width=80), "cut at 80 columns"
    assert summary_lines(result.sealed, result.decision)[0].startswith(word)
    data = summary_data(result.sealed, result.decision)
    assert (data["verdict"], data["promotable"], len(data["dispositions"])) == (word, False, 24)
    told = result_data(result)
    assert (told["exit_code"], told["report"]) == (int(result.exit_code), str(result.report_path))


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_that_did_not_hold_has_its_line_with_operand_and_threshold(
    name: str, windows: dict[str, Rehearsal]
) -> None:
    result = windows[name].result
    lines = summary_lines(result.sealed, result.decision)
    for rule in result.decision.rules:
        if rule.outcome in (RuleOutcome.FIRED, RuleOutcome.UNKNOWN):
            (line,) = [line for line in lines if line.startswith(f"{rule.outcome.value} {rule.rule}:")]
            assert not rule.operands or (rule.threshold in line and rule.operands[0].value in line)


def event(**changes: object) -> ProgressEvent:
    """Return a progress event of a run."""
    fields: dict[str, object] = {
        "stage": "decode",
        "block": "B1",
        "run_id": "B1/f1-short",
        "run_number": 7,
        "run_count": 24,
        "rounds": 50,
        "tokens": 55,
        "elapsed_ns": 60 * 10**9,
        "budget_ns": 240 * 10**9,
        "stage_elapsed_ns": 2 * 10**9,
        "stage_budget_ns": 35 * 10**8,
        "outcome": "",
    }
    return ProgressEvent(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_live_view_shows_the_run_its_place_and_the_time_against_the_budget() -> None:
    view = LiveView()
    assert "registration" in printed(view.render())
    view.take(event())
    shown = printed(view.render())
    assert "B1/f1-short" in shown
    assert "1:00 of 4:00" in shown
    assert "7 of 24" in shown


def test_plain_lines_tell_each_stage_once_and_each_finished_run() -> None:
    lines = PlainLines()
    stage = event(run_id="", run_number=0)
    assert lines.line(stage) == "1:00  B1 decode (at most 3:00 left)"
    assert lines.line(stage) is None
    assert lines.line(event()) is None
    ended = lines.line(event(outcome="EOS"))
    assert ended == "1:00  run 7/24 B1/f1-short: EOS, 55 tokens in 50 rounds, 27.5 tokens/s"


def test_clock_text_counts_minutes_and_never_goes_below_zero() -> None:
    assert [clock_text(value) for value in (-5, 0, 61 * 10**9)] == ["0:00", "0:00", "1:01"]
