"""The reducer: averages each bucket as soon as all its gradients are there.

forward ─ require_finished, build         errors of the last backward; the buckets
        └ arm                             a new Backward: hooks count from now on
backward ─ a hook for each parameter      it is no longer pending in its bucket
         ├ nothing pending in a bucket    once all earlier ones are ready, pack it and send it
         └ end of backward                wait for all buckets, finalize them

Without `overlap`, all buckets are sent once nothing is pending in any of them.

With find_unused_parameters, parameters without a gradient at the end of backward are sent as zeros,
and one small all-reduce finds out which of them no rank has used. The first backward of a static
graph only counts how often each hook fires, and sends everything at its end. Sparse gradients are
exchanged at the end, too.

A rank whose backward left parameters out notices it at its next forward. On a CPU and without a
communication hook it sends its buckets with a flag in the last one, so that the ranks that wait for
them raise an error too.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.buckets import Bucket, Reduction, assign_buckets
from dpbench.parallel.ddp.comm_hooks import Hook
from dpbench.parallel.ddp.sparse import sum_rows
from dpbench.parallel.groups import gather_values
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
class Backward:
    """One backward that reduces, from the forward that arms it to its end."""

    reductions: Sequence[Reduction]
    """One for each bucket, in the order in which they are sent."""
    has_data: bool = True
    """False on a rank that takes part with zeros, as it has no batch left."""
    waits_for_end: bool = False
    """Whether only the end of backward tells which gradients are missing."""
    fires_left: list[int] | None = None
    """How often each hook will still fire; None unless it is known, as with a static graph."""
    fired: list[int] = field(default_factory=list)
    """Indices of the parameters whose hooks fired, in that order."""
    sent: int = 0
    """Number of reductions that have been sent."""
    end_is_queued: bool = False

    @property
    def is_sent(self) -> bool:
        """Whether all reductions have been sent."""
        return self.sent == len(self.reductions)

    @property
    def last(self) -> Reduction:
        """The reduction that carries the flag of a rank that aborts."""
        return self.reductions[-1]


class Reducer:
    """Averages the gradients of some parameters during backward.

    Attributes:
        divisor: of the sum over the ranks; None means their number.
        reduced_bytes: bytes of dense gradients reduced since construction.
        collectives: that averaged gradients since construction.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        sparse: Collection[str],
        group: dist.ProcessGroup,
        *,
        caps: Sequence[int],
        find_unused: bool,
        static: bool,
        as_view: bool,
        overlap: bool,
    ) -> None:
        """
        Args:
            named: the parameters to reduce, each once; the same on all ranks.
            sparse: the names of those with sparse gradients.
            caps: in bytes, as from `caps_in_bytes`.
            find_unused, static, as_view, overlap: see DistributedDataParallel.
        """
        self.divisor: int | None = None
        self.reduced_bytes = self.collectives = 0
        # What to reduce, and how.
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._sparse = {i for i, name in enumerate(self._names) if name in sparse}
        self._group, self._size, self._caps = group, dist.get_world_size(group), caps
        self._as_view, self._overlap = as_view, overlap
        self._static = static
        self._finds_unused = find_unused and not static
        self._may_be_unused = self._shares_use = find_unused or static
        # What the first backward of a static graph shows of all later ones: how often each hook
        # fires, and which parameters some rank uses (None means all), which is not shared again.
        self._fires: list[int] | None = None
        self._static_used: set[int] | None = None
        self._hook: Hook | None = None
        # The buckets, made before the first forward, and again after the first backward.
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, int] = {}
        self._order = list(range(len(named)))[::-1]
        self._has_run = self._rebuild_due = self._keeps_buckets = False
        self._backward: Backward | None = None  # what hooks count for, and the end has to finish
        self._lock = threading.RLock()  # autograd has a thread for each device
        # Parameters with a gradient since the last reduction: no_sync adds to them. It stays empty
        # unless parameters may be unused.
        self._used: set[int] = set()
        # A parameter does not keep its node, and a hook is gone with it.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._parameters]
        alive = weakref.ref(self)
        handles = [
            node.register_hook(partial(_on_gradient, alive, index))
            for index, node in enumerate(self._nodes)
        ]
        # The parameters outlive the wrapper, and a module can be wrapped again.
        weakref.finalize(self, _remove, handles).atexit = False
        # The sink leads to it: a backward that accumulates gradients reaches it before the
        # parameters, and autograd.grad does not reach it.
        self._leaf = torch.zeros((), device=self._parameters[0].device, requires_grad=True)
        self._leaf.register_post_accumulate_grad_hook(partial(_on_start, alive))  # type: ignore[no-untyped-call]

    def use_hook(self, hook: Hook) -> None:
        """Have `hook` communicate dense gradients instead of the all-reduce, before the first
        backward."""
        self._hook = hook

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do: a group of one has nothing to average."""
        return self._size > 1 or self._hook is not None

    def require_finished(self) -> None:
        """Check that the last backward reached all parameters; if not, let the other ranks know.

        Raises:
            RuntimeError: on every rank if `_others_hear`: on this one here, on the others in their
                backward. Otherwise the others wait for their timeout, as with torch's class.
        """
        backward = self._backward
        if backward is None or not backward.fired:
            return
        if backward.is_sent:  # the backward failed after its last gradient
            self._finish(backward)
            return
        self._backward = None
        missing = sorted(index for one in backward.reductions for index in one.pending)
        if self._others_hear:
            backward.last.abort()
            self._send_up_to(backward, len(backward.reductions))
            for reduction in backward.reductions:
                reduction.wait()
            backward.last.is_aborted()  # resets it
        self._raise_unfinished(missing)

    def build(self, *, rebuild: bool) -> None:
        """Make the buckets, and with `rebuild` once more in the order of rank 0's first backward.

        Both are collectives: `shm` allocates memory, and a rebuild sends rank 0's order to all. In
        eval mode `rebuild` is False, so that one rank can evaluate alone.
        """
        rebuild = rebuild and self._rebuild_due
        if self._buckets and not rebuild:
            return
        if rebuild:
            agreed = torch.tensor(self._order, device=self._parameters[0].device)
            dist.broadcast(agreed, group=self._group, group_src=0)
            self._order, self._rebuild_due = agreed.tolist(), False
        self._backward, self._buckets = None, []  # before the new ones need memory
        parameters, group = self._parameters, self._group
        dense = [index for index in self._order if index not in self._sparse]
        for indices in assign_buckets(dense, parameters, self._caps):
            self._buckets.append(Bucket(indices, parameters, group, as_view=self._as_view))
        if self._sparse:
            # It has no gradients: it is ready when they are, and has the flag.
            self._buckets.append(Bucket(sorted(self._sparse), parameters, group, is_empty=True))
        self._bucket_of = {i: n for n, bucket in enumerate(self._buckets) for i in bucket.indices}

    def keep_buckets(self) -> Sequence[Bucket]:
        """Make the buckets if there are none, and never in another order; a collective."""
        self._keeps_buckets = True
        self.build(rebuild=False)
        return self._buckets

    def arm(self, output: Any) -> Any:
        """Have the next backward reduce; returns the forward's output, to hand to the user."""
        fires = self._fires
        idle = {index for index, count in enumerate(fires or ()) if not count}
        backward = Backward(
            reductions=[bucket.begin(idle) for bucket in self._buckets],
            waits_for_end=self._finds_unused or (self._static and fires is None),
            fires_left=None if fires is None else fires.copy(),
        )
        self._backward = backward
        return self._through_sink(output) if backward.waits_for_end else output

    @property
    def _others_hear(self) -> bool:
        """Whether the flag of a rank that aborts reaches the others: a hook does not carry it,
        and to read it on CUDA would wait for the device."""
        return self._hook is None and self._parameters[0].is_cpu

    def _through_sink(self, output: Any) -> Any:
        """The output with copies of its tensors behind a node that starts each backward.

        A tensor that the loss does not use passes on "no gradient", at which hooks fire too.
        """
        found = [tensor for tensor in tensors(output) if tensor.requires_grad]
        if not found:
            return output
        passed = _Sink.apply(self._leaf, *found)  # type: ignore[no-untyped-call]
        replaced = {id(old): new for old, new in zip(found, passed, strict=True)}
        return map_tensors(lambda tensor: replaced.get(id(tensor), tensor), output)

    def on_gradient(self, index: int, has_gradient: bool) -> None:
        """Note that a parameter's hook has fired, after its gradient was accumulated if it has one.

        It runs once for each parameter: what it does is most of the time that the reducer takes.

        Raises:
            RuntimeError: it fires more often in this backward than expected, as with a reentrant
                checkpoint.
        """
        if self._may_be_unused and has_gradient:
            self._used.add(index)
        # Behind a sink, hooks also fire for outputs outside the loss, without a gradient. A static
        # graph has a sink in its first backward only, so it never counts such calls.
        backward = self._backward
        if backward is None or (self._static and not has_gradient):
            return
        backward.fired.append(index)
        if backward.waits_for_end and not backward.end_is_queued:
            self.start_of_backward()  # the loss did not come through the sink
        if self._static:
            if backward.fires_left is None:
                return  # the end of this backward sends everything
            backward.fires_left[index] -= 1
            if backward.fires_left[index] > 0:
                return
        reduction = backward.reductions[self._bucket_of[index]]
        try:
            reduction.pending.remove(index)
        except KeyError:
            raise RuntimeError(
                "Expected to mark a variable ready only once. Parameter at index "
                f"{index} with name {self._names[index]} has been marked as ready twice: a "
                "reentrant checkpoint uses it several times (static_graph=True allows that), it is "
                "used outside of the forward, or the graph has changed in spite of static_graph."
            ) from None
        if reduction.bucket.copies_early and has_gradient:
            reduction.copy_early(index, self._scale(reduction.bucket))
        if not reduction.pending:
            with self._lock:
                self._send_ready(backward)

    def start_of_backward(self) -> None:
        """Queue `_end` for the end of this backward."""
        if self._backward is not None:
            self._backward.end_is_queued = True
            at_end_of_backward(self._end)

    def reduce_zeros(self) -> None:
        """Take part in a reduction for a rank that has no data left."""
        reductions = [bucket.begin(()) for bucket in self._buckets]
        backward = Backward(reductions=reductions, has_data=False)
        self._used = set()
        self._send_up_to(backward, len(reductions))
        self._finish(backward)

    def _lets_group_average(self, bucket: Bucket) -> bool:
        """Whether the group divides the sums of a bucket, and not `pack` the gradients."""
        return bucket.group_averages and self._hook is None and self.divisor is None

    def _scale(self, bucket: Bucket) -> float:
        if self._hook is not None or self._lets_group_average(bucket):
            return 1.0
        return 1 / (self.divisor or self._size)

    def _send_ready(self, backward: Backward) -> None:
        """Send buckets that are ready in their order, which is the same on all ranks."""
        reductions, ready = backward.reductions, backward.sent
        while ready < len(reductions) and not reductions[ready].pending:
            ready += 1
        if ready < len(reductions) and not self._overlap:
            return
        self._send_up_to(backward, ready)
        if backward.is_sent and not backward.waits_for_end:
            at_end_of_backward(self._end)

    def _send_up_to(self, backward: Backward, end: int) -> None:
        for number in range(backward.sent, end):
            reduction = backward.reductions[number]
            bucket = reduction.bucket
            if backward.has_data:
                unused: Collection[int] = reduction.pending
                if self._may_be_unused:
                    unused = set(bucket.indices).difference(self._used)
                reduction.pack(self._scale(bucket), unused)
            else:
                reduction.clear()
            try:
                if self._hook is None or not bucket.parameters:
                    reduction.send(averages=self._lets_group_average(bucket))
                else:
                    reduction.call(self._hook, number, last=reduction is backward.last)
            except BaseException:
                self._backward = None  # no error of this backward concerns the next forward
                raise
            self.collectives += 1
            self.reduced_bytes += bucket.nbytes
        backward.sent = end

    def _end(self) -> None:
        """Send the buckets that are not ready, with zeros for missing gradients, and finish."""
        with self._lock:
            backward = self._backward
            if backward is None:
                return
            if self._static and self._fires is None:
                fired = Counter(backward.fired)
                self._fires = [fired[index] for index in range(len(self._parameters))]
            for reduction in backward.reductions:
                reduction.pending.clear()
            self._send_up_to(backward, len(backward.reductions))
            self._finish(backward)

    def _finish(self, backward: Backward) -> None:
        """Wait for all buckets, and put the averages into the gradients.

        Raises:
            RuntimeError: another rank has aborted.
        """
        self._backward = None
        for reduction in backward.reductions:
            reduction.wait()
        if backward.last.is_aborted():
            self._raise_unfinished([])
        used = self._used_anywhere()
        for reduction in backward.reductions:
            reduction.finalize(used)
        if self._sparse:
            self._average_sparse(used, has_data=backward.has_data)
        self._used = set()
        if not self._has_run:
            self._has_run = True
            self._rebuild_due = not (self._finds_unused or self._keeps_buckets)
            # A gradient that is accumulated several times is ready at the last of them.
            last_first = dict.fromkeys(reversed(backward.fired))
            missing = [index for index in self._order if index not in last_first]
            self._order = [*reversed(last_first), *missing]

    def _average_sparse(self, used: Collection[int] | None, *, has_data: bool) -> None:
        """Exchange the sparse gradients; a collective, whose host waits for the GPU if on one."""
        tables = {index: self._parameters[index] for index in sorted(self._sparse)}
        scale = 1 / (self.divisor or self._size)
        scaled = {
            index: table.grad.detach() * scale
            for index, table in tables.items()
            if has_data and table.grad is not None
        }
        for index, total in sum_rows(scaled, tables, self._group).items():
            if used is None or index in used:
                tables[index].grad = total

    def _used_anywhere(self) -> set[int] | None:
        """The parameters that some rank has used; None means all. A collective if parameters may be
        unused; of a static graph only the first time."""
        if not self._shares_use:
            return self._static_used
        numel, device = len(self._parameters), self._parameters[0].device
        uses_all = len(self._used) == numel
        if uses_all:
            flags = torch.ones(numel, dtype=torch.int32, device=device)
        else:
            flags = torch.zeros(numel, dtype=torch.int32)
            flags[list(self._used)] = 1
            flags = flags.to(device)
        dist.all_reduce(flags, group=self._group)
        # The host waits for a GPU when it reads the flags, so only where they tell something.
        used = None if uses_all else set(flags.nonzero().flatten().tolist())
        if self._static:
            self._static_used, self._shares_use = used, False
        return used

    def _raise_unfinished(self, missing: Sequence[int]) -> NoReturn:
        """Raise for the parameters that are missing on any rank; a collective if the others know.

        Raises:
            UnfinishedReduction: always.
        """
        by_rank = {dist.get_rank(self._group): list(missing)}
        if self._others_hear:
            by_rank = dict(enumerate(gather_values(list(missing), self._group)))
        words = {
            rank: ", ".join(f"{index} ({self._names[index]})" for index in indices)
            for rank, indices in by_rank.items()
            if indices
        }
        where = "; ".join(f"rank {rank}: {names}" for rank, names in words.items())
        # The words of torch's class, which users search for.
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


def _on_gradient(
    alive: weakref.ref[Reducer], index: int, _: object, accumulated: tuple[Tensor | None, ...]
) -> None:
    if (reducer := alive()) is not None:
        reducer.on_gradient(index, accumulated[0] is not None)


def _on_start(alive: weakref.ref[Reducer], leaf: Tensor) -> None:
    leaf.grad = None
    if (reducer := alive()) is not None:
        reducer.start_of_backward()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


class _Sink(torch.autograd.Function):
    """A node behind the output of a forward, which also reaches a leaf of its own."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.device = leaf.device
        # Copies, so that a loss may change them in place.
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (torch.zeros((), device=ctx.device), *gradients)
