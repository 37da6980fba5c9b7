"""The machine that a command measures on, and which of its devices: --gpus, --threads and more."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType

from dpbench import units
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.options.bridge import as_typed
from dpbench.records import environment
from dpbench.records.environment import Environment

TEST_LAUNCHERS = "DPBENCH_TEST_LAUNCHERS"
"""Environment variable that only the tests of dpbench set: the name of a module whose launchers
compute their numbers and start no ranks."""


def test_launchers() -> ModuleType | None:
    """The module that TEST_LAUNCHERS names; None outside of tests."""
    name = os.environ.get(TEST_LAUNCHERS)
    return importlib.import_module(name) if name else None


def machine_here() -> Machine:
    """The machine whose devices are measured."""
    from dpbench.launch.machine import inspect_machine

    launchers = test_launchers()
    return launchers.machine() if launchers else inspect_machine()


def environment_here(machine: Machine) -> Environment:
    """The environment of this process's records."""
    launcher = environment.SYNTHETIC if test_launchers() else environment.PROCESSES
    return environment.capture(
        accelerators=machine.gpus, cuda=machine.cuda, nccl=machine.nccl, launcher=launcher
    )


MOST_REPLICAS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host and what it lends to a sweep."""

    machine: Machine
    devices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRequest:
    """The devices and replicas that were asked for."""

    gpus: int | tuple[int, ...] | None
    sizes: tuple[int, ...] | None
    """The group sizes."""
    threads: int | None
    oversubscribe: bool

    @property
    def gpu_count(self) -> int | None:
        """How many devices; None where the machine decides."""
        if self.gpus is None:
            return None
        return len(self.gpus) if isinstance(self.gpus, tuple) else self.gpus

    @property
    def gpu_ids(self) -> tuple[int, ...] | None:
        """The devices; None where any will do."""
        return self.gpus if isinstance(self.gpus, tuple) else None

    @property
    def largest_size(self) -> int | None:
        return None if self.sizes is None else max(self.sizes)

    @property
    def gpus_as_typed(self) -> str:
        return "auto" if self.gpus is None else as_typed(self.gpus)

    @property
    def asked(self) -> str:
        """The option that asks for the largest number of replicas."""
        if self.gpus is None and self.sizes is not None:
            return f"--group-sizes {as_typed(self.sizes)}"
        return f"--gpus {self.gpus_as_typed}"


SMALL_GROUPS = 4
"""Up to as many replicas every group size is measured by default; beyond that they double."""


def default_group_sizes(largest: int) -> tuple[int, ...]:
    """Every size of a small group; else 1, 2, 4, 8, … and the largest, which shows the scaling."""
    if largest <= SMALL_GROUPS:
        return tuple(range(1, largest + 1))
    sizes = (2**power for power in range(largest.bit_length()))
    return tuple(dict.fromkeys((*sizes, largest)))


def devices_for(request: DeviceRequest, machine: Machine, notes: list[str]) -> tuple[str, ...]:
    """A device for each replica of the largest group; raises UsageError if there are too few."""
    if max(request.gpu_count or 0, request.largest_size or 0) > MOST_REPLICAS:
        raise UsageError(
            f"{request.asked}: more replicas than one machine runs; "
            f"expected at most {MOST_REPLICAS:,}"
        )
    devices = (_cuda_devices if machine.has_cuda else _cpu_devices)(request, machine, notes)
    for size in () if request.sizes is None else request.sizes:
        if size > len(devices):
            raise UsageError(
                f"--group-sizes: {size} is above --gpus {request.gpus_as_typed}; "
                f"expected at most {len(devices)}"
            )
    return devices


def threads_for(request: DeviceRequest, cores: int, largest_group: int) -> int:
    """Cores ÷ largest group, the same at every group size: else a speedup is oversubscription.

    Raises UsageError for --threads that are more than there are cores.
    """
    share = max(1, cores // largest_group)
    threads = request.threads
    if threads is None:
        return share
    if threads * largest_group > cores and not request.oversubscribe:
        raise UsageError(
            f"--threads {threads}: {threads} × {largest_group} replicas are more "
            f"than the {cores} cores; expected at most {share}, or add --oversubscribe"
        )
    return threads


def no_gpu(machine: Machine) -> str:
    """Says what a machine without usable GPUs lacks."""
    return f"no {machine.platform} device"


def _cpu_devices(request: DeviceRequest, machine: Machine, notes: list[str]) -> tuple[str, ...]:
    count = request.gpu_count or request.largest_size or machine.cores
    if count > machine.cores and not request.oversubscribe:
        raise UsageError(
            f"{request.asked}: {count} replicas, but this machine has {no_gpu(machine)} and "
            f"{machine.cores} cores, and on the CPU a replica is a core; "
            f"expected at most {machine.cores}, or add --oversubscribe"
        )
    if request.gpu_ids and max(request.gpu_ids) >= machine.cores and not request.oversubscribe:
        raise UsageError(
            f"--gpus: no device {max(request.gpu_ids)}; this machine has {no_gpu(machine)} and "
            f"{machine.cores} cores (0 to {machine.cores - 1})"
        )
    if request.gpu_count is not None:
        replicas = units.counted(count, "CPU replica")
        notes.append(f"{no_gpu(machine)} here: --gpus {request.gpus_as_typed} means {replicas}")
    if count > machine.cores:
        notes.append(f"oversubscribed: {count} replicas share {machine.cores} cores")
    return ("cpu",) * count


def _cuda_devices(request: DeviceRequest, machine: Machine, _: list[str]) -> tuple[str, ...]:
    if request.gpu_ids is not None:
        absent = [number for number in request.gpu_ids if number >= machine.gpu_count]
        if absent:
            raise UsageError(
                f"--gpus: no GPU {absent[0]}; this machine has {machine.gpu_count} "
                f"(0 to {machine.gpu_count - 1})"
            )
        return tuple(f"cuda:{number}" for number in request.gpu_ids)
    count = request.gpu_count or request.largest_size or machine.gpu_count
    if count > machine.gpu_count and not request.oversubscribe:
        raise UsageError(
            f"{request.asked}: this machine has {machine.gpu_count} GPUs; expected at most "
            f"{machine.gpu_count}, or share them with --oversubscribe (not with nccl)"
        )
    return tuple(f"cuda:{number % machine.gpu_count}" for number in range(count))
