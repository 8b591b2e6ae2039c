"""The attested temperature and top_p are measured on the law's own code, and another law gives other answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ranks.target_probe as probe
from ranks.target_probe import measured_target_policy
from selector.target_masses import target_probabilities
from selector.target_statistics import RowNormaliser


def test_the_shipped_law_measures_as_temperature_one_and_top_p_one() -> None:
    assert measured_target_policy() == ("1", "1")


Probabilities = list[NDArray[np.float64] | None]


def planted(change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Any:
    def law(shard_logits: NDArray[np.float32], normaliser: RowNormaliser) -> Probabilities:
        return [None if row is None else change(row) for row in target_probabilities(shard_logits, normaliser)]

    return law


@pytest.mark.parametrize("temperature", [0.7, 1.01, 2.0])
def test_a_law_of_another_temperature_is_seen(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    monkeypatch.setattr(probe, "target_probabilities", planted(lambda row: row ** (1 / temperature)))
    assert measured_target_policy()[0] == f"{temperature:g}"


def test_a_law_that_cuts_its_tail_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "target_probabilities", planted(lambda row: np.where(row > 1e-8, row, 0.0)))
    assert measured_target_policy()[1] != "1"


def test_an_invalid_row_is_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "target_probabilities", lambda shard_logits, normaliser: [None])
    assert measured_target_policy() == ("invalid", "invalid")
