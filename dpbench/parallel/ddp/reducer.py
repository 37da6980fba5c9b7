"""The reducer: averages each bucket as soon as all its gradients are there.

forward ─ close_last_backward            errors of the last backward
        ├ ensure_buckets                 the buckets, also in a new order
        └ arm                            a new ReducingBackward: hooks count from now on
backward ─ hook_fired, per parameter     a gradient fewer is pending in its bucket
         ├ nothing pending in a bucket   once all earlier ones are ready, pack it and send it
         └ _end_of_backward              send the rest, wait for all buckets, finalize them

A class in `usage` says how often each hook fires before its gradient is ready, and whether the end
of backward sends what is still pending, with zeros for missing gradients. Gradients from `no_sync`
are in `.grad` already, so the next backward that reduces averages them too. Sparse gradients are
exchanged at the end; the last bucket waits for them. Without `overlap`, the end sends all buckets.

Where the end does not send what is pending, and the backward of rank A left parameters out, rank B
waits for buckets that A has not sent. On a CPU and without a communication hook they meet like
this; elsewhere only A raises, and the wait of B ends by its timeout:

A, in close_last_backward   sends the other buckets, as zeros, with an abort flag in the last one
B, in _finish               gets all buckets, and finds the flag
both                        gather the names of missing parameters, and raise UnfinishedReduction
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.buckets import Bucket, assign_buckets
from dpbench.parallel.ddp.usage import GradientUsage
from dpbench.parallel.groups import Wait, gather_values
from dpbench.parallel.torch_private import at_end_of_backward
from dpbench.parallel.tree import map_tensors, tensors

Hook = Callable[[Bucket], torch.futures.Future[Any]]
"""A communication hook with its state. It averages a bucket in place of the all-reduce; its future
holds the average, or a list of which that is the first."""
_ASYNC = dist.AllreduceOptions()
_ASYNC.asyncOp = True


class UnfinishedReduction(RuntimeError):
    """A backward left out parameters, so that not all gradients were reduced.

    Attributes:
        names: names of parameters without a gradient on some rank; empty if that is not known.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = names


@dataclass(kw_only=True, slots=True, eq=False)
class ReducingBackward:
    """One backward that reduces, from the forward that arms it to its end; buckets have the rest of
    its state.

    A rank that has no data left runs no forward and no backward; `reduce_zeros` makes one for it,
    to send zeros where the other ranks send their gradients.
    """

    divisor: int = 1
    """The divisor of sums over the ranks: how many of them have data, or had at first."""
    fires_left: list[int] = field(default_factory=list)
    """How often the hook of each parameter still has to fire."""
    fired: list[int] = field(default_factory=list)
    """Indices of the parameters whose hooks fired, in that order."""
    waits: list[Wait] = field(default_factory=list)
    """A wait for each bucket that has been sent."""
    end_is_queued: bool = False
    """Whether the backward that is running calls `_end_of_backward`."""


class Reducer:
    """Averages the gradients of some parameters during backward.

    Attributes:
        hook: the communication hook; to be set before the first forward.
        reduced_bytes: bytes of dense gradients reduced since construction.
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
        self.reduced_bytes = 0
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._sparse = {i for i, name in enumerate(self._names) if name in sparse}
        self._group, self._size, self._caps = group, dist.get_world_size(group), caps
        self._device = self._parameters[0].device
        self._as_view, self._overlap = as_view, overlap
        self._usage = usage
        self.hook: Hook | None = None
        # Indices in the order in which gradients are expected, the same on all ranks: at first the
        # reverse of the parameters'. The order of the first backward replaces it.
        self._order = list(range(len(named)))[::-1]
        self._learns_order, self._learned_order = usage.keeps_order, list[int]()
        self._buckets: list[Bucket] = []
        # By index the bucket that waits for a gradient, and its place there if it is copied early.
        self._places: dict[int, tuple[Bucket, int | None]] = {}
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
        """Raise what the last backward has left undone.

        Raises:
            UnfinishedReduction: it has not reached all parameters.
        """
        backward = self._backward
        if backward is None or not backward.fired:
            return
        if self._is_ready():
            # It failed after its last gradient, as in a user's hook of the gradient of an input, so
            # that autograd did not call its end; other ranks may wait for what is sent there.
            self._end_of_backward()
            return
        self._backward, self._used_since_reduction = None, set()
        # In the first backward of a static graph more fires are left than will ever come.
        left, fired = backward.fires_left, set(backward.fired)
        missing = [index for index, count in enumerate(left) if count > 0 and index not in fired]
        # A hook does not send the flag, and to read it on CUDA would wait for the device.
        all_raise = self.hook is None and self._device.type == "cpu"
        if all_raise:
            self._buckets[-1].set_abort_flag()
            self._send_zeros(backward)
            for wait in backward.waits:
                wait()
            self._buckets[-1].take_abort_flag()
        raise self._unfinished_reduction(missing, ask_all=all_raise)

    def ensure_buckets(self, *, reorder: bool) -> None:
        """Make the buckets; with `reorder` once more, in the order of rank 0's first backward.

        Both are collectives: `shm` allocates memory, and the order goes from rank 0 to all. In eval
        mode `reorder` is False, so that one rank can evaluate alone.
        """
        if reorder and self._learned_order:
            agreed = torch.tensor(self._learned_order, device=self._device)
            dist.broadcast(agreed, group=self._group, group_src=0)
            self._order, self._learned_order = agreed.tolist(), []
            self._backward, self._buckets, self._places = None, [], {}  # frees them
        if self._buckets:
            return
        dense = [index for index in self._order if index not in self._sparse]
        # Where all gradients are sparse, one bucket carries the abort flag alone.
        assigned = assign_buckets(dense, self._parameters, self._caps) or [[]]
        for number, indices in enumerate(assigned):
            bucket = Bucket(
                number,
                indices,
                self._parameters,
                self._group,
                is_last=indices is assigned[-1],
                as_view=self._as_view,
            )
            self._buckets.append(bucket)
            is_early = bucket.has_large_gradients
            for place, index in enumerate(indices):
                self._places[index] = bucket, place if is_early else None
        self._places |= dict.fromkeys(self._sparse, (self._buckets[-1], None))
        self._buckets[-1].awaited += len(self._sparse)

    def keep_buckets(self, caps: Sequence[int]) -> Sequence[Bucket]:
        """Make the buckets if there are none, and never in another order; a collective."""
        self._learns_order, self._caps = False, caps
        self.ensure_buckets(reorder=False)
        return self._buckets

    def arm(self, output: Any, divisor: int | None = None) -> Any:
        """Have the next backward reduce; returns the forward's output, to hand to the user.

        The sums over the ranks are divided by `divisor`; None means the number of ranks.
        """
        expected, divisor = self._usage.expected_fires(), divisor or self._size
        unused = Counter(self._places[i][0] for i, fires in enumerate(expected) if not fires)
        for bucket in self._buckets:
            scale = 1 / divisor if self.hook is None else 1.0
            bucket.start(pending=bucket.awaited - unused[bucket], scale=scale)
        self._backward = ReducingBackward(divisor=divisor, fires_left=expected)
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
        # Buckets have one device, so one thread counts for each. Sparse gradients may be elsewhere,
        # but Python does not change threads in the middle of this line.
        bucket, place = self._places[index]
        bucket.pending -= 1
        if has_gradient and place is not None:
            bucket.copy_early(place)
        if not bucket.pending and self._overlap:
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
        for index in self._sparse:
            self._parameters[index].grad = None
        self._used_since_reduction = set()
        self._send_zeros(backward := ReducingBackward())
        self._finish(backward)

    def _send_zeros(self, backward: ReducingBackward) -> None:
        """Send zeros in the place of all buckets that have not been sent."""
        for bucket in self._buckets[len(backward.waits) :]:
            bucket.pack_zeros()
            backward.waits.append(self._start_average(bucket))

    def _is_ready(self) -> bool:
        """Whether no gradient is pending."""
        return not any(bucket.pending for bucket in self._buckets)

    def _send_ready(self, backward: ReducingBackward) -> None:
        """Send buckets that are ready in their order, which is the same on all ranks."""
        for bucket in self._buckets[len(backward.waits) :]:
            if bucket.pending:
                return
            bucket.pack(self._used_since_reduction)
            try:
                backward.waits.append(self._start_average(bucket))
            except BaseException:
                self._backward = None  # no error of this backward concerns the next forward
                raise

    def _start_average(self, bucket: Bucket) -> Wait:
        """Start to average a packed bucket over the ranks."""
        self.reduced_bytes += bucket.flat.nbytes
        if self.hook is None:
            # Not dist.all_reduce, whose checks and logging take longer than a small bucket.
            wait: Wait = self._group.allreduce([bucket.wire], _ASYNC).wait
            return wait
        if not bucket.indices:
            return lambda: None
        future, flat = self.hook(bucket), bucket.flat
        if not hasattr(future, "wait"):
            raise RuntimeError(
                "callback must return a torch.futures.Future object, but got "
                f"{type(future).__name__} from the communication hook"
            )

        def wait_for_hook() -> None:
            result = future.wait()
            average = result[0] if isinstance(result, (list, tuple)) else result
            if average.data_ptr() != flat.data_ptr() or average.dtype != flat.dtype:
                flat.copy_(average.reshape(flat.shape))

        return wait_for_hook

    def _end_of_backward(self) -> None:
        """Finish the reduction, unless another backward has to bring the gradients that are missing
        after this one."""
        with self._lock:
            backward = self._backward
            if backward is None:
                return
            backward.end_is_queued = False
            if self._usage.waits_for_end or self._is_ready():
                self._usage.observe(backward.fired)
                for bucket in self._buckets:
                    bucket.pending = 0  # what is pending is missing
                self._send_ready(backward)
                self._finish(backward)

    def _finish(self, backward: ReducingBackward) -> None:
        """Wait for all buckets, and put the averages into the gradients.

        Raises:
            UnfinishedReduction: another rank has aborted.
        """
        used_here = self._used_since_reduction
        self._backward, self._used_since_reduction = None, set()
        for wait in backward.waits:
            wait()
        if self._buckets[-1].take_abort_flag():
            raise self._unfinished_reduction([], ask_all=True)
        used = self._usage.used_anywhere(used_here)
        for bucket in self._buckets:
            bucket.finalize(used)
        if tables := [self._parameters[index] for index in sorted(self._sparse) if index in used]:
            self._average_sparse(tables, backward.divisor)
        if self._learns_order:
            self._learns_order = False
            # A gradient that is accumulated several times is ready at the last of them.
            last_first = dict.fromkeys(reversed(backward.fired))
            missing = [index for index in self._order if index not in last_first]
            self._learned_order = [*reversed(last_first), *missing]

    def _average_sparse(self, tables: Sequence[nn.Parameter], divisor: int) -> None:
        """Replace sparse gradients by their sums over the ranks ÷ `divisor`, in one message of the
        rows that each rank has; a collective, whose host waits for the GPU if they are on one."""
        rows = []
        for table in tables:
            if table.grad is not None:
                scaled = (table.grad.detach() * (1 / divisor)).coalesce()
                rows.append((scaled.indices(), scaled.values()))
            else:
                no_values = table.detach().new_empty((0, *table.shape[1:]))
                rows.append((torch.empty((1, 0), dtype=torch.long), no_values))
        rows_by_rank = gather_values(rows, self._group, device=self._device)
        for table, parts in zip(tables, zip(*rows_by_rank, strict=True), strict=True):
            indices, values = zip(*parts, strict=True)
            table.grad = torch.sparse_coo_tensor(
                torch.cat(indices, dim=1).to(table.device),
                torch.cat(values).to(table.device),
                table.shape,
                check_invariants=False,
            ).coalesce()

    def _unfinished_reduction(self, missing: list[int], *, ask_all: bool) -> UnfinishedReduction:
        """The error for the parameters that are missing here, by index; with `ask_all` for those
        that are missing on any rank, which is a collective."""
        by_rank = {dist.get_rank(self._group): missing}
        if ask_all:
            by_rank = dict(enumerate(gather_values(missing, self._group)))
        where = "; ".join(
            f"rank {rank}: " + ", ".join(f"{index} ({self._names[index]})" for index in indices)
            for rank, indices in by_rank.items()
            if indices
        )
        # In the words of torch's class, which users search for.
        return UnfinishedReduction(
            "Expected to have finished reduction in the prior iteration before starting a new one. "
            "This error indicates that your module has parameters that were not used in producing "
            "loss. You can enable unused parameter detection by passing the keyword argument "
            "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by "
            "making sure all `forward` function outputs participate in calculating loss. With "
            "static_graph=True, the training graph has changed in this iteration. Parameter "
            f"indices which did not receive grad for {where}",
            names=[self._names[index] for index in sorted(set(chain(*by_rank.values())))],
        )


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
