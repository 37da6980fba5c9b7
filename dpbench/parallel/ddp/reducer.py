"""Reduction of each bucket as soon as it is ready: hooks on parameters, armed by a forward.

forward ─ begin ─ module ─ arm            hooks count from now on
backward ─ hook per parameter             it leaves its bucket's `waiting`
         ├ nothing waits in a bucket      launch, if all earlier buckets are launched
         └ end of backward                wait for all buckets, gradients are averaged

With unused parameters allowed, those without a gradient at the end of the backward are sent as
zeros; the first backward of a static graph is recorded, and all of it is sent at its end.

If each gradient of a static graph comes once, only large ones and the last of each bucket have a
hook from then on. That of the last, and the end of the backward, look for the others in `.grad`,
which must be empty when the backward begins; else all parameters get their hooks back for good.
What is added to a gradient after it was sent shows in its version counter, and is an error.

Several threads may run hooks at once: autograd has one per device, and a user may call backward in
several. A hook only changes a set and a list, by methods that Python runs atomically. The hook that
empties a bucket's set takes the lock, under which buckets are launched, in order and each once, and
finished.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel.ddp.bucket_kinds import AnyBucket, ReducerOptions, make_buckets
from dpbench.parallel.ddp.buckets import Bucket, assign_buckets, last_of_each
from dpbench.parallel.ddp.comm_hooks import Exchange, Hook
from dpbench.parallel.ddp.expectation import Expectation
from dpbench.parallel.ddp.participation import NOTHING, MissingReport, Participation
from dpbench.parallel.ddp.step_hooks import (
    OUTSIDE,
    GradientHooks,
    Sink,
    at_end_of_backward,
    optimizer_steps,
    outside_of_transforms,
    running_backward,
    when_alive,
)
from dpbench.parallel.torch_private import not_compiled

_GRADIENT = attrgetter("grad")


@not_compiled
class Reducer:
    """Averages the gradients of the parameters over the ranks of a group, during backward.

    Buckets are made before the first forward that will reduce, so that a wrapper can be built, or
    copied by one rank alone, without memory or collectives.

    Attributes:
        divisor: divides the sums; None means the number of ranks, by which the collective itself
            may divide.
        hook: replaces the all-reduce of each bucket.
        reduced_bytes: bytes of gradients sent since construction.
        reductions: buckets sent since construction.
        has_begun: whether a forward has armed the reducer yet.
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
            module: holds the parameters.
            named_parameters: all that take part, each once; those that require a gradient now are
                reduced.
            sparse: names of those that get sparse gradients.
            exchange: sums over the ranks.
            options: see ReducerOptions.
        """
        self._participation = Participation(module, list(named_parameters))
        self._names = self._participation.names
        self._parameters = self._participation.parameters
        self._sparse = {self._names.index(name) for name in sparse if name in self._names}
        self._exchange = exchange
        self._options = options
        self._expectation = Expectation(
            self._names, find_unused=options.find_unused, static_graph=options.static_graph
        )
        self.divisor: int | None = None
        self.hook: Hook | None = None
        self.reduced_bytes = 0
        self.reductions = 0
        self.has_begun = False
        self._rebuild_due = False
        self._rebuilt = options.make_bucket is not None  # shares stay where they are
        # Whether few hooks will do, whether there are only few, and which of them launch buckets.
        self._may_spare_hooks = self._spares_hooks = False
        self._launching: set[int] = set()
        self._buckets: list[AnyBucket] = []
        self._bucket_of: list[AnyBucket] = []
        self._flat: list[Bucket] = []
        self._at_once: dict[int, Bucket] = {}
        # Last layer first, until the actual order of the gradients has been seen.
        self._order = list(range(len(self._parameters) - 1, -1, -1))
        self._observed_order = self._order
        # State of the running iteration, from here on.
        self._lock = threading.Lock()
        self._armed = False
        self._excluded = NOTHING
        self._ready_order: list[int] = []
        self._launched = 0
        self._flagged: set[int] = set()
        # Backwards, by their number: those whose end calls back, those that began at an output,
        # and those of them that came when the reduction of that output was over.
        self._ends_queued: set[int] = set()
        self._graphs: set[int] = set()
        self._late_graphs: set[int] = set()
        self._has_asked = self._began_at_output = False

        self._sink = Sink(when_alive(self.begin_backward), self._parameters[0].device)
        self._hooks = GradientHooks(self._parameters, self)
        optimizer_steps.watch(self)

    def remove_hooks(self) -> None:
        """Remove the hooks from the parameters; also done when the reducer is garbage collected."""
        self._hooks.remove()

    def use_hook(self, hook: Hook) -> None:
        """Let `hook` communicate the buckets from now on."""
        self.hook = hook
        self._hook_all()
        self._buckets = []

    def begin(self) -> bool:
        """Prepare for a forward whose backward would reduce.

        Returns:
            Whether it will reduce: False if no parameter takes part, as in a discriminator that is
            frozen during its generator's step.

        Raises:
            RuntimeError: the last backward left out parameters, here or on another rank, or a
                parameter has changed in what its bucket relies on; the message names them.
        """
        with self._lock:
            self._require_all()
            self._excluded, renewed = self._participation.begin()
            self._hooks.renew(renewed)
            return len(self._excluded) < len(self._parameters)

    def _require_all(self) -> None:
        """Raise RuntimeError, here and on the other ranks, if gradients of the last backward are
        missing here, or on a rank that has given up."""
        # Few hooks may not have told; but a backward that failed began and did not end.
        if self._armed and (self._ready_order or (self._spares_hooks and self._graphs)):
            with outside_of_transforms():
                self._give_up()
        if self._buckets:
            self._refuse(self._report.late_where_given_up())

    def before_optimizer(self, stepped: set[int]) -> None:
        """Check the gradients of an optimizer that is about to step.

        If some gradients are missing, the others are not averaged yet and the other ranks wait for
        this one, which may never make another forward: so this must raise here.

        Args:
            stepped: the identities of the optimizer's parameters.

        Raises:
            RuntimeError: here and on the other ranks, naming the parameters.
        """
        if running_backward() != OUTSIDE:  # a user's hook steps while gradients arrive
            return
        with self._lock:
            ready = self._ready_order if self._armed else ()
            if any(id(self._parameters[index]) in stepped for index in ready):
                self._require_all()

    def build(self, *, rebuild: bool) -> None:
        """Make the buckets if there are none yet; a collective if it makes any.

        Args:
            rebuild: after the first reduction, make the buckets once more, in the order in which
                rank 0's gradients became ready.
        """
        if not self._buckets:
            with self._lock, outside_of_transforms():
                self._build()
        if rebuild and self._rebuild_due:
            with self._lock, outside_of_transforms():
                order = torch.tensor(self._observed_order, device=self._parameters[0].device)
                group = self._exchange.group
                dist.broadcast(order, src=dist.get_global_rank(group, 0), group=group)
                self._order = order.tolist()
                self._build()
                self._rebuild_due = False
                self._rebuilt = True
                if self._may_spare_hooks:
                    self._spare_hooks()

    def arm(self, output: Any) -> Any:
        """Make the next backward reduce. Returns the forward's output, to be used instead of the
        original."""
        with self._lock:
            self.has_begun = self._armed = True
            self._launched = 0
            self._ready_order = []
            self._flagged = set()
            self._ends_queued, self._graphs, self._late_graphs = set(), set(), set()
            self._has_asked = self._began_at_output = False
            self._expectation.arm(self._excluded)
            for bucket in self._buckets:
                bucket.arm()
                bucket.waiting = set(bucket.indices)
                if self._expectation.idle:
                    bucket.waiting -= self._expectation.idle
            if self._spares_hooks and (self._excluded or not self._sink.watch(output)):
                self._hook_all()
        return self._sink(output) if self._expectation.awaits_end else output

    def mark_ready(self, index: int, has_gradient: bool) -> None:
        """Note that a parameter's gradient has been accumulated, if it has one.

        Raises:
            RuntimeError: it comes more often in one backward than expected, as with a reentrant
                checkpoint, or after a reduction that counted the parameter as unused.
        """
        expectation = self._expectation
        if not self._armed:
            if expectation.tolerates_missing and has_gradient:
                expectation.note_local_use(index, is_late=running_backward() in self._late_graphs)
            return
        self._ready_order.append(index)
        if not has_gradient:
            expectation.fires_without_gradient(index)
        if expectation.awaits_end and not self._graphs:
            self._queue_end_of_graph()  # of an output in which the sink found no tensors
        if expectation.counts:
            with self._lock:
                if expectation.fires_again(index, has_gradient=has_gradient):
                    return
        waiting = self._bucket_of[index].waiting
        try:
            waiting.remove(index)
        except KeyError:
            missing = sorted(self._still_waiting())
            raise RuntimeError(expectation.fired_too_often(index, missing)) from None
        if has_gradient and index in self._at_once:
            with self._lock:
                are_new = self._spares_hooks and bool(self._graphs)
                self._at_once[index].collect_at_once(index, self._factor, all_are_new=are_new)
                self._follow(self._at_once[index])
        if self._spares_hooks:
            if index not in self._launching:
                return
            with self._lock:
                if self._graphs:  # else `.grad` was not seen when the backward began
                    self._look_for_gradients(self._bucket_of[index])
                    self._launch_full_buckets()
                self._queue_end_of_task()
        elif not waiting:
            with self._lock:
                self._launch_full_buckets()
                self._queue_end_of_task()

    def begin_backward(self) -> None:
        """Start the outermost backward through the output: register the callback for its end."""
        with self._lock:
            if not self._armed:
                self._late_graphs.add(running_backward())
                return
            # If there was an earlier one, it failed: its end never came.
            if running_backward() not in self._graphs:
                self._began_at_output = True
                held = map(is_not, map(_GRADIENT, self._parameters), repeat(None))
                if self._spares_hooks and any(held):
                    self._hook_all()
                if self._spares_hooks or self._expectation.awaits_end:
                    self._queue_end_of_graph()
            if self._options.find_unused and not self._has_asked:
                self._ask_the_graph()

    def shadow(self) -> None:
        """Take part in one reduction for a rank that has no data left: it contributes nothing, and
        gets the same average as the others."""
        with self._lock:
            expectation, everyone = self._expectation, range(len(self._parameters))
            for number, bucket in enumerate(self._buckets):
                bucket.clear()
                self._follow(bucket)
                if number == len(self._buckets) - 1 and expectation.tolerates_missing:
                    self._report.flag(everyone)
                self._send(number, average=False)
            keep = self._settle_missing() if expectation.tolerates_missing else set()
            expectation.learn_unused_everywhere(keep)
            for bucket in self._buckets:
                bucket.finish(keep)
            self._report.wait()
            self._report.reset()
            self._rebuild_due = not self._rebuilt

    def _ask_the_graph(self) -> None:
        """Stop waiting for parameters that the starting backward will not reach."""
        # torch.autograd.graph uses this private call to know which other hooks will fire.
        will_run = torch._C._will_engine_execute_node
        self._expectation.ask_the_graph(lambda index: will_run(self._hooks.nodes[index]))
        for bucket in self._buckets:
            bucket.waiting -= self._expectation.idle
        self._has_asked = True
        self._launch_full_buckets()

    def _launch_full_buckets(self) -> None:
        """Launch full buckets in bucket order, which is the same on all ranks; the order of
        readiness is not."""
        if not self._options.overlap and any(bucket.waiting for bucket in self._buckets):
            return
        while self._launched < len(self._buckets) and not self._buckets[self._launched].waiting:
            self._launch(self._launched)
            if not self._options.overlap:
                self._buckets[self._launched].wait()
            self._launched += 1

    def _launch(self, number: int) -> None:
        bucket = self._buckets[number]
        missing = self._expectation.missing(bucket.indices)
        without = bucket.collect(self._factor, missing)
        self._follow(bucket)
        flagged = without if self._expectation.tolerates_missing else missing
        self._report.flag(flagged)
        self._flagged.update(flagged)
        self.reductions += bucket.nbytes > 0
        self.reduced_bytes += bucket.nbytes
        average = self.divisor is None and self.hook is None and self._exchange.averages
        self._send(number, average=average)

    @property
    def _factor(self) -> float:
        """The factor of gradients on their way into a bucket."""
        return 1.0 if self.hook is not None else self._exchange.factor(self.divisor)

    def _follow(self, bucket: AnyBucket) -> None:
        """Move the report to the end of the last bucket, wherever that is now."""
        if bucket is self._buckets[-1] and isinstance(bucket, Bucket):
            self._report.ride_on(bucket.rider)

    def _send(self, number: int, *, average: bool) -> None:
        last = number == len(self._buckets) - 1
        if last:
            self._report.send(average=average)
        self._buckets[number].send(average=average, hook=self.hook, number=number, last=last)

    def _launch_rest(self) -> None:
        """Launch the remaining buckets: gradients that are still awaited will not come."""
        for bucket in self._buckets:
            bucket.waiting = set()
        self._launch_full_buckets()

    def _spare_hooks(self) -> None:
        """Hook large gradients, the last of each bucket, and parameters that are never used."""
        unused = self._expectation.never_used
        came = [index for index in self._observed_order if index not in unused]
        last = last_of_each([bucket.indices for bucket in self._buckets], came)
        self._hooks.put_on({*last, *unused, *self._at_once})
        self._launching = last
        self._spares_hooks = True

    def _hook_all(self) -> None:
        self._hooks.put_on(range(len(self._parameters)))
        self._spares_hooks = False

    def _look_for_gradients(self, bucket: AnyBucket) -> None:
        """Stop waiting for gradients that have come, and have no hook that will tell."""
        silent, parameters = bucket.waiting.difference(self._hooks.indices), self._parameters
        bucket.waiting -= {index for index in silent if parameters[index].grad is not None}

    def _end_with_few_hooks(self) -> None:
        """Finish if all gradients have come; if only some have, remember that for an error."""
        for bucket in self._buckets:
            self._look_for_gradients(bucket)
        self._launch_full_buckets()
        if self._launched == len(self._buckets):
            self._finish()
        else:
            found = (p.grad is not None for p in self._parameters)
            self._ready_order = [index for index, has_come in enumerate(found) if has_come]

    def _queue_end_of_graph(self) -> None:
        task = running_backward()
        self._graphs.add(task)
        at_end_of_backward(partial(self._end_of_graph, task))

    def _queue_end_of_task(self) -> None:
        """Register a callback for the end of the running backward, whether or not it is nested in
        another."""
        if self._graphs:
            return
        task = running_backward()
        if task not in self._ends_queued:
            self._ends_queued.add(task)
            at_end_of_backward(self._end_of_task)

    def _end_of_task(self) -> None:
        with self._lock:
            if self._armed and self._spares_hooks:
                self._end_with_few_hooks()
            elif self._armed and self._launched == len(self._buckets):
                self._finish()

    def _end_of_graph(self, task: int) -> None:
        """Handle the end of the outermost backward, where parameters may have got no gradient."""
        with self._lock:
            if not self._armed:
                return
            if self._spares_hooks:
                self._graphs.discard(task)
                self._end_with_few_hooks()
                return
            waiting = self._still_waiting()
            self._expectation.end(waiting)
            self._may_spare_hooks = self._began_at_output and self._is_regular()
            self._launch_rest()
            self._finish()

    def _is_regular(self) -> bool:
        """Whether the recorded backward was one of which `.grad` tells as much as hooks do."""
        return (
            self._expectation.each_comes_once
            and not self._options.find_unused
            and not self._sparse
            and all(self._parameters[index].grad is not None for index in self._ready_order)
        )

    def _still_waiting(self) -> set[int]:
        return {index for bucket in self._buckets for index in bucket.waiting}

    def _finish(self) -> None:
        """Wait for all buckets, and put the averages into all gradients.

        Raises:
            RuntimeError: another rank has given up waiting for its gradients, or something was
                added to a gradient after it was sent, which no hook noticed.
        """
        late = (
            [i for bucket in self._flat for i in bucket.came_late()] if self._spares_hooks else []
        )
        self._take_averages()
        missing = self._report.where_given_up()
        self._report.reset()
        self._refuse(missing)
        if late:
            raise RuntimeError(self._expectation.fired_too_often(late[0], ()))

    def _refuse(self, missing: list[int] | None) -> None:
        if missing is not None:
            raise RuntimeError(self._expectation.unfinished_elsewhere(missing))

    def _take_averages(self) -> None:
        self._armed = False
        keep = self._left_alone()
        for bucket in self._buckets:
            bucket.finish(keep)
        self._report.wait()
        self._expectation.settle(self._flagged)
        if not self._rebuilt:
            # A gradient that is accumulated several times is ready at the last of them; those
            # without one come last, so that they hold up no other bucket.
            last_first = dict.fromkeys(reversed(self._ready_order))
            rest = [index for index in range(len(self._names)) if index not in last_first]
            self._observed_order = [*reversed(last_first), *rest]
            self._rebuild_due = True

    def _left_alone(self) -> set[int]:
        """The parameters without a gradient on any rank, as far as this rank has none either.

        A rank with all gradients does not need the answer, which on CUDA would mean a wait for the
        device; in a static graph it is known from the first iteration.
        """
        if self._expectation.knows_unused_everywhere:
            return self._expectation.unused_everywhere or set()
        keep = self._settle_missing() if self._flagged else set()
        self._expectation.learn_unused_everywhere(keep)
        return keep

    def _settle_missing(self) -> set[int]:
        """Wait for the report; returns the parameters without a gradient on every rank."""
        self._report.wait()
        for bucket in self._buckets:
            # All buckets, in order: waiting for a sparse one communicates.
            bucket.wait()
        return self._report.on_every_rank()

    def _give_up(self) -> None:
        """Tell the other ranks, which wait for this one, that its missing gradients will not come.

        Raises:
            RuntimeError: always, here and on the other ranks.
        """
        failure: Exception | None = None
        missing = sorted(self._still_waiting())
        self._expectation.give_up(set(missing))
        try:
            self._report.flag(missing)
            self._report.give_up()
            self._launch_rest()
            self._take_averages()
            self._report.reset()
        except Exception as error:
            failure = error
            self._report.reset()
        self._armed = False
        rank = dist.get_rank(self._exchange.group)
        raise RuntimeError(self._expectation.unfinished(missing, rank)) from failure

    def _build(self) -> None:
        groups = assign_buckets(self._order, self._parameters, self._options.caps, self._sparse)
        count = len(self._parameters)
        lent = [index for bucket in self._buckets for index in bucket.lent()]
        self._buckets, rider = make_buckets(
            groups,
            self._parameters,
            self._sparse,
            self._exchange,
            self._options,
            has_hook=self.hook is not None,
        )
        of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._bucket_of = [of[index] for index in range(count)]
        self._flat = [bucket for bucket in self._buckets if isinstance(bucket, Bucket)]
        self._at_once = {index: bucket for bucket in self._flat for index in bucket.at_once}
        for index in lent:
            self._bucket_of[index].take_in(index)
        device = self._parameters[groups[-1][0]].device
        self._report = MissingReport(count, self._exchange, device, rider)
