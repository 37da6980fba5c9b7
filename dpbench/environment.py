"""On what it ran: the machine, the versions, the variables that change a result.

Standard library only. Accelerators are found by whoever may touch them (`launch`) and passed in.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dpbench.codec import content_hash

PACKAGES = ("dpbench", "torch", "numpy", "pandas", "scipy")
ELASTIC, SYNTHETIC = "elastic", "synthetic"
COMPARABLE_ANYWAY = ("git_commit", "hostname")
RECORDED_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_DISTRIBUTED_DEBUG",
    "GLOO_SOCKET_IFNAME",
)
RECORDED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One visible GPU."""

    index: int
    name: str
    memory_bytes: int
    uuid: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything outside the specification that may change a measurement."""

    hostname: str
    system: str
    kernel: str
    python: str
    cpu: str
    cores: int
    """Cores that this process may use (affinity), not those of the box."""
    memory_bytes: int
    accelerators: tuple[Accelerator, ...] = ()
    governor: str | None = None
    versions: tuple[tuple[str, ...], ...] = ()
    variables: tuple[tuple[str, ...], ...] = ()
    git_commit: str | None = None
    cuda: str | None = None
    launcher: str = ELASTIC
    """Who started the ranks, or made the numbers up."""

    @property
    def environment_id(self) -> str:
        """Two hashes: of all that forbids a comparison, and of the rest, which does not."""
        essence = replace(self, git_commit=None, hostname="")
        return f"{content_hash(essence)}-{content_hash(self, length=4)}"

    def differences_from(self, other: Environment) -> list[str]:
        """Lists what forbids a comparison: "cpu: A -> B". The git commit does not."""
        return [
            f"{field.name}: {getattr(other, field.name)!r} -> {getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in COMPARABLE_ANYWAY
            and getattr(self, field.name) != getattr(other, field.name)
        ]


def comparable(environment_id: str) -> str:
    """The part of an id that must be equal for two measurements to be compared."""
    return environment_id.partition("-")[0]


def capture(
    *, accelerators: Sequence[Accelerator] = (), cuda: str | None = None, launcher: str = ELASTIC
) -> Environment:
    """Describes this machine and process as they are now."""
    return Environment(
        hostname=platform.node(),
        system=platform.system(),
        kernel=platform.release(),
        python=platform.python_version(),
        cpu=_cpu_model(),
        cores=usable_cores(),
        memory_bytes=_memory_bytes(),
        accelerators=tuple(accelerators),
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        versions=tuple((name, _version(name)) for name in PACKAGES),
        variables=tuple(
            (name, value)
            for name, value in sorted(os.environ.items())
            if name in RECORDED_VARIABLES or name.startswith(RECORDED_PREFIXES)
        ),
        git_commit=_git_commit(),
        cuda=cuda,
        launcher=launcher,
    )


def usable_cores() -> int:
    """Cores in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _git_commit() -> str | None:
    """The commit of the working directory, with "+changes" if it is not clean."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return finished.stdout.strip()
