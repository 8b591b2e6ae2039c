"""What is really sent to the ranks: the registered requests, the same in every block and in both arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ranks.records import RequestResult, RequestSpec
from tests.window.registrations import registration
from tests.window.scripted_engine import ScriptedBed, rehearse_scripted

PLAN = registration(minimum_rounds=28)


def test_both_arms_get_the_same_smoke_requests_under_the_registered_smoke_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[RequestSpec] = []
    honest = ScriptedBed.run

    def listening(bed: ScriptedBed, specs: Sequence[RequestSpec], *rest: Any) -> list[RequestResult]:
        sent.extend(specs)
        return honest(bed, specs, *rest)

    monkeypatch.setattr(ScriptedBed, "run", listening)
    rehearse_scripted(PLAN, tmp_path / "out")
    smoke = [replace(spec, time_budget_ns=None) for spec in sent if spec.temperature == 0]
    count = len(PLAN.smoke.source_ids)
    assert len(smoke) == 2 * count
    assert smoke[:count] == smoke[count:]
    assert {spec.seed for spec in smoke} == {PLAN.smoke.seed}
    measured = [replace(spec, time_budget_ns=None) for spec in sent if spec.request_id in PLAN.order]
    measured = [spec for spec in measured if spec.temperature == 1]
    assert len(measured) == 24
    for block in range(4):
        assert measured[6 * block : 6 * block + 6] == measured[:6], "a block was sent other requests"
    assert [spec.seed for spec in measured[:6]] == [PLAN.source(name).seed for name in PLAN.order]
