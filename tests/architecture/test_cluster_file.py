"""cluster.yaml is a file that this version of Ray's cluster launcher accepts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config


@pytest.fixture
def cluster(repository: Path) -> dict[str, Any]:
    loaded = yaml.safe_load((repository / "cluster.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def launcher_schema() -> Any:
    return json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))


def test_the_file_keeps_the_launchers_own_schema(cluster: dict[str, Any]) -> None:
    jsonschema.validate(cluster, launcher_schema())


def test_a_key_of_our_own_would_be_refused(cluster: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "profile": "two-node"}, launcher_schema())


def test_the_launcher_prepares_one_worker_beside_the_head(cluster: dict[str, Any]) -> None:
    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    assert prepared["max_workers"] == 1


def test_the_launcher_accepts_one_machine_without_workers(cluster: dict[str, Any]) -> None:
    cluster["provider"]["worker_ips"] = []
    prepared = prepare_config(cluster)
    validate_config(prepared)
    assert prepared["max_workers"] == 0


def test_both_machines_get_the_pinned_installation_and_no_usage_report(cluster: dict[str, Any]) -> None:
    assert any("make install" in command for command in cluster["setup_commands"])
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert any("RAY_USAGE_STATS_ENABLED=0" in command and "ray start" in command for command in cluster[key])
