"""The resources of this machine: devices, cores, packages, and the backends that work on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import TypeVar

from dpbench import architecture
from dpbench.environment import Accelerator, usable_cores
from dpbench.errors import LaunchError, UsageError
from dpbench.launch.server import fork_server
from dpbench.specs import TrialSpec
from dpbench.specs.training import TrainingSpec
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

T = TypeVar("T")
PROBE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The devices and backends of one host."""

    cores: int
    gpus: tuple[Accelerator, ...]
    cuda: str | None
    """The CUDA version of torch's build, or "ROCm" with its own; None for a CPU build."""
    platform: str = "CUDA"
    """What torch.cuda stands for here: CUDA, or ROCm."""
    unsupported: str | None = None
    """XPU or MPS, where there is such a device: replicas do not compute on it."""
    nccl: str | None = None
    """The version of NCCL that torch uses; None without a GPU."""
    missing_backends: tuple[tuple[str, str], ...]
    """(backend, reason) for each backend that cannot be used here."""

    @property
    def has_cuda(self) -> bool:
        return bool(self.gpus)

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)

    def missing_reason(self, backend: str) -> str | None:
        return dict(self.missing_backends).get(backend)

    def unusable_reason(self, trial: TrialSpec | TrainingSpec) -> str | None:
        """Why the trial or the training cannot run here; None if it can."""
        reason = missing_package_reason(trial.implementation) or self.unusable_backend_reason(
            trial.backend, trial.devices
        )
        if reason is None and isinstance(trial, TrialSpec):
            reason = (
                hook_reason(trial, cuda=self.cuda) or shards_reason(trial) or sparse_reason(trial)
            )
        if reason:
            return reason
        on_cpu = trial.devices[0] == "cpu"
        traits = IMPLEMENTATIONS[trial.implementation]
        if traits.needs_cuda and on_cpu:
            return f"{traits.needs_cuda}: it would time the plain module"
        if _shared(trial.devices) and not on_cpu and traits.one_process:
            return "DataParallel needs a GPU of its own for every replica"
        return None

    def unusable_backend_reason(self, backend: str, devices: Sequence[str]) -> str | None:
        """Why ranks on these devices cannot use the backend; None if they can."""
        reason = self.missing_reason(backend)
        if reason:
            return reason
        if backend == "nccl" and devices[0] == "cpu":
            return f"nccl reduces {self.platform} tensors only"
        if backend == "nccl" and _shared(devices):
            return "nccl needs a GPU of its own for every rank"
        return None


def _shared(devices: Sequence[str]) -> bool:
    return len(set(devices)) < len(devices)


def inspect_machine() -> Machine:
    """Inspect this host; CUDA is only touched in a child process, never in this one.

    Raises UsageError in a process that is itself one of several ranks, since all of them would
    measure.
    """
    _refuse_ranks()
    # torch.cuda.is_available() then asks NVML; otherwise it would initialise CUDA in this process.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    from dpbench.rendezvous.available_backends import (
        gpu_platform,
        missing_reason,
        unsupported_accelerator,
    )

    gpus, nccl = in_child(_gpus_and_nccl) if torch.cuda.device_count() else ((), None)
    return Machine(
        cores=usable_cores(),
        gpus=gpus,
        cuda=f"ROCm {torch.version.hip}" if torch.version.hip else torch.version.cuda,
        platform=gpu_platform(),
        unsupported=unsupported_accelerator(),
        nccl=nccl,
        missing_backends=tuple(
            (backend, reason)
            for backend in PROCESS_GROUP_BACKENDS
            if (reason := missing_reason(backend, len(gpus)))
        ),
    )


def _refuse_ranks() -> None:
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is not None and size != "1":
        raise UsageError(
            f"this process is rank {rank} of {size} (RANK and WORLD_SIZE are set, as by torchrun); "
            "dpbench starts the ranks itself: run it without a launcher, or unset both"
        )


def in_child(function: Callable[[], T]) -> T:
    """Run `function` in a fresh process and return its result; LaunchError if it fails or sends
    nothing."""
    name = getattr(getattr(function, "func", function), "__name__", repr(function))
    context = fork_server()
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(function, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(PROBE_SECONDS):
            raise LaunchError(f"{name} gave no answer in {PROBE_SECONDS:.0f} s")
        result: T | Exception = receiver.recv()
    except EOFError:
        raise LaunchError(f"{name} ended its child process without an answer") from None
    finally:
        child.kill()
        child.join()
    if isinstance(result, Exception):
        raise LaunchError(f"{name} failed in its child process: {result}") from result
    return result


def _send_result(function: Callable[[], T], sender: Connection) -> None:
    try:
        result: T | Exception = function()
    except Exception as error:
        result = error
    with suppress(BrokenPipeError):  # the parent may be gone
        sender.send(result)


def _gpus_and_nccl() -> tuple[tuple[Accelerator, ...], str | None]:
    """The visible GPUs, and the version of NCCL."""
    import torch

    from dpbench.measure.nvml import gpu_links

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    properties = [torch.cuda.get_device_properties(device) for device in devices]
    links = gpu_links(devices) or ((),) * len(devices)
    gpus = tuple(
        Accelerator(
            index=index,
            name=gpu.name,
            memory_bytes=gpu.total_memory,
            uuid=str(gpu.uuid) if hasattr(gpu, "uuid") else None,
            links=links[index],
        )
        for index, gpu in enumerate(properties)
    )
    has_nccl = torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]
    return gpus, None if nccl is None else ".".join(map(str, nccl))


OPTIMIZERS = ("sgd", "sgd-foreach")
"""Optimizers that accept sparse gradients. torch's SparseAdam does too, but no dense ones."""
_NOT_THESE = "dense gradients only, and the architecture has sparse ones"


@cache
def has_sparse_gradients(arch: str) -> bool:
    """Whether the architecture reports sparse gradients; False for a user's architecture, or one
    that cannot be loaded."""
    try:
        theirs = architecture.is_theirs(arch)
        return not theirs and architecture.sparse_gradients(architecture.load(arch))
    except UsageError:  # reported when it is loaded for training
        return False


def optimizer_reason(arch: str, optimizer: str) -> str | None:
    """Why the optimizer cannot train the architecture; None if it can."""
    if optimizer in OPTIMIZERS or not has_sparse_gradients(arch):
        return None
    return f"torch's {optimizer} takes {_NOT_THESE}; expected {' or '.join(OPTIMIZERS)}"


def sparse_reason(spec: TrialSpec | TrainingSpec) -> str | None:
    """Why the sparse gradients cannot be averaged or used by the optimizer; None if they can."""
    name, backend, workload = spec.implementation, spec.backend, spec.workload
    if not has_sparse_gradients(workload.architecture):
        return None
    backends = IMPLEMENTATIONS[name].sparse_backends
    if backends == ():
        return f"{name} takes {_NOT_THESE}; ddp takes both"
    if backends is not None and backend not in backends:
        return (
            f"{name} on {backend} takes {_NOT_THESE}; it takes both on {' and '.join(backends)}, "
            "and ddp everywhere"
        )
    if spec.comm_hook in ("powersgd", "bf16-feedback"):
        return f"the {spec.comm_hook} hook takes {_NOT_THESE}"
    return optimizer_reason(workload.architecture, workload.optimizer)


def missing_package_reason(implementation: str) -> str | None:
    """Why the implementation cannot be used here: its package is not installed. None if nothing is
    missing.

    This looks for the package without importing it.
    """
    package = IMPLEMENTATIONS[implementation].requires
    if package is None or find_spec(package) is not None:
        return None
    return f"{implementation} needs a package: pip install {package.replace('_', '-')}"


def hook_reason(trial: TrialSpec, *, cuda: str | None) -> str | None:
    """Why the trial cannot have its communication hook; `cuda` is the version of torch's build."""
    ours = IMPLEMENTATIONS[trial.implementation].ours
    if trial.comm_hook == "bf16" and not ours and cuda is None:
        return (
            "torch's DistributedDataParallel takes the bf16 hook in builds with CUDA and NCCL "
            "only; ddp takes it everywhere"
        )
    if trial.comm_hook != "bf16-feedback" or trial.group_size == 1:
        return None
    if trial.backend == "nccl":
        return "the bf16-feedback hook is for gloo and shm+gloo; on nccl use torch's, bf16"
    if trial.backend != "gloo" and len(trial.nodes) < 2:
        return (
            "the bf16-feedback hook rounds what travels between hosts, and on one host "
            f"{trial.backend} sends nothing; use gloo, or no hook"
        )
    return None


def shards_reason(trial: TrialSpec) -> str | None:
    """Why the trial cannot run with parameters or their steps sharded over the ranks; None if it
    can."""
    if IMPLEMENTATIONS[trial.implementation].shards_optimizer and trial.workload.dtype == "f16":
        return "a loss scale of float16 needs whole gradients, and it shards them; bf16 has none"
    if not IMPLEMENTATIONS[trial.implementation].shards_parameters:
        return None
    if trial.noise_steps:
        return "the gradient noise scale is measured with whole parameters, and it shards them"
    if trial.workload.optimizer == "sgd-fused":
        return "torch's fused SGD takes no shards of parameters; sgd-foreach does"
    return None
