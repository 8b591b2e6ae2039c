"""Look at this machine: what is installed, what hardware there is, which profiles can run.

A shell around `ranks.profiles`. Must never start a rank or change the machine; a Ray
cluster is asked only when RAY_ADDRESS names one, from a short-lived process of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from ranks.profiles import PROFILES, ClusterFacts, CudaDevice, MachineFacts, why_not

__all__ = ["gather_machine_facts", "report_data", "report_lines"]

CLUSTER_ANSWER_SECONDS: Final = 30
MIB: Final = 1 << 20

# Runs in its own process: a Ray client that waits for a dead head cannot be interrupted from inside.
_CLUSTER_PROBE: Final = """
import json, logging, sys
import ray
ray.init(address=sys.argv[1], logging_level=logging.CRITICAL, log_to_driver=False)
print(json.dumps([int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]))
"""


def gather_machine_facts(environment: Mapping[str, str] | None = None) -> MachineFacts:
    """Return what this process can see of software and hardware; `environment` defaults to the process's own."""
    variables = os.environ if environment is None else environment
    devices, cuda_problem, gloo, nccl = _torch_facts()
    return MachineFacts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        torch=_installed_version("torch"),
        ray=_installed_version("ray"),
        triton=_installed_version("triton"),
        crc32c_implementation=_crc32c_implementation(),
        gloo=gloo,
        nccl=nccl,
        cuda_devices=devices,
        cuda_problem=cuda_problem,
        cpu_cores=_usable_cores(),
        memory_mib=_free_memory_mib(),
        shared_memory_mib=_shared_memory_mib(),
        cluster=_ask_cluster(variables["RAY_ADDRESS"]) if variables.get("RAY_ADDRESS") else None,
    )


def report_lines(machine: MachineFacts) -> tuple[str, ...]:
    """Return one line for each thing installed and for each profile, ready to print."""
    python = ".".join(str(part) for part in machine.python)
    shared = "absent" if machine.shared_memory_mib is None else f"{machine.shared_memory_mib} MiB free"
    devices = [
        f"  CUDA device {index}  {device.name}, {device.memory_mib} MiB, capability {device.capability}"
        for index, device in enumerate(machine.cuda_devices)
    ]
    cluster = machine.cluster
    profiles = []
    for profile in PROFILES:
        reason = why_not(profile, machine)
        verdict = f"can run: {profile.summary}" if reason is None else f"cannot run: {reason}"
        profiles.append(f"  {profile.name:<9} {verdict}")
    return (
        "Installed",
        f"  python         {python}",
        f"  torch          {machine.torch or 'not installed'}",
        f"  ray            {machine.ray or 'not installed'}",
        f"  triton         {machine.triton or 'not installed (only GPU kernels use it)'}",
        f"  google-crc32c  {machine.crc32c_implementation or 'not installed'} implementation",
        "Machine",
        f"  CPU cores      {machine.cpu_cores} usable",
        f"  memory         {machine.memory_mib} MiB free",
        f"  /dev/shm       {shared}",
        *(devices or [f"  CUDA devices   none{f' ({machine.cuda_problem})' if machine.cuda_problem else ''}"]),
        f"  Ray cluster    {'none named (RAY_ADDRESS is not set)' if cluster is None else _cluster_line(cluster)}",
        "Profiles",
        *profiles,
    )


def report_data(machine: MachineFacts) -> dict[str, Any]:
    """Return the same as plain data: the facts, and for each profile whether it can run and why not."""
    reasons = {profile.name: why_not(profile, machine) for profile in PROFILES}
    return {
        "machine": asdict(machine),
        "profiles": [{"name": name, "can_run": reason is None, "why_not": reason} for name, reason in reasons.items()],
    }


def _cluster_line(cluster: ClusterFacts) -> str:
    if cluster.problem:
        return f"{cluster.address}: {cluster.problem}"
    return f"{cluster.address}: {len(cluster.gpus_by_node)} nodes, GPUs {list(cluster.gpus_by_node)}"


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _crc32c_implementation() -> str | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    return str(google_crc32c.implementation)


def _torch_facts() -> tuple[tuple[CudaDevice, ...], str, bool, bool]:
    """Return CUDA devices, why there are none, and whether gloo and NCCL are built in."""
    try:
        import torch
        import torch.distributed as distributed
    except ImportError as error:
        return (), f"torch cannot be imported: {error}", False, False
    built = distributed.is_available()
    gloo = built and distributed.is_gloo_available()
    nccl = built and distributed.is_nccl_available()
    if torch.version.cuda is None:
        return (), "this torch is a CPU build", gloo, nccl
    try:
        count = torch.cuda.device_count()
        found = tuple(_cuda_device(torch.cuda.get_device_properties(index)) for index in range(count))
    except RuntimeError as error:
        return (), str(error).splitlines()[0], gloo, nccl
    return found, "" if found else "the driver shows none", gloo, nccl


def _cuda_device(properties: Any) -> CudaDevice:
    return CudaDevice(
        name=str(properties.name),
        memory_mib=int(properties.total_memory) // MIB,
        capability=f"{properties.major}.{properties.minor}",
    )


def _usable_cores() -> int:
    """Return cores that this process may use: its affinity, cut by a container's quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        return max(1, min(cores, int(quota[0]) // int(quota[1])))
    return cores


def _free_memory_mib() -> int:
    """Return memory that can still be taken: the machine's, cut by a container's limit."""
    free = int(psutil.virtual_memory().available)
    limit = _first_line(Path("/sys/fs/cgroup/memory.max"))
    used = _first_line(Path("/sys/fs/cgroup/memory.current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free // MIB


def _shared_memory_mib() -> int | None:
    try:
        return int(psutil.disk_usage("/dev/shm").free) // MIB
    except OSError:
        return None


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip().partition("\n")[0]
    except OSError:
        return ""  # no such limit on this machine


def _ask_cluster(address: str) -> ClusterFacts:
    command = [sys.executable, "-c", _CLUSTER_PROBE, address]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ClusterFacts(address, (), f"nothing within {CLUSTER_ANSWER_SECONDS} seconds")
    if answer.returncode != 0:
        complaint = answer.stderr.strip().splitlines()
        return ClusterFacts(address, (), complaint[-1] if complaint else f"exit code {answer.returncode}")
    return ClusterFacts(address, tuple(json.loads(answer.stdout.strip().splitlines()[-1])), "")
