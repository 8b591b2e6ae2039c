"""The device benchmark compares before it times, in the interpreter too, and says why it has no numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from selector.kernels.device_bench import DEVICE_SHAPES, contenders, first_difference, measure_device
from selector.kernels.device_contenders import ContenderMissing, DeviceRound, PreparedRound, baselines, device_round
from selector.kernels.device_records import DeviceBench, DeviceMissing, DeviceTime
from selector.kernels.device_view import device_lines, device_table_lines
from selector.kernels.exact_contenders import EXACT, PLAIN, exact_contenders


@pytest.fixture(scope="module")
def small() -> DeviceRound:
    return device_round(batch=1, depth=1, vocabulary=200, seed=1, device="cpu")


@pytest.fixture(scope="module")
def prepared(small: DeviceRound) -> dict[str, PreparedRound]:
    return {each.name: each.prepare(small) for each in exact_contenders()}


@pytest.mark.parametrize("name", [EXACT, PLAIN])
def test_what_is_timed_gives_the_references_bits(name: str, prepared: dict[str, PreparedRound]) -> None:
    assert first_difference(name, prepared[name], prepared[name].run) is None


def test_outputs_that_nobody_wrote_are_a_difference(prepared: dict[str, PreparedRound]) -> None:
    found = first_difference(EXACT, prepared[EXACT], lambda: None)
    assert found == f"{EXACT}: depth 1, the exchanged words differ from the reference's"


def test_a_contender_with_other_logits_is_caught_by_the_gate(small: DeviceRound) -> None:
    other = device_round(small.batch, small.depth, small.vocabulary, 2, "cpu")
    planted = DeviceRound(
        small.batch, small.depth, small.vocabulary, small.whole, (other.halves[0], small.halves[1]), small.on_host
    )
    prepared = exact_contenders()[0].prepare(planted)
    found = first_difference(EXACT, prepared, prepared.run)
    assert found == f"{EXACT}: depth 1, the exchanged words differ from the reference's"


def test_a_baseline_that_is_not_installed_says_so(small: DeviceRound) -> None:
    for contender in baselines():
        if contender.name.startswith(("FlashInfer", "vLLM")):
            with pytest.raises(ContenderMissing, match="not installed"):
                contender.prepare(small)


def test_the_torch_baseline_runs_on_the_same_logits(small: DeviceRound) -> None:
    (contender,) = [each for each in baselines() if each.name.startswith("torch")]
    contender.prepare(small).run()


def test_every_shape_of_the_plan_is_timed_with_ours_first() -> None:
    assert len(DEVICE_SHAPES) == len(set(DEVICE_SHAPES)) == 24
    assert contenders()[0].name == EXACT


def test_plain_lines_hold_every_time_and_every_reason() -> None:
    time = DeviceTime(EXACT, 1, 5, 163_840, 2, "graph", "warm", 100, 21.0, 22.0, 23.5)
    found = DeviceBench("a card", 4000.0, None, (time,), (DeviceMissing("vLLM", "not installed"),))
    head, row, missing = device_table_lines(found)
    assert head.split()[:2] == ["round", "contender"]
    assert row.endswith("graph  warm  22.00  21.00  23.50")
    assert missing == "Not measured: vLLM: not installed."
    assert any("22.0 us a depth-5 round" in line for line in device_lines(found))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_there_is_a_reason_and_no_number() -> None:
    found = measure_device()
    assert found.times == ()
    assert [(each.contender, each.reason) for each in found.missing] == [("CUDA device", "no CUDA device")]


def test_the_device_part_needs_no_more_than_numpy_torch_and_triton(repository: Path) -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'numba', 'pydantic', 'rich', 'ray', 'scipy', 'typer'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import selector.kernels.device_bench\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
