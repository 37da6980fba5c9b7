"""A process group from the launcher's environment variables, which is left whatever happens.

torch's init_process_group does the work. What is added: strict variables, the names of the ranks
that did not come, a GPU of its own for each NCCL rank, and the end.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, perf_counter

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.rendezvous.available_backends import available_backends
from dpbench.rendezvous.launch_variables import LaunchVariables
from dpbench.rendezvous.local_device import check_own_gpus, local_device, name_gpu
from dpbench.rendezvous.meeting import Meeting
from dpbench.rendezvous.store import open_store

DEFAULT_TIMEOUT = timedelta(seconds=120)
BACKEND_OF = {"cpu": "gloo", "cuda": "nccl"}
DEBUG_VARIABLES = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process's place in its group."""

    rank: int
    size: int
    backend: str
    device: torch.device
    """Where this rank computes; for CUDA it is the current device, too."""
    meeting_seconds: float
    """Until all ranks had come."""
    connecting_seconds: float
    """From then on, until the first collective had passed."""


@contextmanager
def process_group(
    backend: str | None = None,
    *,
    timeout: timedelta = DEFAULT_TIMEOUT,
    device: DeviceLike | None = None,
    debug: bool = False,
) -> Iterator[Ranks]:
    """The default process group of all ranks that a launcher started, while the block runs.

    RANK and WORLD_SIZE say which ranks, MASTER_ADDR (else 127.0.0.1) and MASTER_PORT (else 29500)
    where they meet; torchrun and dpbench launch set them. The group is destroyed at the end, also
    when it could not be made.

    Args:
        backend: "gloo", "nccl" or "shm"; None means gloo on the CPU, and nccl on CUDA.
        timeout: how long to wait for the other ranks, here and in every collective.
        device: where this rank computes; None means CUDA if there is any or nccl is asked for,
            else the CPU. "cuda" without an index means the GPU that `local_device` says.
        debug: let torch.distributed and NCCL say more, on stderr, while the block runs.

    Raises:
        TypeError, ValueError: an argument or an environment variable is not what it must be.
        RuntimeError: there is a process group already; the backend cannot be used here; some ranks
            did not come, and which; two NCCL ranks have the same GPU.
    """
    _check_timeout(timeout)
    if dist.is_initialized():
        raise RuntimeError("process_group: there is a process group already; leave it first")
    variables = LaunchVariables.read(os.environ)
    chosen = _choose_device(device, backend, variables)
    name = backend or BACKEND_OF[chosen.type]
    _check_backend(name, chosen)
    try:
        with _saying_more(debug, variables.rank):
            yield _join(name, chosen, variables, timeout)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _check_timeout(timeout: timedelta) -> None:
    if not isinstance(timeout, timedelta):
        raise TypeError(f"process_group: got timeout={timeout!r}, expected a timedelta")
    if not timeout > timedelta():
        raise ValueError(f"process_group: got timeout={timeout}, expected more than zero")


def _choose_device(
    device: DeviceLike | None, backend: str | None, variables: LaunchVariables
) -> torch.device:
    if device is None:
        wants_cuda = backend == "nccl" or (backend is None and torch.cuda.is_available())
        device = "cuda" if wants_cuda else "cpu"
    if str(device) == "cuda":
        device = local_device(variables.rank, variables.world_size, os.environ)
    return parse_device(device)


def _check_backend(backend: str, device: torch.device) -> None:
    known = available_backends()
    if backend not in known:
        raise ValueError(
            f"process_group: got backend={backend!r}, expected one of {', '.join(known)}"
        )
    if reason := known[backend].reason:
        raise RuntimeError(f"process_group: backend {backend!r} cannot be used here: {reason}")
    if backend == "nccl" and device.type != "cuda":
        raise ValueError(f"process_group: nccl reduces CUDA tensors only, got device={device}")


@contextmanager
def _saying_more(debug: bool, rank: int) -> Iterator[None]:
    """Sets what torch and NCCL read when a group is made, and takes it back at the end."""
    if not debug:
        yield
        return
    before = {name: os.environ.get(name) for name in DEBUG_VARIABLES}
    os.environ.update(DEBUG_VARIABLES)
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    if rank == 0:
        words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
        print(f"process_group: debug: {words}", file=sys.stderr)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        dist.set_debug_level_from_env()  # type: ignore[attr-defined]


def _join(
    backend: str, device: torch.device, variables: LaunchVariables, timeout: timedelta
) -> Ranks:
    start = perf_counter()
    try:
        store = _meet(backend, device, variables, timeout)
    except RuntimeError as error:
        place = f"this is rank {variables.rank} of {variables.world_size}"
        raise RuntimeError(f"process_group: {error} ({place})") from error.__cause__
    met = perf_counter()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=variables.rank,
        world_size=variables.world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,  # lets NCCL connect now
    )
    if backend == "nccl":  # its channels open with the first collective
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    return Ranks(
        rank=variables.rank,
        size=variables.world_size,
        backend=backend,
        device=device,
        meeting_seconds=met - start,
        connecting_seconds=perf_counter() - met,
    )


def _meet(
    backend: str, device: torch.device, variables: LaunchVariables, timeout: timedelta
) -> Store:
    """The store of the group to make, when all its ranks have come."""
    called = monotonic()
    rank, size = variables.rank, variables.world_size
    store = open_store(variables, os.environ, timeout)
    own = f"process {os.getpid()} on {socket.gethostname()}"
    taken = store.compare_set(f"process of rank {rank}", "", own).decode()
    if taken != own:
        raise RuntimeError(f"RANK={rank} belongs to {taken} already; each needs its own")
    meeting = Meeting(store, rank, size)
    store = PrefixStore(f"group {meeting.round}", store)
    store.set(f"gpu of rank {rank}", name_gpu(device))
    failure = meeting.hold(f"{backend}, {size} ranks", timeout, since=called)
    if failure:
        raise RuntimeError(failure.reason)
    if backend == "nccl":
        gpus = [store.get(f"gpu of rank {other}").decode() for other in range(size)]
        check_own_gpus(gpus)
    return store
