"""When which bucket is reduced: hooks on the parameters, armed by a forward.

forward ─ prepare ─ module ─ arm          hooks count from now on
backward ─ hook per parameter             its bucket's pending count goes down
         ├ bucket full                    launch, if all earlier buckets are launched
         └ end of backward                wait for all buckets, gradients are averaged, disarm

With unused parameters allowed, those without a gradient at the end of the backward are sent as
zeros; the first backward of a static graph is recorded, and all of it is sent at its end.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.as_wrapped import AsWrapped
from dpbench.parallel.ddp.buckets import Bucket, BucketCaps, LocalBucket, assign_buckets
from dpbench.parallel.ddp.comm_hooks import Hook
from dpbench.parallel.ddp.exchange import Exchange
from dpbench.parallel.ddp.graph_errors import fired_too_often, unfinished, unfinished_elsewhere
from dpbench.parallel.ddp.missing import EXACT, MissingReport
from dpbench.parallel.ddp.sink import Sink
from dpbench.parallel.ddp.sparse_bucket import SparseBucket

AnyBucket = Bucket | SparseBucket | LocalBucket


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """How gradients are grouped, and which graphs are expected."""

    caps: BucketCaps
    find_unused: bool = False
    static_graph: bool = False


class Reducer:
    """Averages the gradients of the parameters over the ranks of a group, during backward.

    Attributes:
        divisor: what sums are divided by; None for the number of ranks, by which the collective
            itself may divide.
        hook: takes the place of the all-reduce of each bucket.
        reduced_bytes: bytes of gradients sent since construction.
        reductions: buckets sent since construction.
    """

    def __init__(
        self,
        module: nn.Module,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        sparse: Iterable[str],
        exchange: Exchange,
        options: ReducerOptions,
    ) -> None:
        """
        Args:
            module: that has the parameters.
            named_parameters: all that take part, each once; those that require a gradient now are
                reduced.
            sparse: names of those that get sparse gradients.
            exchange: of the ranks.
            options: see there.
        """
        named_parameters = list(named_parameters)
        self._parameters_as_wrapped = AsWrapped(module, named_parameters)
        trained = [(name, p) for name, p in named_parameters if p.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._sparse = {self._names.index(name) for name in sparse if name in self._names}
        self._exchange = exchange
        self._options = options
        self._tolerates_missing = options.find_unused or options.static_graph
        self.divisor: int | None = None
        self.hook: Hook | None = None
        self.reduced_bytes = 0
        self.reductions = 0
        self._armed = False
        self._begun = False
        self._end_queued = False
        self._rebuild_due = False
        self._rebuilt = False
        self._launched = 0
        self._ready_order: list[int] = []
        # How often the hook of each parameter fires in one backward, and still has to.
        self._fires = [1] * len(trained)
        self._left: list[int] = []
        self._recorded = not options.static_graph
        self._used_locally: set[int] = set()
        self._before: dict[int, Tensor] = {}
        # From the last layer to the first, until the order of the gradients has been seen.
        self._observed_order = list(range(len(trained) - 1, -1, -1))
        self._build(self._observed_order)
        me = weakref.ref(self)
        self._sink = Sink(partial(_on_backward, me), self._parameters[0].device)
        # On the nodes, so that hooks which users put on the parameters always come before. The
        # nodes must be kept: a parameter does not hold its own.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._parameters]
        handles = [
            node.register_hook(partial(_on_ready, me, index))
            for index, node in enumerate(self._nodes)
        ]
        self._detach = weakref.finalize(self, _remove, handles)

    @property
    def has_begun(self) -> bool:
        """Whether a forward has armed it yet."""
        return bool(self._left)

    def remove_hooks(self) -> None:
        """Give the parameters back; also done when the reducer is garbage collected."""
        self._detach()

    def use_hook(self, hook: Hook) -> None:
        """Have `hook` communicate the buckets from now on."""
        self.hook = hook
        # Not the order that this rank has observed: another may have seen another.
        self._build([index for bucket in self._buckets for index in bucket.indices])

    def prepare(self) -> None:
        """Before a forward whose backward will reduce.

        Raises:
            RuntimeError: the last backward left out parameters, here or on another rank, or a
                parameter has changed in what its bucket relies on; the message names them.
        """
        if self._armed and self._begun:
            self._give_up()
        self._parameters_as_wrapped.require(thorough=self._armed)

    def rebuild(self) -> None:
        """Once, after the first reduction: buckets in the order in which rank 0's gradients got
        ready. A collective."""
        if self._rebuild_due:
            order = torch.tensor(self._observed_order, device=self._parameters[0].device)
            group = self._exchange.group
            dist.broadcast(order, src=dist.get_global_rank(group, 0), group=group)
            self._build(order.tolist())
            self._rebuild_due = False
            self._rebuilt = True

    def arm(self, output: Any) -> Any:
        """The next backward reduces. Returns the output of the forward, to be used in its place."""
        self._armed = True
        self._begun = False
        self._end_queued = False
        self._launched = 0
        self._ready_order = []
        self._left = self._fires.copy()
        for bucket, pending in zip(self._buckets, self._pending, strict=True):
            bucket.pending = pending
        if self._options.find_unused or not self._recorded:
            return self._sink(output)
        return output

    def disarm(self) -> None:
        """The next backward adds to the local gradients only."""
        self._armed = False

    def mark_ready(self, index: int) -> None:
        """The gradient of a parameter has been accumulated.

        Raises:
            RuntimeError: more often in one backward than expected, as by a reentrant checkpoint.
        """
        if not self._armed:
            if self._tolerates_missing:
                self._used_locally.add(index)
            return
        if not self._end_queued:
            self.queue_end()
        if not self._begun:
            self._begin()
        self._ready_order.append(index)
        left = self._left[index] - 1
        self._left[index] = left
        if left or not self._recorded:
            if left < 0 and self._recorded:
                static = self._options.static_graph
                raise RuntimeError(fired_too_often(self._names, index, static=static))
            return
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        if not bucket.pending:
            self._launch_full_buckets()

    def queue_end(self) -> None:
        """Have the end of the running backward call back."""
        if self._armed and not self._end_queued:
            # The only way to run at the end of a backward; torch's own DDP uses it too.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_of_backward)
            self._end_queued = True

    def shadow(self) -> None:
        """Take part in one reduction for a rank that has no data left: it contributes nothing, and
        gets the average as the others do."""
        for number, bucket in enumerate(self._buckets):
            last = number == len(self._buckets) - 1
            bucket.clear()
            if last:
                if self._tolerates_missing:
                    self._report.flag(range(len(self._parameters)))
                self._report.send(average=False)
            bucket.send(average=False, hook=self.hook, number=number, last=last)
        keep = self._settle_missing() if self._tolerates_missing else set()
        for bucket in self._buckets:
            bucket.finish(keep)
        self._report.wait()
        self._report.reset()
        self._rebuild_due = not self._rebuilt

    def _begin(self) -> None:
        """At the first gradient of a backward."""
        self._begun = True
        if 0 in self._fires:
            self._leave_out([index for index, fires in enumerate(self._fires) if not fires])
            self._launch_full_buckets()

    def _averages(self) -> bool:
        """Whether the collective divides, and not whoever fills the bucket."""
        return self.divisor is None and self.hook is None and self._exchange.averages

    def _launch_full_buckets(self) -> None:
        """In the order of the buckets, which is the same on all ranks; readiness is not."""
        while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
            self._launch(self._launched)
            self._launched += 1

    def _launch(self, number: int) -> None:
        bucket = self._buckets[number]
        average = self._averages()
        last = number == len(self._buckets) - 1
        divides = not average and self.hook is None
        absent = bucket.collect(1 / (self.divisor or self._exchange.size) if divides else 1.0)
        if self._tolerates_missing:
            self._report.flag(absent)
        if last:
            self._report.send(average=average)
        bucket.send(average=average, hook=self.hook, number=number, last=last)
        self.reductions += bucket.nbytes > 0
        self.reduced_bytes += bucket.nbytes

    def _launch_rest(self) -> list[int]:
        """Parameters that are not ready are missing; returns them."""
        missing = [index for index, left in enumerate(self._left) if left > 0]
        self._leave_out(missing)
        for bucket in self._buckets:
            bucket.pending = 0
        self._launch_full_buckets()
        return missing

    def _leave_out(self, missing: Iterable[int]) -> None:
        """These parameters got no gradient in this backward; what they have from others counts."""
        for index in missing:
            gradient = self._parameters[index].grad
            if index in self._used_locally:
                continue
            self._report.flag([index])
            if gradient is not None:
                self._before[index] = gradient.detach().clone()

    def _end_of_backward(self) -> None:
        """Of the whole, or of one nested in another that goes on."""
        self._end_queued = False
        if not self._armed:
            return
        if not self._recorded:
            self._fires = [1 - left for left in self._left]
            self._left = [int(not fires) for fires in self._fires]
            self._recorded = True
            self._count_pending()
            self._launch_rest()
        elif self._options.find_unused:
            self._launch_rest()
        if self._launched == len(self._buckets):
            self._finish()
            self._raise_if_another_gave_up()

    def _finish(self) -> None:
        self._armed = False
        keep: set[int] = set()
        if self._tolerates_missing:
            keep = self._settle_missing()
        for bucket in self._buckets:
            bucket.finish(keep)
        self._report.wait()
        for index in keep & self._before.keys():
            gradient = self._parameters[index].grad
            assert gradient is not None
            gradient.copy_(self._before[index])
        self._before.clear()
        self._used_locally.clear()
        if not self._rebuilt:
            # A gradient that is accumulated several times is ready at the last of them; those
            # without one come last, so that they hold up no other bucket.
            last_first = dict.fromkeys(reversed(self._ready_order))
            rest = [index for index in range(len(self._names)) if index not in last_first]
            self._observed_order = [*reversed(last_first), *rest]
            self._rebuild_due = True

    def _settle_missing(self) -> set[int]:
        """Wait for the report; returns the parameters without a gradient on every rank."""
        self._report.wait()
        self._buckets[-1].wait()
        return self._report.on_every_rank()

    def _raise_if_another_gave_up(self) -> None:
        if self._report.some_rank_gave_up():
            missing = self._report.on_some_rank()
            self._report.reset()
            static = self._options.static_graph
            raise RuntimeError(unfinished_elsewhere(self._names, missing, static=static))
        if self._tolerates_missing:
            self._report.reset()

    def _give_up(self) -> None:
        """The gradients that are missing will not come. The other ranks wait for them.

        Raises:
            RuntimeError: always, here and on the other ranks.
        """
        failure: Exception | None = None
        missing = [index for index, left in enumerate(self._left) if left > 0]
        try:
            self._report.give_up()
            self._launch_rest()
            self._finish()
            self._report.reset()
        except Exception as error:
            failure = error
        self._armed = False
        rank = dist.get_rank(self._exchange.group)
        static = self._options.static_graph
        raise RuntimeError(unfinished(self._names, missing, rank, static=static)) from failure

    def _build(self, order: Sequence[int]) -> None:
        groups = assign_buckets(order, self._parameters, self._options.caps, self._sparse)
        count = len(self._parameters)
        rider: Tensor | None = None
        self._buckets: list[AnyBucket] = []
        self._bucket_of: dict[int, AnyBucket] = {}
        for group in groups:
            bucket: AnyBucket
            first = self._parameters[group[0]]
            if self._exchange.size == 1 and self.hook is None:
                bucket = LocalBucket(group)
            elif self._sparse.intersection(group):
                bucket = SparseBucket(group[0], first, self._exchange)
            elif group is groups[-1] and self.hook is None and first.dtype in EXACT:
                length = MissingReport.length(count)
                bucket = Bucket(group, self._parameters, self._exchange, length)
                rider = bucket.rider
            else:
                bucket = Bucket(group, self._parameters, self._exchange)
            self._buckets.append(bucket)
            self._bucket_of.update(dict.fromkeys(group, bucket))
        self._report = MissingReport(count, self._exchange, first.device, rider)
        self._count_pending()

    def _count_pending(self) -> None:
        """How many gradients fill each bucket."""
        self._pending = [
            sum(self._fires[index] > 0 for index in bucket.indices) for bucket in self._buckets
        ]


def _on_ready(reducer: weakref.ref[Reducer], index: int, *_: object) -> None:
    # A weak reference: the parameters outlive the wrapper, and must not keep its buckets.
    if (alive := reducer()) is not None:
        alive.mark_ready(index)


def _on_backward(reducer: weakref.ref[Reducer]) -> None:
    if (alive := reducer()) is not None:
        alive.queue_end()


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()
