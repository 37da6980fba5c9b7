"""The backends of process groups, and why some of them cannot be used here."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpbench.specs.traits import BACKENDS


def missing_backends() -> dict[str, str]:
    """The reason for each of dpbench's backends that cannot be used here.

    This creates no CUDA context.
    """
    gpu_count = torch.cuda.device_count()
    reasons = {backend: missing_reason(backend, gpu_count) for backend in BACKENDS}
    return {backend: reason for backend, reason in reasons.items() if reason}


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
