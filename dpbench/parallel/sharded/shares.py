"""The share of a bucket that a rank has: first the average gradients, then also the parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.ddp.buckets import Bucket
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
        parameter: the parameter.
        number: its index in the optimizer.
        begin, end: where it begins and ends, in elements.
        size, stride: of the parameter, which covers these elements without gaps.
    """

    parameter: nn.Parameter
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


class ShareExchange:
    """Averages flat tensors into a share for each rank, and gives all ranks the others' shares.

    Shares have one length, so a flat tensor may end with elements that nobody needs.

    On gloo, ranks send each other messages: its all-gather takes twice as long, and its
    reduce-scatter is an all-reduce. A thread posts them, as to post one blocks while gloo reads or
    writes another. On shm, which takes less time than to wake a thread, all is done by what waits.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self._peers = [rank for rank in range(self.size) if rank != self.rank]
        sends = device.type == "cpu" and has_backend(group, device, "gloo")
        self._thread = ThreadPoolExecutor(1, "dpbench-sharded") if sends else None
        # What other ranks send, until it is added; kept, as new memory costs as much as a message.
        self._received = torch.empty(0, dtype=torch.uint8)

    def reduce(self, flat: Tensor, average: Tensor) -> Callable[[], object]:
        """Begin to average a flat tensor over the ranks; `average` gets this rank's share.

        Returns:
            What waits for it. On CUDA only the current stream waits.
        """
        if self._thread is not None:
            shares = list(flat.view(self.size, -1))
            return self._thread.submit(self._send_and_average, shares, average).result
        return self._begin(partial(reduce_shares, average, flat, dist.ReduceOp.AVG))

    def gather(self, flat: Tensor) -> Callable[[], object]:
        """Begin to give all ranks a flat tensor, of which each has its own share; returns what
        waits for it."""
        shares = list(flat.view(self.size, -1))
        own = shares[self.rank]
        if self._thread is not None:
            return self._thread.submit(self._send, [own] * self.size, shares).result
        return self._begin(partial(gather_shares, flat, own))

    def _begin(self, collective: Callable[..., Any]) -> Callable[[], object]:
        if isinstance(self.group, ShmProcessGroup):
            return partial(collective, group=self.group)
        wait: Callable[[], object] = collective(group=self.group, async_op=True).wait
        return wait

    def _send_and_average(self, shares: Sequence[Tensor], average: Tensor) -> None:
        nbytes = self.size * average.nbytes
        if self._received.numel() < nbytes:
            self._received = torch.empty(nbytes, dtype=torch.uint8)
        received = self._received[:nbytes].view(average.dtype).view(self.size, -1)
        self._send(shares, list(received))
        torch.mul(shares[self.rank], 1 / self.size, out=average)
        for rank in self._peers:
            average.add_(received[rank], alpha=1 / self.size)

    def _send(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """Send a tensor to each other rank, and receive one from it."""
        group: Any = self.group
        works = [group.recv([received[rank]], rank, 0) for rank in self._peers]
        works += [group.send([sent[rank]], rank, 0) for rank in self._peers]
        for work in works:
            work.wait()


class ParameterPart(NamedTuple):
    """The elements of one parameter in this rank's share, which are stepped like a parameter.

    Attributes:
        place: of the whole parameter.
        begin, end: of this part, in elements of the bucket.
        values: 1-D, in the memory of the parameter.
        averages: of the gradients, 1-D.
    """

    place: Place
    begin: int
    end: int
    values: nn.Parameter
    averages: Tensor


class BucketShare:
    """The parameters of a bucket in one flat tensor, and this rank's share of it.

    Attributes:
        places: of all parameters.
        parts: this rank's share by parameter.
        averages: the average gradients of this rank's share, 1-D; what lies behind the last
            gradient means nothing.
    """

    def __init__(
        self,
        bucket: Bucket,
        groups: Sequence[Collection[nn.Parameter]],
        make_optimizer: Callable[[Any], Optimizer],
        exchange: ShareExchange,
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            bucket: of the wrapper, which keeps it.
            groups: the parameters in each group of the optimizer.
            make_optimizer: the class of the optimizer.
            exchange: between the ranks.
        """
        parameters, self._exchange = bucket.parameters, exchange
        self.places, end = [], 0
        for index, parameter, view in zip(bucket.indices, parameters, bucket.views, strict=True):
            begin, end = end, end + view.numel()
            size, stride = tuple(view.size()), view.stride()
            self.places.append(Place(parameter, index, begin, end, size, stride))
        share = -(-end // exchange.size)
        first, low = parameters[0], exchange.rank * share
        self._flat = zeros(exchange.group, share * exchange.size, first.dtype, first.device)
        with torch.no_grad():
            views = [place.view(self._flat) for place in self.places]
            copy_all(views, parameters)
            for parameter, view in zip(parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        self.averages = bucket.flat.new_zeros(share)
        self.parts = [
            ParameterPart(
                place,
                begin,
                end,
                nn.Parameter(self._flat[begin:end]),
                self.averages[begin - low : end - low],
            )
            for place in self.places
            if (begin := max(low, place.begin)) < (end := min(low + share, place.end))
        ]
        # With the groups of the whole optimizer, some of which may be empty here.
        self._optimizer = make_optimizer(
            [
                {"params": [p.values for p in self.parts if p.place.parameter in group]}
                for group in groups
            ]
        )

    def state_of(self, part: ParameterPart) -> dict[str, Any]:
        """The optimizer's state of a part."""
        state: dict[str, Any] = self._optimizer.state[part.values]
        return state

    def reduce(self, gradients: Tensor) -> Callable[[], object]:
        """Begin to average the bucket's flat gradients; returns what waits for it."""
        # Equal shares: the last ones reach into the elements behind the gradients of a bucket.
        numel = len(self.averages) * self._exchange.size
        return self._exchange.reduce(gradients.as_strided((numel,), (1,)), self.averages)

    def gather_averages(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The average gradients of all parameters, in new tensors; a collective."""
        flat = self.averages.repeat(self._exchange.size)
        self._exchange.gather(flat)()
        for place in self.places:
            yield place.parameter, place.view(flat)

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter has been moved to other memory."""
        if [place.parameter.data_ptr() for place in self.places] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )

    def step(self, settings: Sequence[dict[str, Any]]) -> Callable[[], object]:
        """Step this rank's share with the average gradients, and begin to give it to all ranks.

        Parameters without `.grad` are not stepped. `settings` are the parameter groups of the whole
        optimizer. Returns what waits for the others' shares.
        """
        for part in self.parts:
            part.values.grad = None if part.place.parameter.grad is None else part.averages
        for of_all, of_share in zip(settings, self._optimizer.param_groups, strict=True):
            if of_share["params"]:
                self._use(of_all, of_share)
        self._optimizer.step()
        return self._exchange.gather(self._flat)

    def _use(self, settings: Mapping[str, Any], group: dict[str, Any]) -> None:
        """Give a group of parts the learning rate and other settings of its parameters' group.

        The fused kernel is the fastest. In torch 2.13 that of SGD makes wrong steps in bfloat16 on
        the CPU, and cannot begin to have momentum for some of the tensors.
        """
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
