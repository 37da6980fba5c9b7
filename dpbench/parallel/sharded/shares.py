"""The share of a bucket that a rank has: first the average gradients, then also the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


class ShareExchange:
    """Averages flat tensors into a share for each rank, and gives all ranks the others' shares.

    Shares have one length, so a flat tensor may end with elements that nobody needs.

    On gloo, ranks send each other messages: its all-gather takes twice as long, and its
    reduce-scatter is an all-reduce. A thread posts them, as to post one blocks while gloo reads or
    writes another. On shm, which takes less time than to wake a thread, all is done by what waits.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
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

    @property
    def _peers(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]


class Part(NamedTuple):
    """The elements of one parameter that lie in this rank's share.

    Attributes:
        place: of the whole parameter.
        begin, end: of this part, in elements of the bucket.
        averages: of the gradients, 1-D.
    """

    place: Place
    begin: int
    end: int
    averages: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AveragedBucket:
    """A bucket of the wrapper, of which this rank has the average gradients in its share.

    Attributes:
        parameters: the wrapper's own list, which tells this bucket from a later one.
        places: of the parameters.
        parts: this rank's share by parameter.
        averages: this rank's share, 1-D; elements behind the last gradient mean nothing.
    """

    parameters: Sequence[nn.Parameter]
    places: Sequence[Place]
    parts: Sequence[Part]
    averages: Tensor

    @classmethod
    def like(
        cls, bucket: GradientBucket, index_of: Mapping[int, int], exchange: ShareExchange
    ) -> AveragedBucket:
        """Undefined averages for a bucket; `index_of` has the index of each parameter by id."""
        places, end = [], 0
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            begin, end = end, end + view.numel()
            size = tuple(view.size())
            places.append(Place(index_of[id(parameter)], begin, end, size, view.stride()))
        numel = -(-end // exchange.size)
        averages, low = bucket.buffer().new_empty(numel), exchange.rank * numel
        parts = [
            Part(place, begin, end, averages[begin - low : end - low])
            for place in places
            if (begin := max(low, place.begin)) < (end := min(low + numel, place.end))
        ]
        return cls(bucket.parameters(), places, parts, averages)


class BucketShare:
    """The parameters of a bucket in one flat tensor, and this rank's share of it.

    Attributes:
        bucket: with the average gradients.
        values: of each of the bucket's parts, 1-D, in the memory of its parameter; they are stepped
            like parameters.
    """

    def __init__(
        self,
        bucket: AveragedBucket,
        group_of: Mapping[int, int],
        make_optimizer: Callable[[Any], Optimizer],
        exchange: ShareExchange,
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            bucket: with the parameters.
            group_of: the number of each parameter's group in the optimizer, by its index.
            make_optimizer: the class of the optimizer.
            exchange: between the ranks.
        """
        self.bucket, self._exchange = bucket, exchange
        first, numel = bucket.parameters[0], len(bucket.averages) * exchange.size
        self._flat = zeros(exchange.group, numel, first.dtype, first.device)
        with torch.no_grad():
            views = [place.view(self._flat) for place in bucket.places]
            copy_all(views, bucket.parameters)
            for parameter, view in zip(bucket.parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        self.values = [nn.Parameter(self._flat[part.begin : part.end]) for part in bucket.parts]
        by_group: dict[int, list[Tensor]] = {}
        for part, values in zip(bucket.parts, self.values, strict=True):
            by_group.setdefault(group_of[part.place.number], []).append(values)
        self._groups = list(by_group)
        self._optimizer = (
            make_optimizer([{"params": parts} for parts in by_group.values()]) if by_group else None
        )

    def states(self) -> Iterator[tuple[Part, dict[str, Any]]]:
        """The optimizer's state of each part, which may be empty."""
        for part, values in zip(self.bucket.parts, self.values, strict=True):
            assert self._optimizer is not None
            yield part, self._optimizer.state[values]

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter has been moved to other memory."""
        if [parameter.data_ptr() for parameter in self.bucket.parameters] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )

    def step(
        self, parameters: Sequence[nn.Parameter], settings: Sequence[dict[str, Any]]
    ) -> Callable[[], object]:
        """Step this rank's share with the average gradients, and begin to give it to all ranks.

        Args:
            parameters: all parameters of the optimizer; those without `.grad` are not stepped.
            settings: the parameter groups of the whole optimizer.

        Returns:
            What waits for it.
        """
        for part, values in zip(self.bucket.parts, self.values, strict=True):
            is_stepped = parameters[part.place.number].grad is not None
            values.grad = part.averages if is_stepped else None
        if self._optimizer is not None:
            for number, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                self._use(settings[number], group)
            self._optimizer.step()
        return self._exchange.gather(self._flat)

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
