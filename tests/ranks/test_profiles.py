"""Which profile can run on which machine, and the one sentence that says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks.errors import USAGE, UserError
from ranks.profiles import PROFILES, ClusterFacts, CudaDevice, MachineFacts, profile_named, why_not

GPU = CudaDevice(name="a GPU", memory_mib=80_000, capability="9.0")

EVERYTHING = MachineFacts(
    python=(3, 11, 7),
    torch="2.13.0",
    ray="2.60.0",
    triton="3.7.1",
    crc32c_implementation="c",
    gloo=True,
    nccl=True,
    cuda_devices=(GPU, GPU),
    cuda_problem="",
    cpu_cores=16,
    memory_mib=64_000,
    shared_memory_mib=8_000,
    cluster=ClusterFacts(address="head:6379", gpus_by_node=(1, 1), problem=""),
)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_machine_that_has_everything_runs_every_profile(profile: object) -> None:
    assert why_not(profile_named(getattr(profile, "name", "")), EVERYTHING) is None


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("cpu", {"python": (3, 10, 12)}, "Python 3.11 or newer"),
        ("cpu", {"torch": None}, "torch is not installed"),
        ("cpu", {"ray": None}, "ray is not installed"),
        ("cpu", {"crc32c_implementation": "python"}, "must be its C build, found python"),
        ("cpu", {"crc32c_implementation": None}, "must be its C build, found nothing"),
        ("one-gpu", {"gloo": False}, "without gloo"),
        ("cpu", {"cpu_cores": 1}, "2 CPU cores are needed, this process may use 1"),
        ("cpu", {"memory_mib": 100}, "100 MiB are free"),
        ("one-gpu", {"cuda_devices": (), "cuda_problem": "the driver shows none"}, "sees 0 (the driver shows none)"),
        ("one-gpu", {"cuda_devices": (replace(GPU, memory_mib=1_000),)}, "CUDA device 0 has 1000 MiB"),
        ("two-gpu", {"cuda_devices": (GPU,)}, "2 CUDA devices are needed, torch sees 1"),
        ("two-gpu", {"cuda_devices": (GPU, replace(GPU, memory_mib=1_000))}, "CUDA device 1 has 1000 MiB"),
        ("two-gpu", {"nccl": False}, "without NCCL"),
        ("two-node", {"cluster": None}, "no Ray cluster is named"),
        ("two-node", {"cluster": ClusterFacts("head:6379", (), "refused")}, "gave no answer: refused"),
        ("two-node", {"cluster": ClusterFacts("head:6379", (1, 0), "")}, "has 1 such of 2"),
        ("two-node", {"cluster": ClusterFacts("head:6379", (8,), "")}, "has 1 such of 1"),
    ],
)
def test_what_is_missing_is_named_in_one_sentence(name: str, changes: dict[str, object], part: str) -> None:
    reason = why_not(profile_named(name), replace(EVERYTHING, **changes))  # type: ignore[arg-type]
    assert reason is not None
    assert part in reason
    assert reason.endswith(".")
    assert "\n" not in reason


def test_profiles_that_do_not_need_the_missing_thing_still_run() -> None:
    without_gpu = replace(EVERYTHING, cuda_devices=(), nccl=False, cluster=None)
    assert [profile.name for profile in PROFILES if why_not(profile, without_gpu) is None] == ["cpu"]


def test_two_ranks_share_one_gpu_without_nccl() -> None:
    profile = profile_named("one-gpu")
    assert profile.backend == "gloo"
    assert 2 * profile.gpus_per_rank <= 1
    assert profile.gpus_per_node == 1


@pytest.mark.parametrize(("name", "gpus"), [("cpu", 0), ("one-gpu", 1), ("two-gpu", 2), ("two-node", 1)])
def test_a_node_needs_as_many_gpus_as_its_ranks_fill(name: str, gpus: int) -> None:
    assert profile_named(name).gpus_per_node == gpus


@given(st.text().filter(lambda name: name not in {profile.name for profile in PROFILES}))
def test_an_unknown_profile_is_a_usage_error_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UserError, match="cpu, one-gpu, two-gpu, two-node") as caught:
        profile_named(name)
    assert caught.value.exit_code == USAGE
