"""The backends of torch.distributed that can be used here, and the reasons why others cannot."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dpbench.rendezvous.launch_variables import GLOO_INTERFACE, LOOPBACK

BACKENDS = ("gloo", "nccl", "shm", "shm+gloo")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used; `reason` says why not."""

    usable: bool
    reason: str | None = None


def available_backends() -> dict[str, Availability]:
    """Every backend that dpbench knows, with the reason for each that cannot be used here.

    This creates no CUDA context.
    """
    gpu_count = torch.cuda.device_count()
    reasons = {backend: missing_reason(backend, gpu_count) for backend in BACKENDS}
    return {backend: Availability(reason is None, reason) for backend, reason in reasons.items()}


def missing_reason(backend: str, gpu_count: int) -> str | None:
    """Why ranks on this host, with `gpu_count` GPUs, cannot use the backend; None if they can."""
    if not dist.is_available():
        return "torch was built without torch.distributed"
    parts = backend.split("+")
    if backend != "nccl" and (reason := _loopback_reason()):
        return reason
    if "shm" in parts and not hasattr(os, "memfd_create"):
        return "shm needs Linux: memory files, semaphores"
    if "gloo" in parts and not dist.is_gloo_available():
        return "torch was built without gloo"
    if backend != "nccl":
        return None
    if not dist.is_nccl_available():
        return "torch was built without nccl"
    return None if gpu_count else f"nccl needs a {gpu_platform()} device; this machine has none"


def gpu_platform() -> str:
    """What torch.cuda stands for: "CUDA", or "ROCm" in torch's build for AMD's GPUs."""
    return "ROCm" if torch.version.hip else "CUDA"


def unsupported_accelerator() -> str | None:
    """A kind of device that torch sees here and dpbench does not compute on; None without one."""
    if torch.backends.mps.is_available():
        return "MPS"
    xpu = getattr(torch, "xpu", None)
    return "XPU" if xpu is not None and xpu.is_available() else None


def _loopback_reason() -> str | None:
    """Why ranks of this host cannot talk over loopback, as in a new network namespace; None if they
    can."""
    if GLOO_INTERFACE in os.environ:
        return None
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as tried:
            tried.connect((LOOPBACK, 9))  # sends nothing, but needs a route
    except OSError as error:
        return (
            f"ranks talk over {LOOPBACK}, and this host cannot ({error.strerror}): "
            f"ip link set lo up, or set {GLOO_INTERFACE} to another interface"
        )
    return None
