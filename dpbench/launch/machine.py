"""What ranks find on a node: its environment, and the backends that work there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from dpbench.errors import UsageError
from dpbench.launch.ranks import run_one_rank
from dpbench.measure.nvml import open_gpus
from dpbench.records.environment import Accelerator, Environment, capture
from dpbench.rendezvous.backends import missing_backends
from dpbench.specs import ParallelSpec
from dpbench.specs.traits import IMPLEMENTATIONS, backend_conflict

PROBE_SECONDS = 60.0
COMMON_ANCESTORS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""The last component that PCIe traffic between two GPUs passes, by NVML's number, in the words of
nvidia-smi topo."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The environment and the backends of one node."""

    environment: Environment
    missing_backends: dict[str, str] = field(default_factory=dict)
    """The reason for each backend that cannot be used here."""

    @property
    def gpus(self) -> tuple[Accelerator, ...]:
        return self.environment.accelerators

    @property
    def cores(self) -> int:
        return self.environment.usable_cores

    @property
    def replica_count(self) -> int:
        """The replicas that have a device of their own: a GPU, or without CUDA a core."""
        return len(self.gpus) or self.cores

    def unusable_reason(self, spec: ParallelSpec) -> str | None:
        """Why the trial or the training cannot run here; None if it can."""
        name, devices = spec.implementation, spec.devices
        traits, on_cpu = IMPLEMENTATIONS[name], devices[0] == "cpu"
        backend_reason = self.unusable_backend_reason(spec.backend, devices)
        if reason := missing_package_reason(name) or backend_reason:
            return reason
        if spec.comm_hook == "bf16" and not traits.ours and self.environment.cuda is None:
            return (
                "torch's DistributedDataParallel takes the bf16 hook in builds with CUDA and NCCL "
                "only; ddp takes it everywhere"
            )
        if spec.batched_copy is not None and not has_batched_copy():
            return "torch's DistributedDataParallel has batched_grad_copy from torch 2.13 on"
        if traits.shards and spec.backend == "shm" and not hasattr(dist, "all_gather_single"):
            return f"{name} on shm needs torch 2.13 or later"
        if spec.unusable_reason is not None:
            return spec.unusable_reason
        if traits.needs_cuda and on_cpu:
            return f"{traits.needs_cuda}: it would time the plain module"
        if len({*devices}) < len(devices) and not on_cpu:
            if traits.one_process:
                return "DataParallel needs a GPU of its own for every replica"
            if spec.workload.script and traits.communicates:
                return "a script takes the GPU of its LOCAL_RANK, so each rank needs its own"
        return None

    def unusable_backend_reason(self, backend: str, devices: Sequence[str]) -> str | None:
        """Why ranks on these devices cannot use the backend; None if they can."""
        return self.missing_backends.get(backend) or backend_conflict(backend, devices)


def missing_package_reason(implementation: str) -> str | None:
    """Why the implementation cannot be used here: its package is not installed. None if nothing is
    missing. The package is not imported to find out."""
    package = IMPLEMENTATIONS[implementation].requires
    if package is None or find_spec(package) is not None:
        return None
    return f"{implementation} needs a package: pip install {package.replace('_', '-')}"


def has_batched_copy() -> bool:
    """Whether torch can copy the gradients of a bucket all at once."""
    from torch.nn.parallel import DistributedDataParallel

    return "batched_grad_copy" in signature(DistributedDataParallel).parameters


def inspect_machine() -> Machine:
    """Inspect this node; CUDA is only touched in a rank, never in this process.

    Raises UsageError in a process that is itself one of several ranks, since all of them would
    measure.
    """
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is not None and size != "1":
        raise UsageError(
            f"this process is rank {rank} of {size} (RANK and WORLD_SIZE are set, as by torchrun); "
            "dpbench starts the ranks itself: run it without a launcher, or unset both"
        )
    has_gpus = torch.cuda.device_count() > 0
    gpus, nccl = run_one_rank(_gpus_and_nccl, PROBE_SECONDS) if has_gpus else ((), None)
    environment = capture(accelerators=gpus, cuda=torch.version.cuda, nccl=nccl)
    return Machine(environment=environment, missing_backends=missing_backends())


def _gpus_and_nccl(_: int) -> tuple[tuple[Accelerator, ...], str | None]:
    """The visible GPUs, and the version of NCCL."""
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    links = gpu_links([str(gpu.uuid) for gpu in properties]) or ((),) * count
    gpus = tuple(
        Accelerator(
            index=index,
            name=gpu.name,
            memory_bytes=gpu.total_memory,
            uuid=str(gpu.uuid),
            links=links[index],
        )
        for index, gpu in enumerate(properties)
    )
    return gpus, nccl_version() if torch.distributed.is_nccl_available() else None


def gpu_links(uuids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The link from each NVIDIA GPU to each: NVLink, also through a switch, or the part of PCIe
    that they share. () for a single GPU, and without NVML (the extra `nvml`); see `open_gpus`."""
    opened = open_gpus(*uuids) if len(uuids) > 1 else None
    if opened is None:
        return ()
    nvml, handles = opened

    def link(gpu: Any, other: Any) -> str:
        if gpu is other:
            return "X"
        status = nvml.nvmlDeviceGetP2PStatus(gpu, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
        ancestor = nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other)
        return COMMON_ANCESTORS.get(ancestor, f"NVML topology {ancestor}")

    try:
        return tuple(tuple(link(gpu, other) for other in handles) for gpu in handles)
    except nvml.NVMLError:
        return ()


def nccl_version() -> str:
    """The version of the NCCL library in this process.

    torch's own answer is the version of the headers that it was compiled with, which another
    library may have replaced. It is right where NCCL is linked into torch.
    """
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD)
    except OSError:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return ".".join(map(str, version))
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return f"{code.value // 10_000}.{code.value // 100 % 100}.{code.value % 100}"
