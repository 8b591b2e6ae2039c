"""Link faults as data: they strike the frame they name, on the rank they name, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.link_shim import make_link_filter
from faults.schedule import FrameFault, ScheduleError, dump_schedule, parse_schedule
from ranks.frames import BrokenFrame, Frame, FrameDecoder, Header, Kind, encode_frame
from ranks.records import DraftMode
from ranks.verdict import DepthReason
from tests.ranks.linked_cores import LinkedCores
from tests.ranks.toy_model import greedy_tokens, request


def fault(**changes: object) -> FrameFault:
    fields: dict[str, object] = {
        "id": "f1",
        "source": 1,
        "kind": "candidates",
        "round_number": 3,
        "depth": 2,
        "slot": None,
        "op": "flip",
        "place": "body",
        "byte": 0,
        "bit": 4,
    }
    return FrameFault.model_validate(fields | changes)


def header(kind: Kind = Kind.CANDIDATES, round_number: int = 3, depth: int = 2) -> Header:
    return Header(kind, 1, 5, 6, 1, 0, 0, round_number, 1, depth, True, 9, 10, 11)


def test_a_schedule_reads_back_as_it_was_written() -> None:
    faults = (fault(), fault(id="f2", kind="vote", depth=None, op="drop"))
    assert parse_schedule(dump_schedule(faults)) == faults


@pytest.mark.parametrize("text", ["", "{}", '[{"id":"x"}]', dump_schedule((fault(),)).replace("flip", "burn")])
def test_what_is_no_schedule_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ScheduleError, match="fault schedule is wrong at"):
        parse_schedule(text)


def test_a_fault_strikes_only_its_rank_round_depth_and_kind() -> None:
    shim = make_link_filter(1, dump_schedule((fault(op="drop"),)))
    data = b"frame"
    assert shim(header(), data) is None
    assert shim(header(round_number=4), data) == data
    assert shim(header(depth=1), data) == data
    assert shim(header(kind=Kind.VOTE), data) == data
    assert make_link_filter(0, dump_schedule((fault(op="drop"),)))(header(), data) == data


@given(byte=st.integers(0, 400), bit=st.integers(0, 7), place=st.sampled_from(["header", "body"]))
def test_every_flip_is_felt_by_the_decoder(byte: int, bit: int, place: str) -> None:
    shim = make_link_filter(1, dump_schedule((fault(byte=byte, bit=bit, place=place),)))
    sent = encode_frame(header(), bytes(range(64)))
    struck = shim(header(), sent)
    assert struck is not None
    assert struck != sent
    answers = FrameDecoder().feed(struck + sent)
    assert sum(isinstance(answer, Frame) for answer in answers) == 1
    assert any(isinstance(answer, BrokenFrame) for answer in answers)


@pytest.mark.parametrize("mode", [DraftMode.GREEDY, DraftMode.SAMPLED])
def test_the_same_list_makes_linked_cores_go_target_only_in_that_round(mode: DraftMode) -> None:
    faults = dump_schedule((fault(),))
    shims = [make_link_filter(rank, faults) for rank in (0, 1)]
    bed = LinkedCores(draft_mode=mode, wire=lambda rank, frame_header, data: shims[rank](frame_header, data))
    spec = request("a")
    bed.run([spec])
    verdicts = {entry.plan.round_number: entry.verdict for entry in bed.rounds}
    assert (verdicts[3].usable_depth, verdicts[3].reason) == (0, DepthReason.FRAME_DAMAGED)
    assert all(verdict.usable_depth == 3 for number, verdict in verdicts.items() if number != 3)
    assert tuple(bed.released["a"]) == greedy_tokens(spec.prompt_token_ids, 12)
