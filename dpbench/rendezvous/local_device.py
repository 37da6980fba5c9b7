"""The GPU of its host that a process takes, and a check that each NCCL rank has its own."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import torch

from dpbench.rendezvous.launch_variables import integer


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
    here = None
    if "LOCAL_WORLD_SIZE" in environ:
        here = integer(environ, "LOCAL_WORLD_SIZE", 1, world_size)
    if "LOCAL_RANK" in environ:
        local_rank = integer(environ, "LOCAL_RANK", 0, (here or world_size) - 1)
    else:
        local_rank = rank % (here or world_size)
    return 0 if _sees_one_gpu(environ) else local_rank


def _sees_one_gpu(environ: Mapping[str, str]) -> bool:
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return bool(visible) and "," not in visible


def name_gpu(device: torch.device) -> str:
    """Name of a GPU, the same for all processes whatever index each has for it; empty for the
    CPU."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{socket.gethostname()}, {getattr(properties, 'uuid', device)}"


def check_own_gpus(gpus: Sequence[str]) -> None:
    """Raise RuntimeError if two ranks have the same GPU: NCCL would fail, or wait forever.

    `gpus` are the GPUs' names, by rank.
    """
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise RuntimeError(
                f"ranks {gpus.index(gpu)} and {rank} have the same GPU ({gpu}), and nccl needs one "
                "for each; start fewer ranks, let each see its own, or take gloo or shm"
            )
