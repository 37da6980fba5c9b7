"""The places of parameters in the flat tensor of a bucket, and the share that a rank steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.ddp.comm_hooks import GradientBucket
from dpbench.parallel.groups import has_backend
from dpbench.parallel.shm import ShmProcessGroup, zeros
from dpbench.parallel.torch_private import copy_all

# torch 2.13 has renamed both, and deprecates the old names.
gather_shares: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_shares: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

SCALAR_STATE = ("step", "mu_product")
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


BucketLayout = tuple[Place, ...]
"""One bucket of the wrapper; equal layouts have their parameters at the same places."""


def layout_of(numbers: Sequence[int], bucket: GradientBucket) -> BucketLayout:
    """The layout of a bucket whose parameters have these indices in the optimizer."""
    views, first = bucket.gradients(), bucket.buffer().storage_offset()
    starts = [int(view.storage_offset() - first) for view in views]
    return tuple(
        Place(number, start, start + view.numel(), tuple(view.size()), view.stride())
        for number, start, view in zip(numbers, starts, views, strict=True)
    )


class ShareExchange:
    """Gives each rank its share of a bucket's sum, and later all ranks the shares of the others.

    On gloo, ranks send each other messages: its all-gather takes twice as long, and its
    reduce-scatter is an all-reduce. A thread posts them, as to post one blocks while gloo reads or
    writes another. On shm, which takes less time than to wake a thread, all is done by what waits.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        sends = device.type == "cpu" and has_backend(group, device, "gloo")
        self._thread = ThreadPoolExecutor(1, "dpbench-sharded") if sends else None
        # By bucket, what ranks send; kept, as new memory costs as much as the message.
        self._received: dict[int, list[Tensor]] = {}

    def shares(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor's share for each rank; the last ones may be shorter."""
        numel = -(-flat.numel() // self.size)
        return [flat[rank * numel : (rank + 1) * numel] for rank in range(self.size)]

    def reduce(self, number: int, buffer: Tensor) -> Callable[[], Tensor]:
        """Begin to sum the gradients of a bucket, which are not to be used before the end.

        Returns:
            What waits for it, and returns the buffer with the sum in this rank's share and zeros
            elsewhere. On CUDA only the current stream waits.
        """
        shares = self.shares(buffer)
        own = shares[self.rank]
        finish: Callable[[], object]
        if self._thread is not None:
            received = self._received.setdefault(number, [])
            if not received or received[0].shape != own.shape:
                received[:] = [torch.empty_like(own) for _ in shares]
            finish = self._thread.submit(self._send, shares, received).result
        else:
            # Equal shares: the last ones reach into the elements behind the gradients of a bucket.
            full = buffer.as_strided((len(shares[0]) * self.size,), (1,))
            finish = self._begin(reduce_shares, self.shares(full)[self.rank], full)

        def wait() -> Tensor:
            finish()
            if self._thread is None:
                for rank, share in enumerate(shares):
                    if rank != self.rank:
                        share.zero_()
            return buffer

        return wait

    def gather(self, values: Tensor) -> Callable[[], object]:
        """Begin to give all ranks a flat tensor, of which each has its own share; returns what
        waits for it."""
        shares = self.shares(values)
        if self._thread is not None:
            own = [shares[self.rank]] * self.size
            return self._thread.submit(self._send, own, shares, adds=False).result
        return self._begin(gather_shares, values, shares[self.rank])

    def _begin(self, collective: Any, output: Tensor, operand: Tensor) -> Callable[[], object]:
        call = partial(collective, output, operand, group=self.group)
        if isinstance(self.group, ShmProcessGroup):
            return call
        wait: Callable[[], object] = call(async_op=True).wait
        return wait

    def _send(
        self, sent: Sequence[Tensor], received: Sequence[Tensor], *, adds: bool = True
    ) -> None:
        """Send a tensor to each other rank and receive one from it; then, with `adds`, add those
        received to this rank's own, and clear those sent."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        group: Any = self.group
        works = [group.recv([received[rank]], rank, 0) for rank in peers if len(received[rank])]
        works += [group.send([sent[rank]], rank, 0) for rank in peers if len(sent[rank])]
        for work in works:
            work.wait()
        if adds:
            with torch.no_grad():
                for rank in peers:
                    sent[rank].zero_()
                    sent[self.rank].add_(received[rank])


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
        layout: BucketLayout,
        parameters: Sequence[nn.Parameter],
        group_of: Mapping[int, int],
        make_optimizer: Callable[[Any], Optimizer],
        exchange: ShareExchange,
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            layout: of the bucket.
            parameters: all parameters of the optimizer.
            group_of: the number of each parameter's group in the optimizer, by its index.
            make_optimizer: the class of the optimizer.
            exchange: between the ranks.
        """
        self.layout, self._exchange = layout, exchange
        self._parameters = [parameters[place.number] for place in layout]
        first, numel = self._parameters[0], max(place.end for place in layout)
        # Padded so that all shares have the same length.
        padded = -(-numel // exchange.size) * exchange.size
        self._values = zeros(exchange.group, padded, first.dtype, first.device)
        with torch.no_grad():
            views = [place.view(self._values) for place in layout]
            copy_all(views, self._parameters)
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        low, high = (
            min((exchange.rank + edge) * (padded // exchange.size), numel) for edge in (0, 1)
        )
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

    def step(
        self, parameters: Sequence[nn.Parameter], settings: Sequence[dict[str, Any]]
    ) -> Callable[[], object]:
        """Step this rank's share with the average gradient, and begin to give it to all ranks.

        Args:
            parameters: all parameters of the optimizer, whose `.grad` holds the sum in this share.
            settings: the parameter groups of the whole optimizer.

        Returns:
            What waits for it.
        """
        scale = 1 / self._exchange.size
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
        return self._exchange.gather(self._values)

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
                and (parts[0].is_cuda or parts[0].dtype in (torch.float32, torch.float64))
                and not (isinstance(self._optimizer, optim.SGD) and len(started) > 1)
            )
        if parts[0].is_cuda and (group.get("fused") or group.get("capturable")):
            for part in parts:  # such a kernel reads these numbers on the GPU
                numbers = state.get(part, {})
                for name in numbers.keys() & SCALAR_STATE:
                    numbers[name] = numbers[name].to(part.device, torch.float32)
