"""The environment of a run: the machine, versions, and variables that change a result.

Accelerators are found by `launch` and passed in.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

from dpbench import __version__, units
from dpbench.codec import content_hash, differing_fields
from dpbench.git import run_git

PACKAGES = ("torch", "numpy", "pandas", "scipy")
"""Packages whose versions are recorded, beside that of the dpbench that runs, which a checkout need
not have installed."""
COMPARABLE_ANYWAY: dict[str, Any] = {"git_commit": None, "hostname": "", "affinity": None}
"""Fields that may differ between comparable environments, each with the value that replaces it in
the first hash of an id."""
GIT_SECONDS = 5.0
RECORDED_VARIABLES = re.compile(
    "OMP_|MKL_|KMP_|NCCL_|GLOO_|TORCH_(NCCL|GLOO|DIST)|TORCHINDUCTOR_(?!CACHE_DIR)|"
    "CUDA_(VISIBLE_DEVICES|DEVICE_MAX_CONNECTIONS)|PYTORCH_.*ALLOC_CONF|"
    "MALLOC_|GLIBC_TUNABLES|LD_PRELOAD"
)
"""Environment variables that change a result; the folder of compiled kernels does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One visible GPU."""

    index: int
    name: str
    memory_bytes: int
    uuid: str | None = None
    links: tuple[str, ...] = ()
    """The kind of link to each visible GPU, in their order: NVLink, or the part of PCIe that they
    share, in the words of nvidia-smi topo; () if not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything outside the specification that may change a measurement."""

    hostname: str
    system: str
    kernel: str
    python: str
    cpu: str
    cores: int
    """Cores in this process's affinity mask, not those of the box."""
    memory_bytes: int
    accelerators: tuple[Accelerator, ...] = ()
    governor: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    cuda: str | None = None
    affinity: str | None = None
    """The numbers of the usable cores, "0-3,8"; other cores of equal number may be compared."""
    quota_cores: float | None = None
    """Cores' worth of time that the cgroup allows; None without a limit."""
    boost: bool | None = None
    """Whether cores may run above their nominal frequency; None where that is not readable."""
    gpu_driver: str | None = None

    @property
    def usable_cores(self) -> int:
        """Cores that its processes could keep busy, within affinity and quota."""
        return within_quota(self.cores, self.quota_cores)

    @property
    def environment_id(self) -> str:
        """Two hashes: of the fields that must be equal for a comparison, and of all fields."""
        essence = replace(self, **COMPARABLE_ANYWAY)
        return f"{content_hash(essence)}-{content_hash(self, length=8)}"

    def differences_from(self, other: Environment) -> list[str]:
        """List the differences that forbid a comparison: "cpu: A -> B", "versions: torch 2.6.0 ->
        2.13.0"."""
        others = {name: getattr(other, name) for name in COMPARABLE_ANYWAY}
        return differing_fields(replace(self, **others), other)


def comparable_part(environment_id: str) -> str:
    """The part of an id that must be equal for two measurements to be compared."""
    return environment_id.partition("-")[0]


def environment_line(environments: Mapping[str, Environment], used: set[str]) -> str:
    """The machine in a few words: "AMD EPYC 7B13, 2 cores, torch 2.9.0", after "2 hosts, each " if
    several are alike."""
    known = [environments[one] for one in sorted(used) if one in environments]
    if not known:
        return "environment not recorded"
    if (different := len({*map(comparable_part, used)})) > 1:
        return f"{different} different environments"
    hosts = {machine.hostname for machine in known}
    machine = known[0]
    gpus = [accelerator.name for accelerator in machine.accelerators]
    what = [machine.cpu, units.counted(machine.usable_cores, "core")]
    what += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    if "torch" in machine.versions:
        what.append(f"torch {machine.versions['torch']}")
    return f"{f'{len(hosts)} hosts, each ' if len(hosts) > 1 else ''}{', '.join(what)}"


def capture(
    *,
    accelerators: Sequence[Accelerator] = (),
    cuda: str | None = None,
    nccl: str | None = None,
) -> Environment:
    """Describe this machine and process as they are now."""
    affinity = re.search(r"^Cpus_allowed_list:\s*(.+)", read_text("/proc/self/status") or "", re.M)
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)", read_text("/proc/cpuinfo") or "", re.M)
    versions = {"dpbench": __version__, **{name: _version(name) for name in PACKAGES}}
    if nccl is not None:
        versions["nccl"] = nccl
    return Environment(
        hostname=platform.node(),
        system=platform.system(),
        kernel=platform.release(),
        python=platform.python_version(),
        cpu=model.group(1) if model else platform.processor() or platform.machine(),
        cores=len(core_numbers()),
        memory_bytes=psutil.virtual_memory().total,
        accelerators=tuple(accelerators),
        governor=read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        versions=versions,
        variables=recorded_variables(),
        git_commit=_git_commit(),
        cuda=cuda,
        affinity=affinity.group(1) if affinity else None,
        quota_cores=quota_cores(),
        boost=boost(),
        gpu_driver=read_text("/sys/module/nvidia/version"),
    )


def recorded_variables() -> dict[str, str]:
    """The environment variables that change a result, in the order of their names."""
    named = sorted(filter(RECORDED_VARIABLES.match, os.environ))
    return {name: os.environ[name] for name in named}


def core_numbers() -> tuple[int, ...]:
    """The cores in this process's affinity mask."""
    return tuple(sorted(os.sched_getaffinity(0)))


def read_text(path: str) -> str | None:
    """The contents of a small file; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def usable_cores() -> int:
    """Cores that this process may keep busy, by its affinity mask and by the quota of its cgroup,
    as in a container."""
    return within_quota(len(core_numbers()), quota_cores())


def within_quota(cores: int, quota: float | None) -> int:
    """Whole cores that a quota of CPU time lets a process keep busy; at least one."""
    return cores if quota is None else max(1, min(cores, int(quota)))


def quota_cores() -> float | None:
    """CPU time per second that the tightest cgroup (version 2) around this process allows, in
    cores; None without a limit."""
    limits = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        own = PurePosixPath(line.removeprefix("0::"))
        for group in (own, *own.parents) if line.startswith("0::") else ():
            limit = read_text(f"/sys/fs/cgroup/{group}/cpu.max") or "max"
            if not limit.startswith("max"):
                quota, period = map(int, limit.split())
                limits.append(quota / period)
    return min(limits, default=None)


def boost() -> bool | None:
    """Whether the cores may exceed their nominal frequency; None if that is not readable."""
    on = read_text("/sys/devices/system/cpu/cpufreq/boost")
    off = read_text("/sys/devices/system/cpu/intel_pstate/no_turbo")
    if on is None and off is None:
        return None
    return on == "1" or off == "0"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _git_commit() -> str | None:
    """The commit of the working directory, with "+changes" if tracked files have changed."""
    describe = ("describe", "--always", "--exclude=*", "--dirty=+changes", "--abbrev=12")
    try:
        finished = run_git(*describe, limit_seconds=GIT_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
