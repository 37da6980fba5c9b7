"""When which bucket is reduced: hooks on the parameters, armed by a forward.

forward ─ prepare ─ module ─ arm          hooks count from now on
backward ─ hook per parameter             its bucket's pending count goes down
         ├ bucket full                    launch, if all earlier buckets are launched
         └ end of backward                wait for all buckets, gradients become views, disarm
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.buckets import Bucket, BucketCaps, assign_buckets


class Reducer:
    """Averages the gradients of the parameters over the ranks of a group, during backward.

    Attributes:
        reduced_bytes: bytes of gradients given to all-reduce since construction.
        reductions: all-reduces since construction.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        group: dist.ProcessGroup,
        caps: BucketCaps,
    ) -> None:
        """
        Args:
            named_parameters: all of the module, each once; those that require a gradient now are
                reduced.
            group: the ranks.
            caps: of the buckets.
        """
        self._all = list(named_parameters)
        self._expected = [_state(parameter) for _, parameter in self._all]
        trained = [(name, p) for name, p in self._all if p.requires_grad]
        self._names = [name for name, _ in trained]
        self._parameters = [parameter for _, parameter in trained]
        self._group = group
        self._caps = caps
        self.reduced_bytes = 0
        self.reductions = 0
        self._armed = False
        self._rebuilt = False
        self._ready_order: list[int] = []
        self._observed_order: list[int] = []
        self._is_ready: list[bool] = []
        self._callback_queued = False
        self._launched = 0
        # From the last layer to the first, until the order of the gradients has been seen.
        self._build(range(len(trained) - 1, -1, -1))
        me = weakref.ref(self)
        handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(_on_ready, me, index)
            )
            for index, parameter in enumerate(self._parameters)
        ]
        self._detach = weakref.finalize(self, _remove, handles)

    def remove_hooks(self) -> None:
        """Give the parameters back; also done when the reducer is garbage collected."""
        self._detach()

    def prepare(self, *, may_communicate: bool) -> None:
        """Before a forward whose backward will reduce.

        Args:
            may_communicate: whether all ranks are here, so that the buckets can be rebuilt, once,
                in the order in which the gradients got ready. That is a collective.

        Raises:
            RuntimeError: the last backward left out parameters, or a parameter has changed in
                what its bucket relies on; the message names them.
        """
        if self._armed and self._ready_order:
            raise RuntimeError(self._unfinished())
        for (name, parameter), expected in zip(self._all, self._expected, strict=True):
            if _state(parameter) != expected:
                raise RuntimeError(
                    f"parameter {name!r} had (requires_grad, dtype, device) = {expected} when it "
                    f"was wrapped and now has {_state(parameter)}; wrap the module again"
                )
        if self._observed_order and may_communicate:
            self._build(self._agreed_order(self._observed_order))
            self._observed_order = []
            self._rebuilt = True

    def arm(self) -> None:
        """The next backward reduces."""
        self._armed = True
        self._callback_queued = False
        self._launched = 0
        self._ready_order = []
        self._is_ready = [False] * len(self._parameters)
        for bucket in self._buckets:
            bucket.pending = len(bucket.parameters)

    def disarm(self) -> None:
        """The next backward adds to the local gradients only."""
        self._armed = False

    def mark_ready(self, index: int) -> None:
        """The gradient of a parameter has been accumulated.

        Raises:
            RuntimeError: a second time in one backward, as by a reentrant checkpoint.
        """
        if not self._armed:
            return
        if not self._callback_queued:
            # The only way to run at the end of a backward; torch's own DDP uses it too.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
            self._callback_queued = True
        if self._is_ready[index]:
            raise RuntimeError(
                "Expected to mark a variable ready only once. Parameter at index "
                f"{index} with name {self._names[index]} has been marked as ready twice."
            )
        self._is_ready[index] = True
        self._ready_order.append(index)
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        if bucket.pending == 0:
            self._launch_full_buckets()

    def _launch_full_buckets(self) -> None:
        """In the order of the buckets, which is the same on all ranks; readiness is not."""
        while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
            bucket = self._buckets[self._launched]
            bucket.launch()
            self._launched += 1
            self.reductions += 1
            self.reduced_bytes += bucket.nbytes

    def _finish(self) -> None:
        """At the end of a backward, which may be one nested in another that goes on."""
        self._callback_queued = False
        if self._launched < len(self._buckets):
            return
        for bucket in self._buckets:
            bucket.finish()
        self._armed = False
        if not self._rebuilt:
            self._observed_order = self._ready_order

    def _build(self, order: Sequence[int]) -> None:
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        for indices in assign_buckets(order, self._parameters, self._caps):
            bucket = Bucket([self._parameters[i] for i in indices], self._group)
            self._buckets.append(bucket)
            self._bucket_of.update(dict.fromkeys(indices, bucket))

    def _agreed_order(self, observed: list[int]) -> list[int]:
        """The order that rank 0 observed; a collective."""
        order = torch.tensor(observed, device=self._parameters[0].device)
        dist.broadcast(order, src=dist.get_global_rank(self._group, 0), group=self._group)
        return order.tolist()

    def _unfinished(self) -> str:
        missing = [name for name, seen in zip(self._names, self._is_ready, strict=True) if not seen]
        rank = dist.get_rank(self._group)
        return (
            "Expected to have finished reduction in the prior iteration before starting a new one. "
            "The module has parameters that were not used in producing the loss, or the backward "
            "failed. Let all outputs of forward take part in the loss, and all parameters in the "
            f"outputs.\nParameters which did not receive grad for rank {rank}: {', '.join(missing)}"
        )


def _state(parameter: Tensor) -> tuple[bool, torch.dtype, torch.device]:
    return parameter.requires_grad, parameter.dtype, parameter.device


def _on_ready(reducer: weakref.ref[Reducer], index: int, _: Tensor) -> None:
    # A weak reference: the parameters outlive the wrapper, and must not keep its buckets.
    if (alive := reducer()) is not None:
        alive.mark_ready(index)


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()
