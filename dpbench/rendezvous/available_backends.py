"""Which backends of torch.distributed can be used here, and why not."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "nccl", "shm")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used; `reason` says why not."""

    usable: bool
    reason: str | None = None


def available_backends() -> dict[str, Availability]:
    """Every backend that dpbench knows, with the reason for each that cannot be used here.

    It creates no CUDA context.
    """
    gpu_count = torch.cuda.device_count()
    reasons = {backend: missing_reason(backend, gpu_count) for backend in BACKENDS}
    return {backend: Availability(reason is None, reason) for backend, reason in reasons.items()}


def missing_reason(backend: str, gpu_count: int) -> str | None:
    """Why ranks on this host, which has so many GPUs, cannot use the backend; None if they can."""
    if not dist.is_available():
        return "torch was built without torch.distributed"
    if backend == "gloo":
        return None if dist.is_gloo_available() else "torch was built without gloo"
    if backend == "shm":
        return None if hasattr(os, "memfd_create") else "shm needs Linux: memory files, semaphores"
    if not dist.is_nccl_available():
        return "torch was built without nccl"
    return None if gpu_count else "nccl needs a CUDA device; this machine has none"
