"""Each NCCL rank needs a GPU of its own."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch


def name_gpu(device: torch.device) -> str:
    """The same for the same GPU, whatever index each process has for it; empty for the CPU."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{socket.gethostname()}, {getattr(properties, 'uuid', device)}"


def check_own_gpus(gpus: Sequence[str]) -> None:
    """RuntimeError if two ranks have the same GPU: NCCL would fail, or wait for ever.

    `gpus` are their names, by rank.
    """
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise RuntimeError(
                f"ranks {gpus.index(gpu)} and {rank} have the same GPU ({gpu}), and nccl needs one "
                "for each; start fewer ranks, let each see its own, or take gloo or shm"
            )
