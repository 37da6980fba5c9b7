"""The reducer: averages each bucket as soon as all its gradients are there.

forward ─ close_last_backward            errors of the last backward
        ├ ensure_buckets                 the buckets, also in a new order
        └ arm                            a new ReducingBackward: hooks count from now on
backward ─ hook_fired, per parameter     a gradient fewer is pending in its bucket
         ├ nothing pending in a bucket   once all earlier ones are ready, pack it and send it
         └ _end_of_backward              wait for all buckets, finalize them

A class in `usage` says how often each hook fires before its gradient is ready, and whether the end
of backward sends what is still pending, with zeros for missing gradients. A class in `averaging`
averages a bucket. Gradients from `no_sync` are in `.grad` already, so the next backward that
reduces averages them too. Sparse gradients are exchanged at the end. Without `overlap`, all buckets
are sent once nothing is pending in any of them.

Where the backward of rank A left parameters out and that of rank B did not, B waits for the buckets
that A has not sent. On a CPU and without a communication hook they meet like this; elsewhere only A
raises, and the wait of B ends by its timeout:

A, in its next forward    sends the other buckets, as zeros, with the flag in the last one
B, at its end             gets all buckets, and finds the flag
both                      gather the names of missing parameters, and raise UnfinishedReduction
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.averaging import AllReduceAverager, BucketAverager
from dpbench.parallel.ddp.buckets import Bucket, Reduction, assign_buckets
from dpbench.parallel.ddp.sparse import average_rows
from dpbench.parallel.ddp.usage import GradientUsage
from dpbench.parallel.groups import Wait, gather_values
from dpbench.parallel.torch_private import at_end_of_backward
from dpbench.parallel.tree import map_tensors, tensors


class UnfinishedReduction(RuntimeError):
    """A backward left out parameters, so that not all gradients were reduced.

    Attributes:
        names: of the parameters that got no gradient on some rank; empty if that is not known.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = names


@dataclass(kw_only=True, slots=True, eq=False)
class ReducingBackward:
    """One backward that reduces, from the forward that arms it to its end.

    A rank that has no data left runs no forward and no backward; `reduce_zeros` makes one for it,
    to send zeros where the other ranks send their gradients.
    """

    reductions: Sequence[Reduction]
    """One for each bucket, in the order in which they are sent."""
    divisor: int
    """What sums over the ranks are divided by: how many ranks have data, or had at first."""
    has_data: bool = True
    """False on a rank that takes part with zeros, as it has no batch left."""
    waits_for_end: bool = False
    """Whether only the end of backward tells which gradients are missing."""
    fires_left: list[int] = field(default_factory=list)
    """How often the hook of each parameter still has to fire."""
    fired: list[int] = field(default_factory=list)
    """Indices of the parameters whose hooks fired, in that order."""
    waits: list[Wait] = field(default_factory=list)
    """One for each of the reductions that have been sent."""
    end_is_queued: bool = False
    """Saves the hooks that follow a call. To queue the end twice is harmless: it does nothing once
    the backward has been finished."""

    @property
    def is_sent(self) -> bool:
        """Whether all reductions have been sent."""
        return len(self.waits) == len(self.reductions)

    @property
    def last(self) -> Reduction:
        """The reduction that carries the flag of a rank that aborts."""
        return self.reductions[-1]


class Reducer:
    """Averages the gradients of some parameters during backward.

    Attributes:
        averager: averages buckets; to be set before the first forward.
        reduced_bytes: bytes of dense gradients reduced since construction.
        collectives: that averaged dense gradients since construction.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        sparse: Collection[str],
        group: dist.ProcessGroup,
        usage: GradientUsage,
        *,
        caps: Sequence[int],
        as_view: bool,
        overlap: bool,
    ) -> None:
        """
        Args:
            named: the parameters to reduce, each once; the same on all ranks.
            sparse: the names of those with sparse gradients.
            usage: which gradients a backward gives.
            caps: in bytes, as from `caps_in_bytes`.
            as_view, overlap: see DistributedDataParallel.
        """
        self.reduced_bytes = self.collectives = 0
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._sparse = {i for i, name in enumerate(self._names) if name in sparse}
        self._group, self._size, self._caps = group, dist.get_world_size(group), caps
        self._as_view, self._overlap = as_view, overlap
        self._usage = usage
        self.averager: BucketAverager = AllReduceAverager(group)
        # The buckets, made before the first forward, and again in the order of the first backward.
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, int] = {}
        self._order = list(range(len(named)))[::-1]
        self._learns_order, self._new_order = usage.keeps_order, list[int]()
        self._backward: ReducingBackward | None = None  # what hooks count for
        self._lock = threading.RLock()  # autograd has a thread for each device
        # Parameters with a gradient since the last reduction: no_sync adds to them.
        self._used_since_reduction: set[int] = set()
        # A parameter does not keep its node, and a hook is gone with it.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._parameters]
        alive = weakref.ref(self)
        for index, node in enumerate(self._nodes):
            handle = node.register_hook(partial(_hook_fired, alive, index))
            # The parameters outlive the wrapper, and a module can be wrapped again.
            weakref.finalize(self, handle.remove).atexit = False
        # _StartOfBackward leads to it: a backward that accumulates gradients reaches it before the
        # parameters, and autograd.grad does not reach it.
        self._leaf = torch.zeros((), device=self._parameters[0].device, requires_grad=True)
        self._leaf.register_post_accumulate_grad_hook(partial(_backward_started, alive))  # type: ignore[no-untyped-call]

    def close_last_backward(self) -> None:
        """Store what the last backward has sent, if it failed after its last gradient.

        Raises:
            UnfinishedReduction: it has not reached all parameters; see the head of this file.
        """
        backward = self._backward
        if backward is None or not backward.fired:
            return
        if backward.is_sent:
            self._wait_and_store(backward)
            return
        self._backward, self._used_since_reduction = None, set()
        if self._abort_reaches_others:
            backward.has_data = False
            backward.last.abort()
            self._send_up_to(backward, len(backward.reductions))
            for wait in backward.waits:
                wait()
            backward.last.is_aborted()  # resets it
        self._raise_unfinished([i for i, count in enumerate(backward.fires_left) if count > 0])

    def ensure_buckets(self, *, reorder: bool) -> None:
        """Make the buckets; with `reorder` once more, in the order of rank 0's first backward.

        Both are collectives: `shm` allocates memory, and the order goes from rank 0 to all. In eval
        mode `reorder` is False, so that one rank can evaluate alone.
        """
        if reorder and self._new_order:
            agreed = torch.tensor(self._new_order, device=self._parameters[0].device)
            dist.broadcast(agreed, group=self._group, group_src=0)
            self._order, self._new_order = agreed.tolist(), []
        elif self._buckets:
            return
        self._backward, self._buckets = None, []  # before the new ones need memory
        dense = [index for index in self._order if index not in self._sparse]
        assigned = assign_buckets(dense, self._parameters, self._caps)
        make = partial(Bucket, parameters=self._parameters, group=self._group)
        for number, indices in enumerate(assigned):
            is_last = number == len(assigned) - 1
            self._buckets.append(
                make(indices, number=number, is_last=is_last, as_view=self._as_view)
            )
        if self._sparse:
            # It has no gradients: it is ready when they are, and has the flag.
            self._buckets.append(make(sorted(self._sparse), number=len(assigned), is_empty=True))
        self._bucket_of = {i: bucket.number for bucket in self._buckets for i in bucket.indices}

    def keep_buckets(self) -> Sequence[Bucket]:
        """Make the buckets if there are none, and never in another order; a collective."""
        self._learns_order = False
        self.ensure_buckets(reorder=False)
        return self._buckets

    def arm(self, output: Any, divisor: int | None = None) -> Any:
        """Have the next backward reduce; returns the forward's output, to hand to the user.

        The sums over the ranks are divided by `divisor`; None means the number of ranks.
        """
        expected = self._usage.expected_fires()
        reductions = []
        for bucket in self._buckets:
            fires = [expected[index] for index in bucket.indices]
            reductions.append(Reduction(bucket, len(fires) - fires.count(0)))
        self._backward = ReducingBackward(
            reductions=reductions,
            divisor=divisor or self._size,
            waits_for_end=self._usage.waits_for_end,
            fires_left=expected,
        )
        return self._with_start(output) if self._usage.waits_for_end else output

    @property
    def _abort_reaches_others(self) -> bool:
        """Whether the flag of a rank that aborts reaches the others: a hook does not carry it,
        and to read it on CUDA would wait for the device."""
        return self.averager.sends_flag and self._parameters[0].is_cpu

    def _with_start(self, output: Any) -> Any:
        """The output with copies of its tensors behind a node that starts each backward.

        A tensor that the loss does not use passes on "no gradient", at which hooks fire too.
        """
        with_graph = [tensor for tensor in tensors(output) if tensor.requires_grad]
        if not with_graph:
            return output
        copies = _StartOfBackward.apply(self._leaf, *with_graph)  # type: ignore[no-untyped-call]
        replaced = {id(old): new for old, new in zip(with_graph, copies, strict=True)}
        return map_tensors(lambda tensor: replaced.get(id(tensor), tensor), output)

    def hook_fired(self, index: int, has_gradient: bool) -> None:
        """Note that a parameter's hook has fired, after its gradient was accumulated if it has one.

        It runs once for each parameter: what it does is most of the time that the reducer takes.

        Raises:
            RuntimeError: it fires more often in this backward than expected, as with a reentrant
                checkpoint.
        """
        if has_gradient:
            self._used_since_reduction.add(index)
        backward = self._backward
        if backward is None or (self._usage.needs_gradient and not has_gradient):
            return
        backward.fired.append(index)
        if backward.waits_for_end and not backward.end_is_queued:
            self.queue_end()  # the loss is not of the output
        left = backward.fires_left
        left[index] -= 1
        if left[index] > 0:
            return
        if left[index] < 0:
            raise RuntimeError(
                "Expected to mark a variable ready only once. Parameter at index "
                f"{index} with name {self._names[index]} has been marked as ready twice: a "
                "reentrant checkpoint uses it several times (static_graph=True allows that), it is "
                "used outside of the forward, or the graph has changed in spite of static_graph."
            )
        # Buckets have one device, so only one thread counts for a bucket.
        reduction = backward.reductions[self._bucket_of[index]]
        reduction.pending -= 1
        if has_gradient and reduction.bucket.copies_early:
            reduction.copy_early(index, self.averager.scale(backward.divisor))
        if not reduction.pending:
            with self._lock:
                self._send_ready(backward)

    def queue_end(self) -> None:
        """Have the running backward call `_end_of_backward`, at a node or hook of it."""
        if self._backward is not None:
            self._backward.end_is_queued = True
            at_end_of_backward(self._end_of_backward)

    def reduce_zeros(self) -> None:
        """Take part in a reduction for a rank that has no data left."""
        reductions = [Reduction(bucket, 0) for bucket in self._buckets]
        backward = ReducingBackward(reductions=reductions, divisor=self._size, has_data=False)
        self._used_since_reduction = set()
        self._send_up_to(backward, len(reductions))
        self._wait_and_store(backward)

    def _send_ready(self, backward: ReducingBackward) -> None:
        """Send buckets that are ready in their order, which is the same on all ranks."""
        reductions, ready = backward.reductions, len(backward.waits)
        while ready < len(reductions) and not reductions[ready].pending:
            ready += 1
        if ready < len(reductions) and not self._overlap:
            return
        self._send_up_to(backward, ready)
        if backward.is_sent and not backward.waits_for_end:
            at_end_of_backward(self._end_of_backward)

    def _send_up_to(self, backward: ReducingBackward, end: int) -> None:
        """Send all reductions before the one with the number `end`."""
        for reduction in backward.reductions[len(backward.waits) : end]:
            bucket = reduction.bucket
            if backward.has_data:
                without_gradient = set(bucket.indices).difference(self._used_since_reduction)
                reduction.pack(self.averager.scale(backward.divisor), without_gradient)
            else:
                reduction.clear()
            try:
                backward.waits.append(self.averager.start(bucket))
            except BaseException:
                self._backward = None  # no error of this backward concerns the next forward
                raise
            self.collectives += bool(bucket.parameters)
            self.reduced_bytes += bucket.nbytes

    def _end_of_backward(self) -> None:
        """Send the buckets that are not ready, with zeros for missing gradients, and finish."""
        with self._lock:
            backward = self._backward
            if backward is None:
                return
            self._usage.observe(backward.fired)
            self._send_up_to(backward, len(backward.reductions))
            self._wait_and_store(backward)

    def _wait_and_store(self, backward: ReducingBackward) -> None:
        """Wait for all buckets, and put the averages into the gradients.

        Raises:
            RuntimeError: another rank has aborted.
        """
        self._backward = None
        for wait in backward.waits:
            wait()
        if backward.last.is_aborted():
            self._raise_unfinished([])
        used = self._usage.used_anywhere(self._used_since_reduction)
        for reduction in backward.reductions:
            reduction.finalize(used)
        if tables := {index: self._parameters[index] for index in sorted(self._sparse)}:
            averages = average_rows(
                tables, backward.divisor, self._group, has_data=backward.has_data
            )
            for index, average in averages.items():
                if index in used:
                    tables[index].grad = average
        self._used_since_reduction = set()
        if self._learns_order:
            self._learns_order = False
            # A gradient that is accumulated several times is ready at the last of them.
            last_first = dict.fromkeys(reversed(backward.fired))
            missing = [index for index in self._order if index not in last_first]
            self._new_order = [*reversed(last_first), *missing]

    def _raise_unfinished(self, missing: Sequence[int]) -> NoReturn:
        """Raise UnfinishedReduction for the parameters that are missing on any rank.

        A collective if `_abort_reaches_others`: a rank whose own `missing` are none takes part.
        """
        by_rank = {dist.get_rank(self._group): list(missing)}
        if self._abort_reaches_others:
            by_rank = dict(enumerate(gather_values(list(missing), self._group)))
        where = "; ".join(
            f"rank {rank}: " + ", ".join(f"{index} ({self._names[index]})" for index in indices)
            for rank, indices in by_rank.items()
            if indices
        )
        # In the words of torch's class, which users search for.
        raise UnfinishedReduction(
            "Expected to have finished reduction in the prior iteration before starting a new one. "
            "This error indicates that your module has parameters that were not used in producing "
            "loss. You can enable unused parameter detection by passing the keyword argument "
            "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by "
            "making sure all `forward` function outputs participate in calculating loss. With "
            "static_graph=True, the training graph has changed in this iteration. Parameter "
            f"indices which did not receive grad for {where}",
            names=[self._names[index] for index in sorted(set(chain(*by_rank.values())))],
        )


def _hook_fired(
    alive: weakref.ref[Reducer], index: int, _: object, accumulated: tuple[Tensor | None, ...]
) -> None:
    if (reducer := alive()) is not None:
        reducer.hook_fired(index, accumulated[0] is not None)


def _backward_started(alive: weakref.ref[Reducer], leaf: Tensor) -> None:
    leaf.grad = None
    if (reducer := alive()) is not None:
        reducer.queue_end()


class _StartOfBackward(torch.autograd.Function):
    """A node behind the output of a forward, which backward reaches first, and from it a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.device = leaf.device
        # Copies, so that a loss may change them in place.
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (torch.zeros((), device=ctx.device), *gradients)
