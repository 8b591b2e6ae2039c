"""What a bed refuses before any rank is started: one sentence, and the exit code that says whose turn it is."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from ranks.bed import start_bed
from ranks.errors import BAD_DATA, UNAVAILABLE, USAGE, UserError
from ranks.records import DraftMode
from ranks.weights import EMBEDDED_WEIGHTS


class NoCluster:
    """A session in which nothing may be placed."""

    host = "127.0.0.1"

    def watch_children(self) -> None:
        raise AssertionError("a refused bed started something")


def refused(profile: str = "cpu", weights: Path = EMBEDDED_WEIGHTS, depth: int = 5, port: int = 0) -> UserError:
    session: Any = NoCluster()
    with pytest.raises(UserError) as caught:
        start_bed(profile, weights, DraftMode.SAMPLED, depth, session=session, control_port=port)
    assert "\n" not in caught.value.sentence
    return caught.value


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(port=port)
    assert error.exit_code == UNAVAILABLE
    assert f"control port {port} on 127.0.0.1 cannot be used" in error.sentence
    assert "choose a free port" in error.sentence


@pytest.mark.parametrize("depth", [0, 9, -1])
def test_a_depth_outside_one_to_eight_is_named(depth: int) -> None:
    error = refused(depth=depth)
    assert (error.exit_code, error.sentence) == (USAGE, f"depth is {depth}, must be from 1 to 8")


def test_an_unknown_profile_is_named_with_those_that_exist() -> None:
    error = refused(profile="nope")
    assert error.exit_code == USAGE
    assert "choose one of cpu, one-gpu, two-gpu, two-node" in error.sentence


def test_a_truncated_weights_file_is_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(EMBEDDED_WEIGHTS.read_bytes()[:100_000])
    error = refused(weights=cut)
    assert error.exit_code == BAD_DATA
    assert str(cut) in error.sentence
