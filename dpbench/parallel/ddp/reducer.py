"""The reducer: averages each bucket as soon as all its gradients are there.

forward ─ close_last_backward            errors of the last backward
        ├ ensure_buckets                 the buckets, also in a new order
        └ arm                            a new ReducingBackward: hooks count from now on
backward ─ hook_fired, per parameter     a gradient fewer is pending in its bucket
         ├ nothing pending in a bucket   once all earlier ones are ready, pack it and send it
         └ _end_of_backward              send the rest, wait for all buckets, finalize them

A class in `usage` says how often each hook fires before its gradient is ready, and whether the end
of backward sends what is still pending, with zeros for missing gradients; `unfinished` has what
happens where it does not. A class in `averaging` averages a bucket. Gradients from `no_sync` are in
`.grad` already, so the next backward that reduces averages them too. Sparse gradients are exchanged
at the end; the last bucket waits for them. Without `overlap`, the end sends all buckets.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.averaging import AllReduceAverager, BucketAverager
from dpbench.parallel.ddp.buckets import Bucket, BucketOrder, Reduction, assign_buckets
from dpbench.parallel.ddp.sparse import average_rows
from dpbench.parallel.ddp.unfinished import AbortFlag, unfinished_reduction
from dpbench.parallel.ddp.usage import GradientUsage
from dpbench.parallel.groups import Wait
from dpbench.parallel.torch_private import at_end_of_backward
from dpbench.parallel.tree import map_tensors, tensors


@dataclass(kw_only=True, slots=True, eq=False)
class ReducingBackward:
    """One backward that reduces, from the forward that arms it to its end.

    A rank that has no data left runs no forward and no backward; `reduce_zeros` makes one for it,
    to send zeros where the other ranks send their gradients.
    """

    reductions: Sequence[Reduction]
    """One for each bucket, in the order in which they are sent."""
    divisor: int | None = None
    """What sums over the ranks are divided by: how many ranks have data, or had at first. None on a
    rank without data, which sends zeros."""
    fires_left: list[int] = field(default_factory=list)
    """How often the hook of each parameter still has to fire."""
    fired: list[int] = field(default_factory=list)
    """Indices of the parameters whose hooks fired, in that order."""
    waits: list[Wait] = field(default_factory=list)
    """One for each of the reductions that have been sent."""
    end_is_queued: bool = False
    """Whether the backward that is running calls `_end_of_backward`."""

    @property
    def is_ready(self) -> bool:
        """Whether no gradient is pending."""
        return not any(reduction.pending for reduction in self.reductions)


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
        self._device = self._parameters[0].device
        self._as_view, self._overlap = as_view, overlap
        self._usage = usage
        self.averager: BucketAverager = AllReduceAverager(group)
        # The buckets, made before the first forward, and again in the order of the first backward.
        self._order = BucketOrder(len(named), learns=usage.keeps_order)
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, int] = {}  # the number of the bucket that waits for a gradient
        self._backward: ReducingBackward | None = None  # what hooks count for
        self._lock = threading.RLock()  # autograd has a thread for each device
        # Parameters with a gradient since the last reduction: no_sync adds to them.
        self._used_since_reduction: set[int] = set()
        # A parameter does not keep its node, and a hook is gone with it.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._parameters]
        alive = weakref.ref(self)
        for index, node in enumerate(self._nodes):
            handle = node.register_hook(partial(Reducer.hook_fired, alive, index))
            # The parameters outlive the wrapper, and a module can be wrapped again.
            weakref.finalize(self, handle.remove).atexit = False
        # _StartOfBackward leads to it: a backward that accumulates gradients reaches it before the
        # parameters, and autograd.grad does not reach it.
        self._leaf = torch.zeros((), device=self._device, requires_grad=True)
        self._leaf.register_post_accumulate_grad_hook(partial(_backward_started, alive))  # type: ignore[no-untyped-call]

    def close_last_backward(self) -> None:
        """Store what the last backward has sent, if it failed after its last gradient.

        Raises:
            UnfinishedReduction: it has not reached all parameters; see `unfinished`.
        """
        backward = self._backward
        if backward is None or not backward.fired:
            return
        if backward.is_ready:
            self._end_of_backward()
            return
        self._backward, self._used_since_reduction = None, set()
        missing = [index for index, count in enumerate(backward.fires_left) if count > 0]
        # A hook does not send the flag, and to read it on CUDA would wait for the device.
        others_hear = isinstance(self.averager, AllReduceAverager) and self._device.type == "cpu"
        if others_hear:
            flag = AbortFlag(self._buckets[-1])
            flag.set()
            for reduction in backward.reductions:
                reduction.pending, reduction.scale = 0, 0.0
            self._send_ready(backward)
            for wait in backward.waits:
                wait()
            flag.pop()
        raise unfinished_reduction(self._names, missing, self._group, ask_all=others_hear)

    def ensure_buckets(self, *, reorder: bool) -> None:
        """Make the buckets; with `reorder` once more, in the order of rank 0's first backward.

        Both are collectives: `shm` allocates memory, and the order goes from rank 0 to all. In eval
        mode `reorder` is False, so that one rank can evaluate alone.
        """
        is_new = reorder and self._order.update(self._group, self._device)
        if self._buckets and not is_new:
            return
        self._backward, self._buckets = None, []  # before the new ones need memory
        dense = [index for index in self._order.indices if index not in self._sparse]
        # Where all gradients are sparse, one bucket carries the abort flag alone.
        assigned = assign_buckets(dense, self._parameters, self._caps) or [[]]
        make = partial(Bucket, parameters=self._parameters, group=self._group)
        for number, indices in enumerate(assigned):
            is_last = number == len(assigned) - 1
            self._buckets.append(
                make(indices, number=number, is_last=is_last, as_view=self._as_view)
            )
        self._buckets[-1].awaited += sorted(self._sparse)
        self._bucket_of = {i: bucket.number for bucket in self._buckets for i in bucket.awaited}

    def keep_buckets(self, caps: Sequence[int]) -> Sequence[Bucket]:
        """Make the buckets if there are none, and never in another order; a collective."""
        self._order.learns, self._caps = False, caps
        self.ensure_buckets(reorder=False)
        return self._buckets

    def arm(self, output: Any, divisor: int | None = None) -> Any:
        """Have the next backward reduce; returns the forward's output, to hand to the user.

        The sums over the ranks are divided by `divisor`; None means the number of ranks.
        """
        expected, divisor = self._usage.expected_fires(), divisor or self._size
        reductions = []
        for bucket in self._buckets:
            fires = [expected[index] for index in bucket.awaited]
            scale = self.averager.scale(divisor)
            reductions.append(Reduction(bucket, len(fires) - fires.count(0), scale))
        self._backward = ReducingBackward(
            reductions=reductions, divisor=divisor, fires_left=expected
        )
        return self._with_start(output) if self._usage.waits_for_end else output

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

    @staticmethod
    def hook_fired(
        alive: weakref.ref[Reducer], index: int, _: object, accumulated: tuple[Tensor | None, ...]
    ) -> None:
        """Note that a parameter's hook has fired, after its gradient was accumulated if it has one.

        It runs once for each parameter, so every lookup here counts: without it and `Bucket.pack`
        the reducer takes next to no time.

        Raises:
            RuntimeError: it fires more often in this backward than expected, as with a reentrant
                checkpoint.
        """
        if (self := alive()) is None:
            return
        if has_gradient := accumulated[0] is not None:
            self._used_since_reduction.add(index)
        elif self._usage.needs_gradient:
            return
        backward = self._backward
        if backward is None:
            return
        backward.fired.append(index)
        if not backward.end_is_queued:
            self.queue_end()
        left = backward.fires_left[index] = backward.fires_left[index] - 1
        if left > 0:
            return
        if left < 0:
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
            reduction.copy_early(index)
        if not reduction.pending and self._overlap:
            with self._lock:
                self._send_ready(backward)

    def queue_end(self) -> None:
        """Have the running backward call `_end_of_backward`; call this from a node or hook of it.

        The first hook does, unless `_StartOfBackward` has: a hook may fire in the inner backward of
        a reentrant checkpoint, whose end tells nothing about missing gradients.
        """
        if self._backward is not None:
            self._backward.end_is_queued = True
            at_end_of_backward(self._end_of_backward)

    def reduce_zeros(self) -> None:
        """Take part in a reduction for a rank that has no data left."""
        backward = ReducingBackward(reductions=[Reduction(b, 0, 0.0) for b in self._buckets])
        self._used_since_reduction = set()
        self._send_ready(backward)
        self._finish(backward)

    def _send_ready(self, backward: ReducingBackward) -> None:
        """Send buckets that are ready in their order, which is the same on all ranks."""
        for reduction in backward.reductions[len(backward.waits) :]:
            if reduction.pending:
                return
            bucket = reduction.bucket
            reduction.pack(self._used_since_reduction)
            try:
                backward.waits.append(self.averager.start(bucket))
            except BaseException:
                self._backward = None  # no error of this backward concerns the next forward
                raise
            self.collectives += bool(bucket.parameters)
            self.reduced_bytes += bucket.nbytes

    def _end_of_backward(self) -> None:
        """Finish the reduction, unless another backward has to bring the gradients that are missing
        after this one."""
        with self._lock:
            backward = self._backward
            if backward is None:
                return
            backward.end_is_queued = False
            if self._usage.waits_for_end or backward.is_ready:
                self._usage.observe(backward.fired)
                for reduction in backward.reductions:
                    reduction.pending = 0  # what is pending is missing
                self._send_ready(backward)
                self._finish(backward)

    def _finish(self, backward: ReducingBackward) -> None:
        """Wait for all buckets, and put the averages into the gradients.

        Raises:
            UnfinishedReduction: another rank has aborted.
        """
        self._backward = None
        for wait in backward.waits:
            wait()
        if AbortFlag(self._buckets[-1]).pop():
            raise unfinished_reduction(self._names, [], self._group, ask_all=True)
        used = self._usage.used_anywhere(self._used_since_reduction)
        for reduction in backward.reductions:
            reduction.finalize(used)
        if tables := [self._parameters[index] for index in sorted(self._sparse) if index in used]:
            average_rows(tables, backward.divisor, self._group)
        self._used_since_reduction = set()
        self._order.learn(backward.fired)


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
