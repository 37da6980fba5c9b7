"""The backends of process groups, and why some of them cannot be used here."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpbench.specs.traits import BACKENDS


def missing_backends() -> dict[str, str]:
    """The reason for each of dpbench's backends that cannot be used here."""
    return {backend: reason for backend in BACKENDS if (reason := missing_reason(backend))}


def missing_reason(backend: str) -> str | None:
    """Why ranks on this host cannot use the backend; None if they can. Creates no CUDA context."""
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
    if not torch.cuda.device_count():
        return f"{backend} needs a CUDA device; this machine has none"
    return None
