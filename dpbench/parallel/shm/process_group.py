"""The process group that torch.distributed uses for this backend.

It subclasses `torch.distributed.ProcessGroup`, the one way to write a backend in Python. torch's
own class keeps a backend object per device; a group in Python has none, and torch versions from 2.8
on take it as it is as long as it does not claim to have any.

The methods without a docstring are those that `torch.distributed` calls, with its arguments.
"""

# torch's stub gives each method overloads that torch.distributed itself never calls, and some of
# its names exist in some versions only.
# mypy: disable-error-code="override, assignment, call-arg"

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import collectives
from dpbench.parallel.shm.all_reduce import all_reduce
from dpbench.parallel.shm.allocation import Allocations
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.operand import (
    Operand,
    only,
    split_evenly,
    split_rows,
)
from dpbench.parallel.shm.operators import operator_for
from dpbench.parallel.shm.queue import FINISHED, NO_TIMEOUT, Operation, Queue
from dpbench.parallel.torch_private import BEFORE_2_10, not_compiled

# What callers of the group itself leave out; torch.distributed gives all options.
_SUM, _BARRIER = dist.AllreduceOptions(), dist.BarrierOptions()


@not_compiled
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
        self._member = member
        self._store = store
        self._timeout = timeout.total_seconds()
        self._name = ""
        self._is_checked = False
        self._allocations = Allocations(member)
        self._queue = Queue(member)
        # Also if the group is dropped without destroy_process_group; at exit the kernel cleans up.
        self._close = weakref.finalize(self, member.close)
        self._close.atexit = False

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate memory in which this group reduces without copying; see `shm.zeros`.

        Args:
            nbytes: size of this rank's part, 1 or more; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed.

        Raises:
            OSError: on every rank: one of them could not get the memory.
            torch.distributed.DistBackendError: as for every collective.
        """
        allocated: list[Tensor] = []

        def run() -> None:
            allocated.append(self._allocations.allocate(nbytes))

        options = dist.BarrierOptions()
        options.asyncOp = False
        self._start("allocate", run, options, [], [], []).wait()
        return allocated[0]

    def allreduce(self, tensors: list[Tensor], opts: Any = _SUM) -> dist.Work:
        operands = [Operand(tensor) for tensor in tensors]
        operators = [operator_for(opts.reduceOp, operand.flat.dtype) for operand in operands]

        def run() -> None:
            for operand, operator in zip(operands, operators, strict=True):
                all_reduce(self._member, self._allocations, operand.flat, operator)

        return self._start("all_reduce", run, opts, operands, operands, tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        operand, root = Operand(only(tensors)), self._root(opts)
        operator = operator_for(opts.reduceOp, operand.flat.dtype)
        run = partial(
            collectives.reduce, self._member, self._allocations, operand.flat, operator, root
        )
        targets = [operand] if root == self._member.rank else []
        return self._start("reduce", run, opts, [operand], targets, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        root = self._root(opts)
        is_root = root == self._member.rank
        operand = Operand(only(tensors), read=is_root)
        run = partial(collectives.broadcast, self._member, operand.flat, root)
        targets = [] if is_root else [operand]
        return self._start("broadcast", run, opts, [operand], targets, tensors)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        source, results = Operand(only(input_tensors)), only(output_tensors)
        targets = self._per_rank(results, source, read=False)
        outputs = [target.flat for target in targets]
        run = partial(collectives.all_gather, self._member, outputs, source.flat)
        return self._start("all_gather", run, opts, [source, *targets], targets, results)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(tensor, read=False) for tensor in outputs]
        pairs = [
            (split_evenly(target, source, self._member.size), source.flat)
            for target, source in zip(targets, sources, strict=True)
        ]

        def run() -> None:
            for parts, flat in pairs:
                collectives.all_gather(self._member, parts, flat)

        return self._start("all_gather", run, opts, [*sources, *targets], targets, outputs)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        target = Operand(only(output_tensors), read=False)
        sources = self._per_rank(only(input_tensors), target)
        operator = operator_for(opts.reduceOp, target.flat.dtype)
        inputs = [source.flat for source in sources]
        run = partial(collectives.reduce_scatter, self._member, inputs, target.flat, operator)
        return self._start(
            "reduce_scatter", run, opts, [*sources, target], [target], output_tensors
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(tensor, read=False) for tensor in outputs]
        triples = [
            (
                split_evenly(source, target, self._member.size),
                target.flat,
                operator_for(opts.reduceOp, target.flat.dtype),
            )
            for target, source in zip(targets, sources, strict=True)
        ]

        def run() -> None:
            for parts, flat, operator in triples:
                collectives.reduce_scatter(self._member, parts, flat, operator)

        return self._start("reduce_scatter", run, opts, [*sources, *targets], targets, outputs)

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        source, root = Operand(only(input_tensors)), self._root(opts)
        results = self._of_root(output_tensors, root)
        targets = self._per_rank(results, source, read=False) if results else []
        outputs = [target.flat for target in targets]
        run = partial(collectives.gather, self._member, outputs, source.flat, root)
        return self._start("gather", run, opts, [source, *targets], targets, results)

    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        target, root = Operand(only(output_tensors), read=False), self._root(opts)
        given = self._of_root(input_tensors, root)
        sources = self._per_rank(given, target) if given else []
        inputs = [source.flat for source in sources]
        run = partial(collectives.scatter, self._member, target.flat, inputs, root)
        return self._start("scatter", run, opts, [*sources, target], [target], output_tensors)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(tensor, read=False) for tensor in outputs]
        flats = [target.flat for target in targets], [source.flat for source in sources]
        return self._all_to_all(*flats, opts, sources, targets, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> dist.Work:
        source, target = Operand(input), Operand(output, read=False)
        size = self._member.size
        outputs = split_rows(target, output.shape, output_splits, size)
        inputs = split_rows(source, input.shape, input_splits, size)
        return self._all_to_all(outputs, inputs, opts, [source], [target], [output])

    # Names of the same, before torch 2.10 or in its C++ code, such as functional collectives.
    allreduce_coalesced = allreduce
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = _BARRIER) -> dist.Work:
        return self._start("barrier", partial(collectives.barrier, self._member), opts, [], [], [])

    def send(self, *_: Any) -> dist.Work:
        """Messages between two ranks are not offered."""
        raise NotImplementedError(
            "shm has no messages between two ranks, only collectives; use gloo"
        )

    recv = recv_anysource = send

    def shutdown(self) -> None:
        """Leave the group; torch calls it in destroy_process_group.

        Pending operations fail, here and on the ranks that need this one for them.
        """
        self._queue.close()
        self._close()

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
        run: Callable[[], None],
        opts: Any,
        sources: Sequence[Operand],
        targets: Sequence[Operand],
        results: list[Tensor],
    ) -> dist.Work:
        """Run a collective if it is synchronous and nothing is queued, otherwise queue it.

        Args:
            name: the collective's name, for messages.
            run: the collective.
            opts: torch's options, with `timeout` and `asyncOp`.
            sources: operands that it reads, and those that have to wait for their device.
            targets: operands that it writes.
            results: value of its future.

        Raises:
            RuntimeError: the group belongs to another process, or is broken.
            ValueError: torch was asked for a group with another backend beside this one.
        """
        self._member.require_usable()
        if not self._is_checked:
            # Not when the group is made, as torch does not tell then which other backends it has
            # been asked for, and drops them without a word.
            config = dist.get_backend_config(self)
            if any(pair.partition(":")[2] != "shm" for pair in config.split(",")):
                raise ValueError(
                    f"shm takes the tensors of all devices, got a group of {config!r}; make two "
                    "groups"
                )
            self._is_checked = True
        seconds = opts.timeout.total_seconds() if opts.timeout > NO_TIMEOUT else self._timeout
        operation = Operation(name, run, seconds, sources, targets)
        if not opts.asyncOp and self._queue.run(operation):
            return FINISHED
        return self._queue.submit(operation, results)

    def _all_to_all(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any,
        sources: list[Operand],
        targets: list[Operand],
        results: list[Tensor],
    ) -> dist.Work:
        for tensors in (outputs, inputs):
            if len(tensors) != self._member.size:
                raise ValueError(
                    f"got {len(tensors)} tensors, expected one for each of the "
                    f"{self._member.size} ranks"
                )
        if len({tensor.dtype for tensor in (*outputs, *inputs)}) > 1:
            raise ValueError("got tensors of several types in all_to_all, expected one")
        run = partial(collectives.all_to_all, self._member, outputs, inputs)
        return self._start("all_to_all", run, opts, [*sources, *targets], targets, results)

    def _per_rank(
        self, tensors: Sequence[Tensor], like: Operand, *, read: bool = True
    ) -> list[Operand]:
        """Operands for a list with one tensor per rank, all of the size and type of `like`."""
        size, expected = self._member.size, (like.flat.numel(), like.flat.dtype)
        found = {(tensor.numel(), tensor.dtype) for tensor in tensors}
        if len(tensors) != size or found != {expected}:
            raise ValueError(
                f"got {len(tensors)} tensors of {', '.join(f'{n} × {t}' for n, t in found)}, "
                f"expected one of {expected[0]} × {expected[1]} for each of the {size} ranks"
            )
        return [Operand(tensor, read=read) for tensor in tensors]

    def _root(self, opts: Any) -> int:
        """The root of a collective that has one."""
        root: int = opts.rootRank
        if not 0 <= root < self._member.size:
            raise ValueError(
                f"got root {root}, expected a rank of the group, below {self._member.size}"
            )
        return root

    def _of_root(self, lists: list[list[Tensor]], root: int) -> list[Tensor]:
        """The list that only the root of a gather or scatter gives, empty elsewhere."""
        if root == self._member.rank:
            given: list[Tensor] = only(lists)
            return given
        if lists and lists[0]:
            raise ValueError(f"only the root, rank {root} of the group, may give a list of tensors")
        return []


for _name, _before in BEFORE_2_10.items():
    setattr(ShmProcessGroup, _before, getattr(ShmProcessGroup, _name))


def zeros(group: dist.ProcessGroup, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A flat tensor of zeros, in memory in which its group reduces without copying if it has any.

    For tensors that are reduced in every step, such as buckets of gradients: an all-reduce on `shm`
    works in place if the tensors of all ranks lie at the same offset of what one call returned. It
    is a collective where the group is of `shm` and the device is the CPU, so call it in one order
    on all ranks, with the same arguments. The memory is freed with the tensor.

    Raises:
        OSError: on every rank: one of them could not get the memory.
        torch.distributed.DistBackendError: as for every collective.
    """
    if isinstance(group, ShmProcessGroup) and device.type == "cpu" and numel and group.size() > 1:
        with torch.inference_mode(False):
            return group.allocate(numel * dtype.itemsize).view(dtype)
    return torch.zeros(numel, dtype=dtype, device=device)
