"""How two ranks are placed on hardware: cpu, one-gpu, two-gpu, two-node, and why a machine cannot.

Frozen data and one pure judgement. Must never look at the machine itself: facts come in
as `MachineFacts`, gathered by `ranks.doctor`.
Source: DESIGN section 2 (profiles) and 4 (placement, `one-gpu`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ranks.errors import UserError

__all__ = ["PROFILES", "ClusterFacts", "CudaDevice", "MachineFacts", "Profile", "profile_named", "why_not"]

MINIMUM_PYTHON: Final = (3, 11)


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to place two ranks, as resources that Ray understands.

    `cpus_per_rank` and `gpus_per_rank` are one bundle of the placement group, two bundles in all.
    `node_count` machines carry them. `cpu_cores`, `memory_mib` and `gpu_memory_mib` are the least a node
    must have free; `gpu_memory_mib` counts for one device.
    """

    name: str
    summary: str
    device: Literal["cpu", "cuda"]
    backend: Literal["socket", "gloo", "nccl"]
    placement_strategy: Literal["STRICT_PACK", "STRICT_SPREAD"]
    node_count: int
    cpus_per_rank: float
    gpus_per_rank: float
    torch_threads: int
    cpu_cores: int
    memory_mib: int
    gpu_memory_mib: int

    @property
    def gpus_per_node(self) -> int:
        """Whole CUDA devices that one node must show."""
        ranks_per_node = 2 // self.node_count
        return int(-(-self.gpus_per_rank * ranks_per_node // 1))


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One CUDA device as torch sees it; memory in MiB."""

    name: str
    memory_mib: int
    capability: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A Ray cluster that was asked for: whole GPUs of each living node, or the reason why it did not answer."""

    address: str
    gpus_by_node: tuple[int, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is installed and what the machine has; None or "" means absent. Memory in MiB.

    `cluster` is None when no Ray cluster was named (environment variable RAY_ADDRESS).
    """

    python: tuple[int, int, int]
    torch: str | None
    ray: str | None
    triton: str | None
    crc32c_implementation: str | None
    gloo: bool
    nccl: bool
    cuda_devices: tuple[CudaDevice, ...]
    cuda_problem: str
    cpu_cores: int
    memory_mib: int
    shared_memory_mib: int | None
    cluster: ClusterFacts | None


PROFILES: Final[tuple[Profile, ...]] = (
    Profile(
        name="cpu",
        summary="both ranks on the CPU of this machine, a socket between them",
        device="cpu",
        backend="socket",
        placement_strategy="STRICT_PACK",
        node_count=1,
        cpus_per_rank=1.0,
        gpus_per_rank=0.0,
        torch_threads=1,
        cpu_cores=2,
        memory_mib=2048,
        gpu_memory_mib=0,
    ),
    # NCCL refuses two ranks on one device, so this profile orders its exchange through the host.
    Profile(
        name="one-gpu",
        summary="both ranks share one GPU, half each, gloo through the host",
        device="cuda",
        backend="gloo",
        placement_strategy="STRICT_PACK",
        node_count=1,
        cpus_per_rank=1.0,
        gpus_per_rank=0.5,
        torch_threads=1,
        cpu_cores=2,
        memory_mib=4096,
        gpu_memory_mib=4096,
    ),
    Profile(
        name="two-gpu",
        summary="a GPU for each rank on one machine, NCCL",
        device="cuda",
        backend="nccl",
        placement_strategy="STRICT_PACK",
        node_count=1,
        cpus_per_rank=1.0,
        gpus_per_rank=1.0,
        torch_threads=1,
        cpu_cores=2,
        memory_mib=4096,
        gpu_memory_mib=4096,
    ),
    Profile(
        name="two-node",
        summary="a GPU for each rank on two machines of one Ray cluster, NCCL",
        device="cuda",
        backend="nccl",
        placement_strategy="STRICT_SPREAD",
        node_count=2,
        cpus_per_rank=1.0,
        gpus_per_rank=1.0,
        torch_threads=1,
        cpu_cores=2,
        memory_mib=4096,
        gpu_memory_mib=4096,
    ),
)


def profile_named(name: str) -> Profile:
    """Return the profile of that name. Raises UserError (usage) with the names that exist."""
    for profile in PROFILES:
        if profile.name == name:
            return profile
    raise UserError(f"unknown profile {name!r}: choose one of {', '.join(profile.name for profile in PROFILES)}.")


def why_not(profile: Profile, machine: MachineFacts) -> str | None:
    """Return None when the profile can run on that machine, else the first reason why not, one sentence."""
    return (
        _why_software_fails(profile, machine)
        or _why_host_fails(profile, machine)
        or (_why_cluster_fails(profile, machine) if profile.node_count > 1 else _why_devices_fail(profile, machine))
    )


def _why_software_fails(profile: Profile, machine: MachineFacts) -> str | None:
    if machine.python[:2] < MINIMUM_PYTHON:
        return f"Python 3.11 or newer is needed, this is {machine.python[0]}.{machine.python[1]}."
    if machine.torch is None:
        return "torch is not installed."
    if machine.ray is None:
        return "ray is not installed."
    if machine.crc32c_implementation != "c":
        found = machine.crc32c_implementation or "nothing"
        return f"google-crc32c must be its C build, found {found}: install the wheel for this platform."
    if profile.backend == "gloo" and not machine.gloo:
        return "this torch was built without gloo."
    return None


def _why_host_fails(profile: Profile, machine: MachineFacts) -> str | None:
    if machine.cpu_cores < profile.cpu_cores:
        return f"{profile.cpu_cores} CPU cores are needed, this process may use {machine.cpu_cores}."
    if machine.memory_mib < profile.memory_mib:
        return f"{profile.memory_mib} MiB of free memory are needed, {machine.memory_mib} MiB are free."
    return None


def _why_devices_fail(profile: Profile, machine: MachineFacts) -> str | None:
    wanted = profile.gpus_per_node
    if len(machine.cuda_devices) < wanted:
        reason = f" ({machine.cuda_problem})" if machine.cuda_problem else ""
        noun = "CUDA device is" if wanted == 1 else "CUDA devices are"
        return f"{wanted} {noun} needed, torch sees {len(machine.cuda_devices)}{reason}."
    if profile.backend == "nccl" and not machine.nccl:
        return "this torch was built without NCCL."
    for index, device in enumerate(machine.cuda_devices[:wanted]):
        if device.memory_mib < profile.gpu_memory_mib:
            return f"CUDA device {index} has {device.memory_mib} MiB, {profile.gpu_memory_mib} MiB are needed."
    return None


def _why_cluster_fails(profile: Profile, machine: MachineFacts) -> str | None:
    cluster = machine.cluster
    if cluster is None:
        return "no Ray cluster is named: start one with `ray up cluster.yaml` and set RAY_ADDRESS to its head."
    if cluster.problem:
        return f"the Ray cluster at {cluster.address} gave no answer: {cluster.problem}."
    usable = sum(gpus >= profile.gpus_per_node for gpus in cluster.gpus_by_node)
    if usable < profile.node_count:
        return (
            f"{profile.node_count} Ray nodes with a GPU are needed, the cluster at {cluster.address} has {usable} "
            f"such of {len(cluster.gpus_by_node)}."
        )
    return None
