"""The process group that torch.distributed uses for this backend."""
# torch's stub gives each method overloads that torch.distributed itself never calls, and some of
# its names exist in some versions only.
# mypy: disable-error-code="override, assignment, attr-defined, call-arg"

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm import exchanges, reductions
from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.descriptor import pack
from dpbench.parallel.shm.engine import engine
from dpbench.parallel.shm.group_base import GroupBase
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.operand import (
    Operand,
    apart,
    only,
    operand_per_rank,
    require_one_dtype,
    split_evenly,
    split_rows,
)
from dpbench.parallel.shm.operators import Operator, operator_for

# Seconds that a thread gets to leave an operation when the group is destroyed.
_LAST_STEP = 2.0


class Collectives(Protocol):
    """Collectives of a group on tensors that are 1-D, contiguous and in the process's memory.

    Attributes:
        rank, size: of this process in the group, and the number of ranks.
    """

    rank: int
    size: int

    def barrier(self) -> Steps[None]: ...

    def all_reduce(self, tensor: Tensor, operator: Operator) -> Steps[None]: ...

    def reduce(self, tensor: Tensor, operator: Operator, root: int) -> Steps[None]: ...

    def reduce_scatter(
        self, inputs: Sequence[Tensor], output: Tensor, operator: Operator
    ) -> Steps[None]: ...

    def broadcast(self, tensor: Tensor, root: int) -> Steps[None]: ...

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Steps[None]: ...

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Steps[None]: ...

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> Steps[None]: ...

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps[None]: ...


class LocalCollectives:
    """The collectives of ranks that share one memory."""

    def __init__(self, member: Member, arena: Arena) -> None:
        """
        Args:
            member: this rank.
            arena: memory in which `all_reduce` copies nothing.
        """
        self.rank, self.size = member.rank, member.size
        self._member = member
        self.all_reduce = partial(reductions.all_reduce, member, arena)
        self.reduce = partial(reductions.reduce, member)
        self.reduce_scatter = partial(reductions.reduce_scatter, member)
        self.broadcast = partial(exchanges.broadcast, member)
        self.all_gather = partial(exchanges.all_gather, member)
        self.gather = partial(exchanges.gather, member)
        self.scatter = partial(exchanges.scatter, member)
        self.all_to_all = partial(exchanges.all_to_all, member)

    def barrier(self) -> Steps[None]:
        yield from self._member.meet(pack("barrier"))


@not_compiled
class CollectiveGroup(GroupBase):
    """Turns the calls of torch.distributed into collectives of flat tensors.

    The methods without a docstring are those that `torch.distributed` calls, with its arguments.
    """

    def __init__(
        self,
        collectives: Collectives,
        member: Member,
        issuer: Issuer,
        store: Any,
        shared: Arena,
    ) -> None:
        """
        Args:
            collectives: what moves and reduces the data.
            member: this rank's place on its host.
            issuer, store: as in GroupBase.
            shared: memory in which tensors are reduced without being copied.
        """
        super().__init__(collectives.rank, collectives.size, issuer, store)
        self.shared = shared
        self._collectives = collectives
        self._member = member
        self._issue = issuer.start
        # Also if the group is dropped without destroy_process_group; at exit the kernel cleans up.
        self._close = weakref.finalize(self, member.close)
        self._close.atexit = False

    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        operand = Operand(only(tensors), write=True)
        operator = operator_for(opts.reduceOp, operand.flat.dtype)
        steps = self._collectives.all_reduce(operand.flat, operator)
        return self._start("all_reduce", steps, opts, [operand], [operand], tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        operands = [Operand(tensor, write=True) for tensor in tensors]
        steps = [
            self._collectives.all_reduce(o.flat, operator_for(opts.reduceOp, o.flat.dtype))
            for o in operands
        ]
        return self._start("all_reduce", _in_turn(steps), opts, operands, operands, tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        is_root = self._is_root(opts)
        operand = Operand(only(tensors), write=is_root)
        operator = operator_for(opts.reduceOp, operand.flat.dtype)
        steps = self._collectives.reduce(operand.flat, operator, opts.rootRank)
        targets = [operand] if is_root else []
        return self._start("reduce", steps, opts, [operand], targets, tensors)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        target = Operand(only(output_tensors), read=False, write=True)
        sources = operand_per_rank(only(input_tensors), None, self._collectives.size)
        flats = [source.flat for source in sources]
        require_one_dtype([target.flat, *flats], "reduce_scatter")
        own = flats[self._collectives.rank].numel()
        if target.flat.numel() != own:
            raise ValueError(
                f"the output has {target.flat.numel()} elements, expected {own} as the input for "
                f"this rank, {self._collectives.rank}"
            )
        steps = self._reduce_scatter(flats, target.flat, opts)
        return self._start("reduce_scatter", steps, opts, sources, [target], output_tensors)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        targets = [Operand(output, read=False, write=True) for output in outputs]
        sources = [Operand(tensor) for tensor in inputs]
        steps = [
            self._reduce_scatter(
                split_evenly(source.flat, target.flat, self._collectives.size), target.flat, opts
            )
            for target, source in zip(targets, sources, strict=True)
        ]
        return self._start("reduce_scatter", _in_turn(steps), opts, sources, targets, outputs)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        is_root = self._is_root(opts)
        operand = Operand(only(tensors), read=is_root, write=not is_root)
        steps = self._collectives.broadcast(operand.flat, opts.rootRank)
        sources, targets = ([operand], []) if is_root else ([], [operand])
        return self._start("broadcast", steps, opts, sources, targets, tensors)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        row = only(output_tensors)
        return self._all_gather([row], [only(input_tensors)], row, opts)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """Gather several tensors; `outputs[rank][i]` gets the i-th tensor of a rank."""
        counts = [len(row) for row in outputs]
        if counts != [len(inputs)] * self._collectives.size:
            raise ValueError(
                f"got lists of {counts} outputs, expected one list for each of the "
                f"{self._collectives.size} ranks with a tensor for each of the {len(inputs)} inputs"
            )
        rows = [list(row) for row in zip(*outputs, strict=True)]
        results = [tensor for row in outputs for tensor in row]
        return self._all_gather(rows, inputs, results, opts)

    def _all_gather(
        self, rows: list[list[Tensor]], inputs: list[Tensor], results: list[Tensor], opts: Any
    ) -> dist.Work:
        """Gather each input into a row with one tensor for each rank."""
        sources = [Operand(tensor) for tensor in inputs]
        targets = [
            operand_per_rank(row, source.flat, self._collectives.size, read=False, write=True)
            for row, source in zip(rows, sources, strict=True)
        ]
        flats = [[target.flat for target in row] for row in targets]
        steps = [
            self._collectives.all_gather(outputs, self._own(source.flat, outputs))
            for outputs, source in zip(flats, sources, strict=True)
        ]
        written = [target for row in targets for target in row]
        return self._start("all_gather", _in_turn(steps), opts, sources, written, results)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        sources = [Operand(tensor) for tensor in inputs]
        targets = [Operand(output, read=False, write=True) for output in outputs]
        flats = [
            split_evenly(target.flat, source.flat, self._collectives.size)
            for target, source in zip(targets, sources, strict=True)
        ]
        steps = [
            self._collectives.all_gather(parts, self._own(source.flat, parts))
            for parts, source in zip(flats, sources, strict=True)
        ]
        return self._start("all_gather", _in_turn(steps), opts, sources, targets, outputs)

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> dist.Work:
        source = Operand(only(input_tensors))
        targets = self._at_root(opts, output_tensors, source, read=False)
        flats = [target.flat for target in targets]
        own = self._own(source.flat, flats) if flats else source.flat
        steps = self._collectives.gather(flats, own, opts.rootRank)
        results = output_tensors[0] if output_tensors else []
        return self._start("gather", steps, opts, [source], targets, results)

    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> dist.Work:
        target = Operand(only(output_tensors), read=False, write=True)
        sources = self._at_root(opts, input_tensors, target, read=True)
        own = (self._collectives.rank, 0)
        flats = apart([source.flat for source in sources], [target.flat], own)
        steps = self._collectives.scatter(target.flat, flats, opts.rootRank)
        return self._start("scatter", steps, opts, sources, [target], output_tensors)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        size = self._collectives.size
        sources = operand_per_rank(inputs, None, size)
        targets = operand_per_rank(outputs, None, size, read=False, write=True)
        steps = self._all_to_all([t.flat for t in targets], [s.flat for s in sources])
        return self._start("all_to_all", steps, opts, sources, targets, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> dist.Work:
        source, target = Operand(input), Operand(output, read=False, write=True)
        size = self._collectives.size
        outputs = split_rows(target.flat, output.shape, output_splits, size)
        inputs = split_rows(source.flat, input.shape, input_splits, size)
        steps = self._all_to_all(outputs, inputs)
        return self._start("all_to_all", steps, opts, [source], [target], [output])

    # Names of these methods before torch 2.10.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def barrier(self, opts: Any) -> dist.Work:
        return self._start("barrier", self._collectives.barrier(), opts, [], [], [])

    def shutdown(self) -> None:
        """Leave the group; torch calls it in destroy_process_group.

        Pending operations fail, here and on the ranks that need this one for them.
        """
        self._member.broken = self._member.broken or "it has been destroyed"
        engine().poll(self._issuer.collectives, _LAST_STEP)
        self._close()

    def abort(self) -> None:
        """Leave the group; the same as `shutdown`."""
        self.shutdown()

    def _start(self, *arguments: Any) -> dist.Work:
        """Start the first collective; the next ones go to the issuer at once.

        Raises:
            ValueError: the group was to have other backends too. torch takes a backend written in
                Python for the whole group, and drops the others without a word.
        """
        config = dist.get_backend_config(self)
        if len({pair.partition(":")[2] for pair in config.split(",")}) > 1:
            raise ValueError(
                f"{self.getBackendName()} takes the tensors of all devices, got a group of "
                f"{config}; make two groups"
            )
        self._start = self._issue
        return self._issue(*arguments)

    def _is_root(self, opts: Any) -> bool:
        """Whether this rank is the root of a collective that has one."""
        root: int = opts.rootRank
        if not 0 <= root < self._collectives.size:
            raise ValueError(
                f"got root {root}, expected a rank of the group, below {self._collectives.size}"
            )
        return root == self._collectives.rank

    def _at_root(
        self, opts: Any, lists: list[list[Tensor]], like: Operand, *, read: bool
    ) -> list[Operand]:
        """Operands for the list that only the root of a gather or scatter gives."""
        if self._is_root(opts):
            return operand_per_rank(
                only(lists), like.flat, self._collectives.size, read=read, write=not read
            )
        if lists and lists[0]:
            raise ValueError(
                f"only the root, rank {opts.rootRank} of the group, may give a list of tensors"
            )
        return []

    def _own(self, source: Tensor, targets: list[Tensor]) -> Tensor:
        """The part of the flat targets that this rank contributes to a gather."""
        return apart([source], targets, (0, self._collectives.rank))[0]

    def _reduce_scatter(self, sources: list[Tensor], target: Tensor, opts: Any) -> Steps[None]:
        operator = operator_for(opts.reduceOp, target.dtype)
        separate = apart(sources, [target], (self._collectives.rank, 0))
        return self._collectives.reduce_scatter(separate, target, operator)

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> Steps[None]:
        require_one_dtype([*inputs, *outputs], "all_to_all")
        rank = self._collectives.rank
        return self._collectives.all_to_all(outputs, apart(inputs, outputs, (rank, rank)))


@not_compiled
class ShmProcessGroup(CollectiveGroup):
    """A process group of ranks on one Linux host, which exchange data through shared memory."""

    def __init__(self, member: Member, store: Any, timeout: timedelta) -> None:
        """Use `torch.distributed.init_process_group("shm")` or `new_group(backend="shm")`.

        Args:
            member: this rank.
            store: used by this group alone.
            timeout: for operations that name none.
        """
        issuer = Issuer(member, timeout)
        shared = Arena(member, issuer)
        super().__init__(LocalCollectives(member, shared), member, issuer, store, shared)


def arena_of(group: dist.ProcessGroup) -> Arena | None:
    """The shared memory of a group, or None if its tensors do not go through any."""
    return group.shared if isinstance(group, CollectiveGroup) else None


def _in_turn(operations: Sequence[Steps[None]]) -> Steps[None]:
    if len(operations) == 1:
        return operations[0]
    return _chain(operations)


def _chain(operations: Sequence[Steps[None]]) -> Steps[None]:
    for steps in operations:
        yield from steps
