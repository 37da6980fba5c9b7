"""The places of parameters in the flat tensor of a bucket, and the share that a rank steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.shm import zeros
from dpbench.parallel.torch_private import copy_all

# torch 2.13 has renamed both, and deprecates the old names.
all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Wait = Callable[[], object]

SINGLE = ("step", "mu_product")
"""Names of state that is one number for a whole parameter. Its shape is no proof of that, as a
parameter may be a single number too."""
_FUSED = (optim.SGD, optim.Adam, optim.AdamW)
"""Optimizers with one kernel for the whole step, on the CPU and on CUDA."""


class Place(NamedTuple):
    """A parameter's elements in the flat tensor of its bucket.

    Attributes:
        number: the parameter's index in the optimizer.
        begin, end: where it begins and ends, in elements.
        size, stride: of the parameter, which covers these elements without gaps.
    """

    number: int
    begin: int
    end: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """The parameter's view of a flat tensor of any dtype."""
        return flat[self.begin : self.end].as_strided(self.size, self.stride)

    def part(self, full: Tensor, begin: int, end: int) -> Tensor:
        """The elements of a tensor like the parameter that lie here in the flat tensor, 1-D."""
        if full.stride() != self.stride:
            full = torch.empty_strided(
                self.size, self.stride, dtype=full.dtype, device=full.device
            ).copy_(full)
        return full.as_strided((self.end - self.begin,), (1,))[
            begin - self.begin : end - self.begin
        ]


Layout = tuple[Place, ...]
"""One bucket of the wrapper; equal layouts have their parameters at the same places."""


def layout_of(numbers: Sequence[int], buffer: Tensor, views: Sequence[Tensor]) -> Layout:
    """The layout of a bucket's buffer with these views for the parameters."""
    first = int(buffer.storage_offset())
    starts = [int(view.storage_offset()) - first for view in views]
    return tuple(
        Place(number, start, start + view.numel(), tuple(view.size()), view.stride())
        for number, start, view in zip(numbers, starts, views, strict=True)
    )


def share_numel(numel: int, group: dist.ProcessGroup) -> int:
    """Elements in each rank's share of a bucket; the last ranks may have fewer."""
    return -(-numel // dist.get_world_size(group))


class Messenger:
    """Sends tensors between two ranks at a time, which is how shares travel on gloo.

    There its all-gather takes twice as long, and its reduce-scatter is an all-reduce. A thread
    posts the messages: to post one blocks while gloo reads or writes another.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._thread = ThreadPoolExecutor(1, "dpbench-sharded")

    def exchange(
        self,
        sent: Mapping[int, Tensor],
        received: Mapping[int, Tensor],
        then: Callable[[], object] | None = None,
    ) -> Wait:
        """Begin to send tensors to other ranks and to receive some from them, by rank; call `then`
        at the end. Returns what waits for it."""

        def run() -> None:
            group = self._group
            works: list[Any] = [group.recv([t], r, 0) for r, t in received.items() if t.numel()]
            works += [group.send([t], r, 0) for r, t in sent.items() if t.numel()]
            for work in works:
                work.wait()
            if then is not None:
                with torch.no_grad():
                    then()

        return self._thread.submit(run).result


def messenger_for(group: dist.ProcessGroup, device: torch.device) -> Messenger | None:
    """A messenger if the group has to send shares as messages."""
    is_gloo = device.type == "cpu" and "cpu:gloo" in dist.get_backend_config(group)
    return Messenger(group) if is_gloo else None


class ShareReduction:
    """Sums a bucket over the ranks, each of which gets its own share only.

    The sum begins with `begin`, and `wait` ends it.
    """

    def __init__(self, group: dist.ProcessGroup, messenger: Messenger | None) -> None:
        self._group, self._messenger = group, messenger
        # What other ranks send, by rank; kept, as new memory costs as much as the message.
        self._received: dict[int, Tensor] = {}

    def begin(self, buffer: Tensor) -> None:
        """Begin with this rank's gradients, 1-D, which are not to be used before `wait`."""
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        numel = share_numel(buffer.numel(), self._group)
        shares = {peer: buffer[peer * numel : (peer + 1) * numel] for peer in range(size)}
        self._buffer, self._own = buffer, shares.pop(rank)
        self._others: Iterable[Tensor] = shares.values()
        if self._messenger is not None:
            if {t.shape for t in self._received.values()} != {self._own.shape}:
                self._received = {peer: torch.empty_like(self._own) for peer in shares}
            self._wait: Wait = self._messenger.exchange(shares, self._received, self._add)
            return
        full = _padded(buffer, numel * size)
        target = full[rank * numel : (rank + 1) * numel]
        work = reduce_scatter(target, full, group=self._group, async_op=True)
        if target.data_ptr() != self._own.data_ptr():
            self._received = {rank: target[: len(self._own)]}
            self._others = [buffer]

        def wait() -> None:
            work.wait()
            self._add()

        self._wait = wait

    def wait(self) -> Tensor:
        """Return the buffer with the sum in this rank's share and zeros elsewhere."""
        self._wait()
        return self._buffer

    def _add(self) -> None:
        for share in self._others:
            share.zero_()
        for received in self._received.values():
            self._own.add_(received)


def _padded(buffer: Tensor, numel: int) -> Tensor:
    """The buffer with more elements behind it: those of its memory, if it has them, else a copy."""
    room = buffer.untyped_storage().nbytes() // buffer.itemsize - buffer.storage_offset()
    if numel <= room:
        return buffer.as_strided((numel,), (1,))
    return torch.cat([buffer, buffer.new_zeros(numel - buffer.numel())])


class ParameterPart(NamedTuple):
    """The elements of one parameter in this rank's share, which it steps like a parameter.

    Attributes:
        place: of the whole parameter.
        begin, end: of this part, in elements of the bucket.
        values: 1-D, in the memory of the parameter.
        gradient: 1-D, for the average gradient.
    """

    place: Place
    begin: int
    end: int
    values: nn.Parameter
    gradient: Tensor


class BucketShare:
    """The parameters of a bucket in one flat tensor, and this rank's share of it.

    Attributes:
        layout: of the bucket.
        parts: this rank's share by parameter.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        group_of: Mapping[int, int],
        make_optimizer: Callable[[Any], Optimizer],
        group: dist.ProcessGroup,
        messenger: Messenger | None,
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            layout: of the bucket.
            parameters: all parameters of the optimizer.
            group_of: the number of each parameter's group in the optimizer, by its index.
            make_optimizer: the class of the optimizer.
            group: the ranks.
            messenger: sends the shares, if the group has to.
        """
        self.layout, self._group, self._messenger = layout, group, messenger
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        numel = max(place.end for place in layout)
        share = share_numel(numel, group)
        low, high = (min(edge * share, numel) for edge in (rank, rank + 1))
        self._parameters = [parameters[place.number] for place in layout]
        first = self._parameters[0]
        # All parameters, padded so that all shares have the same length.
        self._values = zeros(group, share * size, first.dtype, first.device)
        self._shares = dict(enumerate(self._values.view(size, share)))
        self._own = self._shares.pop(rank)
        with torch.no_grad():
            views = [place.view(self._values) for place in layout]
            copy_all(views, self._parameters)
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        self.parts = [
            ParameterPart(
                place,
                begin,
                end,
                nn.Parameter(self._values[begin:end]),
                first.new_zeros(end - begin, requires_grad=False),
            )
            for place in layout
            if (begin := max(low, place.begin)) < (end := min(high, place.end))
        ]
        by_group: dict[int, list[Tensor]] = {}
        for part in self.parts:
            by_group.setdefault(group_of[part.place.number], []).append(part.values)
        self._groups = list(by_group)
        self._optimizer = (
            make_optimizer([{"params": parts} for parts in by_group.values()]) if by_group else None
        )

    def state_of(self, part: ParameterPart) -> dict[str, Any]:
        """The optimizer's state of a part."""
        assert self._optimizer is not None
        state: dict[str, Any] = self._optimizer.state[part.values]
        return state

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter has been moved to other memory."""
        if [parameter.data_ptr() for parameter in self._parameters] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )

    def step(self, parameters: Sequence[nn.Parameter], settings: Sequence[dict[str, Any]]) -> Wait:
        """Step this rank's share with the average gradient, and begin to give it to all ranks.

        Args:
            parameters: all parameters of the optimizer, whose `.grad` holds the sum in this share.
            settings: the parameter groups of the whole optimizer.

        Returns:
            What to wait for.
        """
        scale = 1 / dist.get_world_size(self._group)
        for part in self.parts:
            gradient = parameters[part.place.number].grad
            part.values.grad = None if gradient is None else part.gradient
            if gradient is not None:
                summed = part.place.part(gradient, part.begin, part.end)
                torch.mul(summed, scale, out=part.gradient)
        if self._optimizer is not None:
            for number, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                self._use(settings[number], group)
            self._optimizer.step()
        if self._messenger is not None:
            return self._messenger.exchange(dict.fromkeys(self._shares, self._own), self._shares)
        work: dist.Work = all_gather(self._values, self._own, self._group, async_op=True)
        return work.wait

    def _use(self, settings: Mapping[str, Any], group: dict[str, Any]) -> None:
        """Give a group of parts the learning rate and other settings of its parameters' group.

        The fused kernel is the fastest. In torch 2.13 that of SGD makes wrong steps in bfloat16 on
        the CPU, and cannot begin to have momentum for some of the tensors.
        """
        assert self._optimizer is not None
        state, parts = self._optimizer.state, group["params"]
        group.update({k: v for k, v in settings.items() if k not in ("params", "param_names")})
        if settings.get("fused") is None and settings.get("foreach") is None:
            started = {bool(state.get(part)) for part in parts if part.grad is not None}
            group["fused"] = (
                isinstance(self._optimizer, _FUSED)
                and parts[0].dtype in (torch.float32, torch.float64)
                and parts[0].device.type in ("cpu", "cuda")
                and not (isinstance(self._optimizer, optim.SGD) and len(started) > 1)
            )
        if parts[0].is_cuda and (group.get("fused") or group.get("capturable")):
            for part in parts:  # such a kernel reads these numbers on the GPU
                numbers = state.get(part, {})
                for name in numbers.keys() & SINGLE:
                    numbers[name] = numbers[name].to(part.device, torch.float32)
