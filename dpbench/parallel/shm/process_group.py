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

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compiled import leave_uncompiled
from dpbench.parallel.shm import collectives
from dpbench.parallel.shm.all_reduce import all_reduce
from dpbench.parallel.shm.allocation import Allocations
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.operand import Operand, only
from dpbench.parallel.shm.operators import operator_for
from dpbench.parallel.shm.queue import Queue, Work

# What callers of the group itself leave out; torch.distributed gives all options.
_SUM, _BARRIER = dist.AllreduceOptions(), dist.BarrierOptions()
_NO_TIMEOUT = timedelta(0)


class ShmProcessGroup(dist.ProcessGroup):
    """A process group of ranks on one Linux host, which exchange data through shared memory."""

    def __init__(self, member: Member, store: Any, timeout: timedelta) -> None:
        """Use `torch.distributed.init_process_group("shm")` or `new_group(backend="shm")`.

        Args:
            member: this rank.
            store: used by this group alone.
            timeout: for operations that name none.
        """
        super().__init__(member.rank, member.size)
        leave_uncompiled(ShmProcessGroup)
        leave_uncompiled(Queue, "run_until")
        self._member = member
        self._store = store
        self._timeout = timeout.total_seconds()
        self._name = ""
        self._allocations = Allocations(member)
        self._queue = Queue(member)
        self._is_checked = False

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate zeroed memory in which this group reduces without copying; see `zeros`."""
        allocated: list[Tensor] = []

        def run() -> None:
            allocated.append(self._allocations.allocate(nbytes))

        self._start("allocate", [run], _BARRIER, [], []).wait()
        return allocated[0]

    def allreduce(self, tensors: list[Tensor], opts: Any = _SUM) -> dist.Work:
        operands = [Operand(tensor, write=True) for tensor in tensors]
        runs = [self._all_reduce_of(operand, opts) for operand in operands]
        return self._start("all_reduce", runs, opts, operands, tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        root, tensor = self._root(opts), only(tensors)
        is_root = root == self._member.rank
        # The others keep theirs.
        operand = Operand(tensor if is_root else tensor.clone(), write=is_root)
        return self._start("reduce", [self._all_reduce_of(operand, opts)], opts, [operand], tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        root = self._root(opts)
        is_root = root == self._member.rank
        operand = Operand(only(tensors), read=is_root, write=not is_root)
        run = partial(collectives.broadcast, self._member, operand.flat, root)
        return self._start("broadcast", [run], opts, [operand], tensors)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        return self._gather("all_gather", only(output_tensors), only(input_tensors), opts)

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        is_root = self._root(opts) == self._member.rank
        results = only(output_tensors) if is_root else None
        return self._gather("gather", results, only(input_tensors), opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(tensor, read=False, write=True) for tensor in outputs]
        runs = [
            partial(
                collectives.all_gather,
                self._member,
                self._split_evenly(target, source),
                source.flat,
            )
            for source, target in zip(sources, targets, strict=True)
        ]
        return self._start("all_gather", runs, opts, [*sources, *targets], outputs)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        output, inputs = only(output_tensors), only(input_tensors)
        self._require_one_each(inputs, output)
        whole = torch.cat([tensor.reshape(-1) for tensor in inputs])
        return self.reduce_scatter_single(output, whole, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(tensor, read=False, write=True) for tensor in outputs]
        runs = [
            partial(
                collectives.reduce_scatter,
                self._member,
                self._split_evenly(source, target),
                target.flat,
                operator_for(opts.reduceOp, target.flat.dtype),
            )
            for source, target in zip(sources, targets, strict=True)
        ]
        return self._start("reduce_scatter", runs, opts, [*sources, *targets], outputs)

    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        output, root = only(output_tensors), self._root(opts)
        operands = [Operand(output, read=False, write=True)]
        if root == self._member.rank:
            inputs = only(input_tensors)
            self._require_one_each(inputs, output)
            operands.append(Operand(torch.cat([tensor.reshape(-1) for tensor in inputs])))
        run = partial(
            collectives.scatter, self._member, *(operand.flat for operand in operands), root=root
        )
        return self._start("scatter", [run], opts, operands, output_tensors)

    # Other names of these, used before torch 2.13 or by its C++ code (functional collectives).
    allreduce_coalesced = allreduce
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = _BARRIER) -> dist.Work:
        return self._start("barrier", [partial(collectives.barrier, self._member)], opts, [], [])

    def send(self, *_: Any) -> dist.Work:
        """Raise NotImplementedError: data-parallel training needs none of these."""
        raise NotImplementedError(
            "shm has no messages between two ranks and no all_to_all; use gloo"
        )

    recv = recv_anysource = alltoall = alltoall_base = all_to_all_single = send

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
        name: str,
        runs: Sequence[Callable[[], object]],
        opts: Any,
        operands: Sequence[Operand],
        results: list[Tensor],
    ) -> dist.Work:
        """Run collectives if they are synchronous and nothing is queued, otherwise queue them.

        Args:
            name: the collective's name, for messages.
            runs: one or more collectives that are one operation to the caller.
            opts: torch's options, with `timeout` and `asyncOp`.
            operands: all that they read or write.
            results: value of the operation's future.

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
        work = Work(name, runs, seconds, operands, results, self._queue)
        self._queue.start(work, later=opts.asyncOp)
        return work

    def _gather(
        self, name: str, results: list[Tensor] | None, tensor: Tensor, opts: Any
    ) -> dist.Work:
        """Gather a tensor of each rank into `results`, which are None where none are wanted."""
        if results is not None:
            self._require_one_each(results, tensor)
        source = Operand(tensor)
        targets = [Operand(result, read=False, write=True) for result in results or ()]
        outputs = [target.flat for target in targets]
        run = partial(collectives.all_gather, self._member, outputs, source.flat)
        return self._start(name, [run], opts, [source, *targets], results or [])

    def _all_reduce_of(self, operand: Operand, opts: Any) -> Callable[[], object]:
        """The all-reduce of one operand."""
        operator = operator_for(opts.reduceOp, operand.flat.dtype)
        return partial(all_reduce, self._member, self._allocations, operand.flat, operator)

    def _root(self, opts: Any) -> int:
        """The rank that sends or receives alone, which torch takes unchecked as a group's rank."""
        root, size = int(opts.rootRank), self._member.size
        if not 0 <= root < size:
            raise ValueError(f"got rank {root} as the root, expected one from 0 to {size - 1}")
        return root

    def _require_one_each(self, tensors: Sequence[Tensor], like: Tensor) -> None:
        """Check that there is one tensor for each rank, of the size and type of `like`."""
        size, expected = self._member.size, (like.numel(), like.dtype)
        if [(tensor.numel(), tensor.dtype) for tensor in tensors] != [expected] * size:
            raise ValueError(
                f"got {len(tensors)} tensors, expected one of {expected[0]} × {expected[1]} for "
                f"each of the {size} ranks"
            )

    def _split_evenly(self, whole: Operand, part: Operand) -> list[Tensor]:
        """Split the operand of all ranks into one part for each, like `part`."""
        size, all_, one = self._member.size, whole.flat, part.flat
        if (all_.numel(), all_.dtype) != (size * one.numel(), one.dtype):
            raise ValueError(
                f"got {all_.numel()} × {all_.dtype} for all ranks and {one.numel()} × {one.dtype} "
                f"for one, expected {size} times as many elements, of the same type"
            )
        return list(all_.view(size, one.numel()).unbind())


def zeros(group: dist.ProcessGroup, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
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
