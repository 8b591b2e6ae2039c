"""What doctor reads off this machine, and how it says it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

from ranks.doctor import gather_machine_facts, report_data, report_lines
from ranks.profiles import PROFILES, ClusterFacts


def test_the_facts_of_this_machine_are_plausible() -> None:
    machine = gather_machine_facts(environment={})
    assert machine.torch is not None
    assert machine.ray is not None
    assert machine.crc32c_implementation == "c"
    assert 1 <= machine.cpu_cores <= (os.cpu_count() or 1)
    assert machine.memory_mib > 0
    assert machine.cluster is None


def test_every_fact_and_every_profile_has_its_line() -> None:
    machine = gather_machine_facts(environment={})
    lines = report_lines(machine)
    text = "\n".join(lines)
    for word in ("python", "torch", "ray", "triton", "google-crc32c", "CPU cores", "memory", "/dev/shm", "Ray cluster"):
        assert word in text
    for profile in PROFILES:
        assert sum(line.startswith(f"  {profile.name} ") for line in lines) == 1
    assert all("\n" not in line for line in lines)


def test_the_data_says_the_same_as_the_lines_and_is_json() -> None:
    machine = gather_machine_facts(environment={})
    data = json.loads(json.dumps(report_data(machine)))
    lines = "\n".join(report_lines(machine))
    for entry in data["profiles"]:
        assert (entry["why_not"] is None) == entry["can_run"]
        assert ("can run: " if entry["can_run"] else entry["why_not"]) in lines


def test_a_silent_cluster_is_shown_with_its_reason() -> None:
    cluster = ClusterFacts(address="192.0.2.10:6379", gpus_by_node=(), problem="nothing within 30 seconds")
    machine = replace(gather_machine_facts(environment={}), cluster=cluster)
    assert any("192.0.2.10:6379: nothing within 30 seconds" in line for line in report_lines(machine))


def test_a_cluster_address_that_nobody_serves_is_a_reason_and_no_crash() -> None:
    machine = gather_machine_facts(environment={"RAY_ADDRESS": "not-an-address"})
    assert machine.cluster is not None
    assert machine.cluster.problem
    assert machine.cluster.gpus_by_node == ()
