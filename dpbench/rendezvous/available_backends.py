"""The backends and the GPUs that ranks can use here, and the reasons why they cannot use others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dpbench.rendezvous.placement import integer
from dpbench.specs.traits import BACKENDS, PROCESS_GROUP_BACKENDS


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used; `reason` says why not."""

    reason: str | None

    @property
    def usable(self) -> bool:
        return self.reason is None


def available_backends() -> dict[str, Availability]:
    """Every backend that dpbench knows, with the reason for each that cannot be used here.

    This creates no CUDA context.
    """
    gpu_count = torch.cuda.device_count()
    reasons = {backend: missing_reason(backend, gpu_count) for backend in PROCESS_GROUP_BACKENDS}
    return {backend: Availability(reason) for backend, reason in reasons.items()}


def missing_reason(backend: str, gpu_count: int) -> str | None:
    """Why ranks on this host, with `gpu_count` GPUs, cannot use the backend; None if they can."""
    if not dist.is_available():
        return "torch was built without torch.distributed"
    if backend == "gloo" and not dist.is_gloo_available():
        return "torch was built without gloo"
    if not BACKENDS[backend].cuda_only:
        return None
    if not dist.is_nccl_available():
        return "torch was built without nccl"
    if not dist.is_backend_available(backend):
        return f"torch {torch.__version__} has no backend {backend}"
    return None if gpu_count else f"{backend} needs a CUDA device; this machine has none"


def local_device(rank: int, world_size: int, environ: Mapping[str, str]) -> int:
    """The index of the GPU for this process, among those that it sees.

    It is LOCAL_RANK, else rank % LOCAL_WORLD_SIZE, else rank % world_size, as in torch's launcher
    and torch-ddp. A process that sees only one GPU through CUDA_VISIBLE_DEVICES, as when each
    process was started by hand for its own GPU, takes that one: index 0.

    Args:
        rank: the process's rank among all.
        world_size: number of all processes.
        environ: the environment variables, e.g. os.environ.

    Raises:
        ValueError: a variable is set to something else than the integer it must be, or rank and
            world_size do not fit each other.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"got rank={rank} and world_size={world_size}, expected 0 <= rank < size")
    here = integer(environ, "LOCAL_WORLD_SIZE", 1, world_size, default=world_size)
    local_rank = integer(environ, "LOCAL_RANK", 0, here - 1, default=rank % here)
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return 0 if visible and "," not in visible else local_rank
