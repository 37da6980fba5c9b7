"""Buckets: gradients that are averaged together in one collective."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.comm_hooks import Future, GradientBucket, Hook
from dpbench.parallel.shm import zeros
from dpbench.parallel.torch_private import copy_all

MEBIBYTE = 1024**2
LARGE_BYTES = 32 * 1024
"""Gradients of this mean size are copied one by one as soon as they come, while they are in the
cache. For smaller ones a call for each takes longer than to copy the whole bucket at once."""
_FLAG_NUMEL = 16
"""One element would do. 16, a cache line of float32, keep the length of a bucket, which `shm`
divides among its ranks, a multiple of 16 if that of the gradients is."""
_GRADIENT = attrgetter("grad")


class Bucket:
    """Dense gradients of one dtype and device, side by side in one flat tensor.

    On `shm` the flat tensor lies in memory of the group, which is reduced in place. The
    elements behind the gradients are a flag: not zero after the sum if a rank has given up.

    Attributes:
        indices: the parameters' indices in the reducer.
        waiting: indices whose gradient has not come yet in the running backward.
        nbytes: bytes of the gradients.
        takes_at_once: whether to `take` each gradient as soon as it comes.
    """

    def __init__(
        self,
        indices: Sequence[int],
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        *,
        as_view: bool,
    ) -> None:
        """
        Args:
            indices: which of `parameters` are in the bucket; they have one dtype and device.
            parameters: all parameters of the reducer.
            group: the ranks.
            as_view: whether `.grad` becomes a view of the flat tensor.
        """
        self.indices = list(indices)
        self.waiting: set[int] = set()
        self._parameters = [parameters[index] for index in indices]
        self.nbytes = sum(parameter.nbytes for parameter in self._parameters)
        self._group, self._as_view = group, as_view
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = True
        first = self._parameters[0]
        sizes = [parameter.numel() for parameter in self._parameters]
        wire = zeros(group, sum(sizes) + _FLAG_NUMEL, first.dtype, first.device)
        self._wire = torch.view_as_real(wire) if wire.is_complex() else wire
        self.flat, self._flag = wire[:-_FLAG_NUMEL], wire[-_FLAG_NUMEL:]
        self._views = [
            part.as_strided(parameter.size(), parameter.stride())
            if _is_dense(parameter)
            else part.view(parameter.shape)
            for part, parameter in zip(torch.split(self.flat, sizes), self._parameters, strict=True)
        ]
        self._place_of = {index: place for place, index in enumerate(self.indices)}
        self.takes_at_once = first.is_cpu and self.nbytes >= LARGE_BYTES * len(self.indices)
        self._taken: set[int] = set()  # positions that the flat tensor has already, scaled
        self._work: dist.Work | None = None
        self._future: Future[Any] | None = None
        # Gradients that stay in memory of their own, and get a copy of the average.
        self._apart: list[tuple[Tensor, Tensor]] = []
        # By position: gradients from before this backward, with their values.
        self._before: dict[int, tuple[Any, Any]] = {}

    @torch.no_grad()
    def take(self, index: int, scale: float) -> None:
        """Take a gradient that has come, ahead of the others; `fill` must get the same scale."""
        place = self._place_of[index]
        gradient, view = self._parameters[place].grad, self._views[place]
        if gradient is None or gradient is view or gradient.is_sparse:
            return  # `fill` raises torch's error for a sparse one
        torch.mul(gradient, scale, out=view)
        self._taken.add(place)
        self._replace(place, gradient)

    @torch.no_grad()
    def fill(self, scale: float, silent: Collection[int] = ()) -> None:
        """Take the gradients, times `scale`; zero where there is none.

        Args:
            scale: for all gradients.
            silent: indices without a gradient from this backward. Their older gradient counts, but
                `hand_out` restores it if no rank has used the parameter.
        """
        gradients: list[Any] = list(map(_GRADIENT, self._parameters))
        # Two passes over the list take a fraction of the time of one loop that asks each gradient.
        are_new = not any(map(is_, gradients, repeat(None))) and not any(
            map(is_, gradients, self._views)
        )
        if are_new and not silent and not self._taken:
            copy_all(self._views, gradients)
            self.flat.mul_(scale)
            if self._as_view:
                for parameter, view in zip(self._parameters, self._views, strict=True):
                    parameter.grad = view
            else:
                self._apart = list(zip(gradients, self._views, strict=True))
            return
        targets, sources, rest = [], [], []
        for place, (gradient, view) in enumerate(zip(gradients, self._views, strict=True)):
            if place in self._taken:
                continue
            rest.append(view)
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                targets.append(view)
                sources.append(gradient)
            if gradient is None or self.indices[place] in silent:
                values = gradient.clone() if gradient is view else gradient
                self._before[place] = (gradient, values)
            elif gradient is not view:
                self._replace(place, gradient)
        copy_all(targets, sources)
        if self._taken:
            for view in rest:
                view.mul_(scale)
            self._taken = set()
        else:
            self.flat.mul_(scale)

    def clear(self) -> None:
        """Take zeros, for a rank that has no data."""
        self.flat.zero_()
        self._before = dict.fromkeys(range(len(self._parameters)), (None, None))

    def send(self, hook: Hook | None, number: int, *, last: bool) -> None:
        """Start the sum over the ranks; `hook` replaces the all-reduce.

        Raises:
            RuntimeError: the hook returns no future.
        """
        if hook is None:
            # Not dist.all_reduce, whose checks and logging take longer than a small bucket.
            self._work = self._group.allreduce([self._wire], self._options)
        else:
            self._future = hook(
                GradientBucket(number, self.flat, self._views, self._parameters, last)
            )
            if not hasattr(self._future, "wait"):
                raise RuntimeError(
                    "callback must return a torch.futures.Future object, but got "
                    f"{type(self._future).__name__} from the communication hook"
                )

    def wait(self) -> None:
        """Wait for the sum; on CUDA only the current stream waits."""
        if self._work is not None:
            work, self._work = self._work, None
            work.wait()
        if self._future is not None:
            result, self._future = self._future.wait(), None
            average = result[0] if isinstance(result, (list, tuple)) else result
            if average.data_ptr() != self.flat.data_ptr() or average.dtype != self.flat.dtype:
                self.flat.copy_(average.reshape(self.flat.shape))

    @torch.no_grad()
    def hand_out(self, used: Collection[int] | None) -> None:
        """Put the averages into `.grad` of the used parameters; None means all of them."""
        if self._apart:
            copy_all([gradient for gradient, _ in self._apart], [view for _, view in self._apart])
            self._apart = []
        for place, (gradient, values) in self._before.items():
            parameter, view = self._parameters[place], self._views[place]
            if used is not None and self.indices[place] not in used:
                if gradient is view and values is not None:
                    view.copy_(values)
                parameter.grad = gradient
            elif self._as_view:
                parameter.grad = view
            elif gradient is None:
                parameter.grad = view.clone()
            else:
                gradient.detach().copy_(view)
        self._before = {}

    def give_up(self) -> None:
        """Tell the other ranks, with the next `send`, that gradients are missing here."""
        self._flag.fill_(1)

    def has_given_up(self) -> bool:
        """Whether any rank has given up; resets the answer. On CUDA it is always no, as reading it
        would wait for the device; there the timeout of the collective ends the wait, as with
        torch's class."""
        if not self._flag.is_cpu or not self._flag.any():
            return False
        self._flag.zero_()
        return True

    def _replace(self, place: int, gradient: Tensor) -> None:
        """Make the gradient a view of the bucket, or note where to copy the average."""
        if self._as_view:
            # Now and not at the end, so that the memory of the gradient can be used again.
            self._parameters[place].grad = self._views[place]
        else:
            self._apart.append((gradient, self._views[place]))


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill its memory without gaps or overlap, in any order."""
    if tensor.is_contiguous():
        return True
    # Preserves the strides if and only if they have neither gaps nor overlaps.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def caps_in_bytes(cap_mb: float | None, caps_mb: Sequence[float] | None) -> tuple[int, ...]:
    """The sizes at which the first, second … bucket is closed; the last holds for all others too.

    By default the first bucket is small, so that communication starts early.

    Raises:
        ValueError: both arguments are given, or a cap is not above zero.
    """
    default = (1.0, 25.0) if cap_mb is None else (cap_mb,)
    caps = default if caps_mb is None else tuple(caps_mb)
    both = cap_mb is not None and caps_mb is not None
    if both or not caps or not all(cap > 0 for cap in caps):
        raise ValueError(
            f"got bucket_cap_mb={cap_mb} and bucket_cap_mb_list={caps_mb}, expected one of them, "
            "with numbers of MiB above 0"
        )
    return tuple(int(cap * MEBIBYTE) for cap in caps)


def assign_buckets(
    order: Sequence[int],
    parameters: Sequence[Tensor],
    caps: Sequence[int],
    alone: Collection[int] = (),
) -> list[list[int]]:
    """Assign parameters to buckets. A bucket can exceed its cap by its last parameter.

    Args:
        order: indices of all parameters, in the order in which their gradients become ready.
        parameters: all parameters; a bucket holds one dtype and one device.
        caps: in bytes, for the buckets of each dtype and device; see `caps_in_bytes`.
        alone: indices that get a bucket of their own, such as those with sparse gradients.

    Returns:
        The indices in each bucket, in the order in which the buckets are filled and reduced.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    sizes: dict[object, int] = {}
    counts: dict[object, int] = {}
    for index in order:
        if index in alone:
            closed.append([index])
            continue
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device)
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + parameter.nbytes
        if sizes[key] >= caps[min(counts.get(key, 0), len(caps) - 1)]:
            closed.append(open_.pop(key))
            del sizes[key]
            counts[key] = counts.get(key, 0) + 1
    return closed + list(open_.values())
