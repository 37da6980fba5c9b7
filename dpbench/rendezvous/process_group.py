"""The ranks of a process group, from the launcher's environment variables, which is always left at
the end.

torch's init_process_group does the work. This adds strict checks of the variables, the names of
missing ranks, and the cleanup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from time import perf_counter
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.groups import CPU, PeerFailed, gather_values, message_device
from dpbench.rendezvous.backends import missing_reason
from dpbench.rendezvous.barrier import DEFAULT_TIMEOUT, check_timeout, wait_for_ranks, wait_until
from dpbench.rendezvous.placement import Placement, local_gpu_index
from dpbench.rendezvous.store import open_store
from dpbench.specs.traits import BACKENDS, usual_backend

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Timeout longer than any trial: the trial's own time limit ends a hang, and names its cause."""
DEBUG_VARIABLES = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks that have joined a process group; without arguments, one that is alone.

    Its methods are collectives: every rank calls them, in the same order.
    """

    control: dist.ProcessGroup | None = None
    """The process group of these methods: the default one, or one beside it, on the CPU."""
    device: torch.device = CPU
    """Device on which this rank computes; for CUDA also the current device."""
    comm_init_seconds: float | None = None
    """Seconds from the arrival of the last rank until the group was made and its first collective
    had passed: the start-up cost of a communicator, which no timed window includes."""

    @property
    def rank(self) -> int:
        return 0 if self.control is None else dist.get_rank(self.control)

    @property
    def size(self) -> int:
        return 1 if self.control is None else dist.get_world_size(self.control)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if self.control is not None:
            # dist.barrier would put its message on the GPU that the default group is bound to.
            mark = torch.zeros(1, device=message_device(self.control))
            dist.all_reduce(mark, group=self.control)
            mark.item()  # waits for a GPU

    def max(self, value: float) -> float:
        """The largest `value` of all ranks."""
        return max(map(float, self.gather(value)))

    def gather(self, value: Any) -> list[Any]:
        """The `value` of every rank, by rank, as in `parallel.groups.gather_values`."""
        return [value] if self.control is None else gather_values(value, self.control)

    def gather_on_first(self, value: Any) -> list[Any] | None:
        """`gather` on rank 0; None elsewhere. Tensors from other ranks are on the CPU."""
        if self.control is None:
            return [value]
        return gather_values(value, self.control, root=0) or None

    def on_first(self, call: Callable[[], T]) -> T:
        """The result of `call` on rank 0, on every rank once it has ended, however long it takes.

        The others wait in the group's store, which has no time limit: if rank 0 dies, the launcher
        has to end them. The result is as in `gather`. Raises what `call` raises on rank 0, and
        PeerFailed on the others.
        """
        if self.control is None:
            return call()
        store = PrefixStore("on_first", self.control.get_group_store())
        end = f"end of turn {store.add(f'turns of {self.rank}', 1)}"
        result, failure = None, ""
        if self.rank == 0:
            try:
                result = call()
            except BaseException as error:
                failure = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise
            finally:
                store.set(end, failure.encode(errors="backslashreplace").decode())
        wait_until(lambda: store.check([end]))
        if failure := store.get(end).decode():
            raise PeerFailed(f"cannot complete: rank 0 failed while others waited: {failure}")
        received: T = self.gather(result)[0]
        return received


@contextmanager
def process_group(
    backend: str | None = None,
    *,
    init_method: str | None = None,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    wait_for_workers: bool = True,
    device: DeviceLike | None = None,
) -> Iterator[RankGroup]:
    """Join the default process group of a launcher's ranks, and leave it after the block.

        >>> with dpbench.process_group("shm") as ranks:
        ...     model = dpbench.DistributedDataParallel(module.to(ranks.device))

    Reads RANK, WORLD_SIZE, MASTER_ADDR (default 127.0.0.1) and MASTER_PORT (default 29500), which
    torchrun and dpbench launch set. At the end the group is destroyed; a group of NCCL is aborted
    if the block raises, and the process has to end.

    Args:
        backend: gloo, shm, nccl, nccl-legacy or nccl2; None means gloo on the CPU, nccl on CUDA.
        init_method: where the ranks meet instead, as for torch: "tcp://HOST:PORT", at which rank 0
            listens, or "file:///PATH", a file that is not there yet. "env://" is the same as None.
        store: one of torch's in which they meet, instead of an `init_method`.
        rank, world_size: Override the environment variables.
        timeout: how long to wait for the other ranks, here and in every collective.
        wait_for_workers: wait until all ranks are there, name those that do not come, and pass a
            first collective. If False, a missing rank shows only as a timeout of torch's.
        device: where this rank computes (torch's `device_id`); None means CUDA if there is any or
            NCCL is asked for, else the CPU. "cuda" without an index means the GPU of
            `local_gpu_index`.

    Raises:
        TypeError, ValueError: an argument or an environment variable is invalid.
        RuntimeError: there is a process group already; the backend cannot be used here; some ranks
            did not join (the message lists them).
        dpbench.errors.UsageError: rank 0 cannot listen at its port.
    """
    check_timeout("process_group", timeout)
    if dist.is_initialized():
        raise RuntimeError("process_group: there is a process group already; leave it first")
    if store is not None and init_method is not None:
        raise ValueError(
            f"process_group: got a store and init_method={init_method!r}; give one of them"
        )
    arguments = {"RANK": rank, "WORLD_SIZE": world_size}
    environ = {**os.environ, **{name: str(n) for name, n in arguments.items() if n is not None}}
    placement = Placement.read(environ)
    backend, device = _backend_and_device(backend, device, placement)
    rank, world_size = placement.rank, placement.world_size
    with _left_at_end(backend):
        try:
            if init_method is not None and init_method != "env://":
                store, *_ = next(rendezvous(init_method, rank, world_size, timeout=timeout))
            if store is None:
                store = open_store(placement, timeout)
            shared = PrefixStore("process_group", store)
            number = shared.add(f"groups of {rank}", 1)
            if wait_for_workers:
                wait_for_ranks(shared, rank, world_size, f"{backend}, {world_size} ranks", timeout)
        except RuntimeError as error:
            this = f"this is rank {rank} of {world_size}"
            raise RuntimeError(f"process_group: {error} ({this})") from error.__cause__
        started = perf_counter()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend,
            store=PrefixStore(f"group {number}", shared),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            # NCCL connects now, and to this device: by itself it may take that of another rank.
            device_id=device if BACKENDS[backend].cuda_only else None,
        )
        if wait_for_workers:  # a first collective opens channels and connections
            dist.all_reduce(torch.zeros(1, device=device))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        yield RankGroup(dist.group.WORLD, device, comm_init_seconds=perf_counter() - started)


@contextmanager
def rank_group(
    backend: str,
    size: int,
    device: torch.device = CPU,
    *,
    timeout: timedelta = COLLECTIVE_TIMEOUT,
) -> Iterator[RankGroup]:
    """Join the `process_group` that the ranks of a trial or a training need; leave it at the end.

    Ranks of a backend without one have it for control messages alone; a process that needs none is
    alone. Those of other backends than gloo have a second group for these messages, so that none is
    sent through what is measured. `device` is the one on which this rank computes, and `timeout`
    bounds every wait for another rank, in all groups.
    """
    has_group = backend in BACKENDS
    if not has_group and size == 1:
        yield RankGroup(device=device)
        return
    name, bound = (backend, device) if has_group else ("gloo", CPU)
    with process_group(name, timeout=timeout, device=bound) as ranks:
        beside = None if name == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
        yield replace(ranks, control=beside or ranks.control, device=device)


def enable_debug_logging() -> None:
    """Have torch.distributed and NCCL log more to stderr, from this process's next group on."""
    os.environ.update(DEBUG_VARIABLES)
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
    print(f"process_group: debug: {words}", file=sys.stderr)


def default_group_class(device: torch.device) -> str | None:
    """Name of torch's class behind the default group: "ProcessGroupGloo"; None without a group.

    Before torch 2.14 there is no public way to it, and a name of a backend has one class.
    """
    group = dist.group.WORLD
    if group is None:
        return None
    if type(group) is not dist.ProcessGroup:  # a backend in Python, such as shm
        return type(group).__name__
    if hasattr(dist, "get_backend_impl"):
        return type(dist.get_backend_impl(group, device)).__name__
    name = dist.get_backend()
    return {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}.get(name, name)


def _backend_and_device(
    backend: str | None, device: DeviceLike | None, placement: Placement
) -> tuple[str, torch.device]:
    """The backend and device of `process_group`; raises ValueError, or RuntimeError if the backend
    cannot be used here."""
    if backend is not None and backend not in BACKENDS:
        expected = ", ".join(BACKENDS)
        raise ValueError(f"process_group: got backend={backend!r}, expected one of {expected}")
    if device is None:
        wants_cuda = BACKENDS[backend].cuda_only if backend else torch.cuda.is_available()
        device = "cuda" if wants_cuda else "cpu"
    if str(device) == "cuda":
        device = local_gpu_index(placement.rank, placement.world_size, os.environ)
    chosen = parse_device(device)
    name = backend or usual_backend(chosen.type)
    if reason := missing_reason(name):
        raise RuntimeError(f"process_group: backend {name!r} cannot be used here: {reason}")
    if BACKENDS[name].cuda_only and chosen.type != "cuda":
        raise ValueError(f"process_group: {name} reduces CUDA tensors only, got device={chosen}")
    return name, chosen


@contextmanager
def _left_at_end(backend: str) -> Iterator[None]:
    """Leave the default group at the end of the context, if it was made.

    Destroying a group of NCCL waits for the other ranks. After an error they may be in a
    collective, and the wait would hide the error until the time limit, so the group is aborted.
    """
    try:
        yield
    except BaseException:
        if (group := dist.group.WORLD) is not None:
            group.abort() if BACKENDS[backend].cuda_only else dist.destroy_process_group()
        raise
    if dist.is_initialized():
        dist.destroy_process_group()
