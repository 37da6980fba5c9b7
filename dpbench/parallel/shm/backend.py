"""The process group that torch.distributed uses for this backend.

It subclasses `torch.distributed.ProcessGroup`, the one way to write a backend in Python. torch's
own class keeps a backend object per device; a group in Python has none, and torch takes it as it is
as long as it does not claim to have any.

The methods without a docstring are those that `torch.distributed` calls, with its arguments.
Before torch 2.13 it calls private methods for all_gather_into_tensor and reduce_scatter_tensor, so
shm lacks these two there.
"""

# torch's stub gives each method overloads that torch.distributed itself never calls, and some of
# its names exist in some versions only.
# mypy: disable-error-code="override, assignment, call-arg"

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compiled import leave_uncompiled
from dpbench.parallel.shm import algorithms, memory
from dpbench.parallel.shm.algorithms import op_name
from dpbench.parallel.shm.host_tensor import HostTensor, on_host
from dpbench.parallel.shm.member import ShmMember
from dpbench.parallel.shm.work_queue import Work, WorkQueue

# What callers of the group itself leave out; torch.distributed gives all options.
_SUM, _BARRIER = dist.AllreduceOptions(), dist.BarrierOptions()
_NO_TIMEOUT = timedelta(0)


class ShmProcessGroup(dist.ProcessGroup):
    """A process group of ranks on one Linux host, which exchange data through shared memory."""

    def __init__(self, member: ShmMember, store: Any, timeout: timedelta) -> None:
        """For `create_shm_group`, which torch.distributed calls; no other group has this store."""
        super().__init__(member.rank, member.size)
        leave_uncompiled(ShmProcessGroup)
        leave_uncompiled(WorkQueue, "run_until")
        self._member = member
        self._store = store
        self._timeout = timeout.total_seconds()
        self._name = ""
        self._queue = WorkQueue(member)
        self._is_checked = False

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate zeroed bytes for `allocate_group_zeros`; a collective."""
        member = self._member
        allocated: list[Tensor] = []

        def run() -> None:
            member.enter()
            allocated.append(member.memory.allocate(nbytes))

        self._start(f"allocate({nbytes} bytes)", run, _BARRIER, [], []).wait()
        return allocated[0]

    def allreduce(self, tensors: list[Tensor], opts: Any = _SUM) -> dist.Work:
        operand = on_host(_only(tensors), write=True)
        flat, op = operand.flat, op_name(opts.reduceOp, operand.flat.dtype)
        run = partial(algorithms.all_reduce, self._member, flat, op)
        return self._start(f"all_reduce({op}, {_kind(flat)})", run, opts, [operand], tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        root = self._root(opts)
        is_root = root == self._member.rank
        operand = on_host(_only(tensors), read=is_root, write=not is_root)
        run = partial(algorithms.broadcast, self._member, operand.flat, root)
        operation = f"broadcast({_kind(operand.flat)}, root {root})"
        return self._start(operation, run, opts, [operand], tensors)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        results, tensor = _only(output_tensors), _only(input_tensors)
        if results:
            self._require_one_each(results, tensor)
        operand = on_host(tensor)
        targets = [on_host(result, read=False, write=True) for result in results]
        flats = [target.flat for target in targets]
        run = partial(algorithms.all_gather, self._member, flats, operand.flat)
        operation = f"all_gather({_kind(operand.flat)})"
        return self._start(operation, run, opts, [operand, *targets], results)

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        is_root = self._root(opts) == self._member.rank
        return self.allgather(output_tensors if is_root else [[]], input_tensors, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        operand = on_host(_only(inputs))
        full = on_host(_only(outputs), read=False, write=True)
        parts = full.flat.tensor_split(self._member.size)
        self._require_one_each(parts, operand.flat)
        run = partial(algorithms.all_gather, self._member, parts, operand.flat, full.flat)
        operation = f"all_gather({_kind(operand.flat)})"
        return self._start(operation, run, opts, [operand, full], outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        full = on_host(_only(inputs))
        part = on_host(_only(outputs), read=False, write=True)
        self._require_one_each(full.flat.tensor_split(self._member.size), part.flat)
        op = op_name(opts.reduceOp, part.flat.dtype)
        run = partial(algorithms.reduce_scatter, self._member, full.flat, part.flat, op)
        operation = f"reduce_scatter({op}, {_kind(part.flat)})"
        return self._start(operation, run, opts, [full, part], outputs)

    # Functional collectives call what is coalesced with lists of one tensor.
    allreduce_coalesced = allreduce

    def barrier(self, opts: Any = _BARRIER) -> dist.Work:
        return self._start("barrier()", self._member.enter, opts, [], [])

    def send(self, *_: Any) -> dist.Work:
        """Raise NotImplementedError: data-parallel training needs none of these."""
        raise NotImplementedError(
            "shm has no messages between two ranks, all_to_all, reduce, scatter, nor "
            "reduce_scatter to lists; use gloo"
        )

    recv = recv_anysource = alltoall = alltoall_base = all_to_all_single = send
    reduce = scatter = reduce_scatter = send

    def shutdown(self) -> None:
        """Leave the group; torch calls it in destroy_process_group.

        Pending operations fail, here and on the ranks that need this one for them.
        """
        self._queue.close()
        self._member.close()

    abort = shutdown

    def getBackendName(self) -> str:  # noqa: N802 - torch's names, here and below
        return "shm"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def get_group_store(self) -> Any:
        return self._store

    def _start(
        self,
        operation: str,
        run: Callable[[], object],
        opts: Any,
        tensors: Sequence[HostTensor],
        results: list[Tensor],
    ) -> dist.Work:
        """Run a collective, after those that are queued; leave it to the group's thread if it is
        asynchronous.

        Args:
            operation, run, tensors, results: see Work.
            opts: torch's options, with `timeout` and `asyncOp`.

        Raises:
            RuntimeError: the group belongs to another process, or is broken.
            ValueError: torch was asked for a group with another backend beside this one.
        """
        self._member.require_usable()
        if not self._is_checked:
            # Not when the group is made, as torch does not tell then what else it was asked for.
            config = dist.get_backend_config(self)
            if not all(pair.endswith(":shm") for pair in config.split(",")):
                raise ValueError(
                    f"shm takes all devices, got a group of {config!r}; make two groups"
                )
            self._is_checked = True
        seconds = opts.timeout.total_seconds() if opts.timeout > _NO_TIMEOUT else self._timeout
        work = Work(operation, run, seconds, tensors, results, self._queue)
        self._queue.submit(work, later=opts.asyncOp)
        return work

    def _root(self, opts: Any) -> int:
        """The rank that sends or receives alone, which torch takes unchecked as a group's rank."""
        root, size = int(opts.rootRank), self._member.size
        if not 0 <= root < size:
            raise ValueError(f"got rank {root} as the root, expected one from 0 to {size - 1}")
        return root

    def _require_one_each(self, tensors: Sequence[Tensor], like: Tensor) -> None:
        """Check that there is one tensor for each rank, of the size and type of `like`."""
        size, got = self._member.size, [(tensor.numel(), tensor.dtype) for tensor in tensors]
        if got != [(like.numel(), like.dtype)] * size:
            raise ValueError(
                f"got {len(tensors)} tensors, expected one of {like.numel()} × {like.dtype} for "
                f"each of the {size} ranks"
            )


def _only(things: Sequence[Any]) -> Any:
    """The only element of a list; torch's lists date from several devices per process."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]


def _kind(tensor: Tensor) -> str:
    """Size and dtype of an operand for messages, as in "12 × torch.float32"."""
    return f"{tensor.numel()} × {tensor.dtype}"


def allocate_group_zeros(
    group: dist.ProcessGroup, numel: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A flat tensor of zeros, in memory in which its group reduces without copying if it has any.

    For tensors that are reduced in every step, such as buckets of gradients: an all-reduce on `shm`
    works in place if the tensors of all ranks lie at the same offset of what one call returned. It
    is a collective where the group is of `shm` and the device is the CPU, so call it in one order
    on all ranks, with the same arguments. The memory is freed with the tensor.

    Raises:
        OSError: this process cannot have so much memory. The group is ended, on all ranks.
        torch.distributed.DistBackendError: as for every collective.
    """
    if isinstance(group, ShmProcessGroup) and device.type == "cpu" and numel and group.size() > 1:
        with torch.inference_mode(False):
            return group.allocate(numel * dtype.itemsize).view(dtype)
    return torch.zeros(numel, dtype=dtype, device=device)


def create_shm_group(options: Any, backend_options: Any) -> ShmProcessGroup:
    """Create a group, as torch.distributed's callback for this backend; a collective.

    Raises:
        OSError: rank 0 could not create the memory.
        RuntimeError: a rank is missing; on every rank: they are not on one host, or one of them
            could not open the memory.
        ValueError: backend options are given, but this backend has none.
    """
    if backend_options is not None:
        raise ValueError(f"backend 'shm' has no options, got {backend_options!r}")
    if sys.platform != "linux":
        raise RuntimeError(f"backend 'shm' needs Linux (memfd), got {sys.platform}; use gloo")
    rank, size = options.group_rank, options.group_size
    names = [f"rank {number}" for number in options.global_ranks_in_group or range(size)]
    member, descriptor, problem = None, -1, ""
    with ExitStack() as on_error:
        if rank == 0:
            descriptor = memory.create_memory(size)
            on_error.callback(os.close, descriptor)
        identity = json.dumps([os.getpid(), descriptor, host_key(), os.uname().nodename])
        identities = map(json.loads, _texts_of_all("identity", identity, options))
        pids, descriptors, hosts, nodes = zip(*identities, strict=True)
        for name, host, node in zip(names, hosts, nodes, strict=True):
            if host != hosts[0]:
                raise RuntimeError(
                    "backend 'shm' joins processes of one host and one PID namespace, but "
                    f"{name} is on another host or in another container ({node}) than {names[0]} "
                    f"({nodes[0]}); use gloo or nccl"
                )
        try:
            if rank > 0:
                descriptor = memory.open_memory(pids[0], descriptors[0])
                on_error.callback(os.close, descriptor)
            member = ShmMember(memory.GroupMemory(size, rank, descriptor), pids, names)
        except (OSError, psutil.NoSuchProcess) as error:
            problem = f"{names[rank]}: {error}"
        # When this passes, all ranks have opened the memory, so rank 0 may leave.
        problems = "; ".join(filter(None, _texts_of_all("problem", problem, options)))
        if member is None or problems:
            raise RuntimeError(f"backend 'shm' could not share memory: {problems}")
        on_error.pop_all()
    return ShmProcessGroup(member, options.store, options.timeout)


def _texts_of_all(topic: str, text: str, options: Any) -> list[str]:
    """The texts of all ranks on a topic, in the store that only this group uses."""
    keys = [f"{topic}/{peer}" for peer in range(options.group_size)]
    options.store.set(keys[options.group_rank], text)
    options.store.wait(keys, options.timeout)
    return [options.store.get(key).decode() for key in keys]


def host_key() -> str:
    """Equal for processes of one host and one container, which can open each other's memory.

    The kernel's boot id is the same for all containers of a machine, the PID namespace is not.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
