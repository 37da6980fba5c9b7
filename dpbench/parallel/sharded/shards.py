"""A rank's shard of a bucket: its averages, parameters and their state; and how shards travel."""

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
from dpbench.parallel.groups import Wait, has_backend
from dpbench.parallel.shm import ShmProcessGroup, allocate_group_zeros
from dpbench.parallel.torch_private import copy_all

SCALAR_STATE = ("step", "mu_product")
"""Names of state that is one number for a whole parameter. The shape is no proof of that, as a
parameter may be a single number too."""
_FUSED = (optim.SGD, optim.Adam, optim.AdamW)
"""Optimizers with one kernel for the whole step, on the CPU and on CUDA."""
# torch 2.13 has renamed both, and deprecates the old names.
all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class ParameterShard(NamedTuple):
    """The elements of one parameter in this rank's shard, which are stepped like a parameter.

    Attributes:
        parameter: the whole parameter.
        begin, end: where these elements are in the memory order of the parameter.
        values: these elements, 1-D, in the memory of the parameter.
        averages: the averages of their gradients, 1-D.
    """

    parameter: nn.Parameter
    begin: int
    end: int
    values: nn.Parameter
    averages: Tensor


class BucketShard:
    """The parameters of a bucket in one flat tensor, and the optimizer of this rank's shard of it.

    Attributes:
        bucket: the bucket.
        parts: this rank's shard by parameter.
        averages: the average gradients of this rank's shard, 1-D; what lies behind the last
            gradient means nothing.
    """

    def __init__(
        self,
        bucket: Bucket,
        groups: Sequence[Collection[nn.Parameter]],
        make_optimizer: Callable[[Any], Optimizer],
        transfers: ShardTransfers,
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            bucket: a bucket that the wrapper keeps.
            groups: the parameters in each group of the optimizer.
            make_optimizer: the class of the optimizer.
            transfers: the collectives of the wrapper's ranks.
        """
        self.bucket, self._transfers = bucket, transfers
        parameters, size = bucket.parameters(), transfers.size
        numel = -(-bucket.flat.numel() // size)
        self._flat = allocate_group_zeros(
            transfers.group, numel * size, parameters[0].dtype, parameters[0].device
        )
        views = bucket.views_in(self._flat)
        with torch.no_grad():
            copy_all(views, parameters)
            for parameter, view in zip(parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        self.averages = bucket.flat.new_zeros(numel)
        self.parts = []
        low, start = transfers.rank * numel, self._flat.storage_offset()
        for parameter, view in zip(parameters, views, strict=True):
            first = int(view.storage_offset() - start)
            begin, end = max(low, first), min(low + numel, first + view.numel())
            if begin < end:
                values = nn.Parameter(self._flat[begin:end])
                averages = self.averages[begin - low : end - low]
                self.parts.append(
                    ParameterShard(parameter, begin - first, end - first, values, averages)
                )
        # With the groups of the whole optimizer, some of which may be empty here.
        self._optimizer = make_optimizer(
            [{"params": [p.values for p in self.parts if p.parameter in group]} for group in groups]
        )

    def state_of(self, part: ParameterShard) -> dict[str, Any]:
        """The optimizer's state of a part."""
        state: dict[str, Any] = self._optimizer.state[part.values]
        return state

    def reduce_scatter(self, gradients: Tensor) -> Wait:
        """Start to average the bucket's flat gradients, of which `averages` gets this shard."""
        # Equal shards: the last ones reach into the elements behind the gradients of a bucket.
        numel = len(self.averages) * self._transfers.size
        return self._transfers.reduce_scatter(gradients.as_strided((numel,), (1,)), self.averages)

    def gather_averages(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The average gradients of all parameters, in new tensors; a collective."""
        flat = self.averages.repeat(self._transfers.size)
        self._transfers.all_gather(flat)()
        return zip(self.bucket.parameters(), self.bucket.views_in(flat), strict=True)

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter has been moved to other memory."""
        if [parameter.data_ptr() for parameter in self.bucket.parameters()] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )

    def step(self, groups: Sequence[dict[str, Any]]) -> Wait:
        """Step this shard with the average gradients, and start to give it to all ranks.

        Parameters without `.grad` are not stepped. `groups` are those of the whole optimizer.
        """
        for part in self.parts:
            part.values.grad = None if part.parameter.grad is None else part.averages
        for group, own_group in zip(groups, self._optimizer.param_groups, strict=True):
            if own_group["params"]:
                self._update(own_group, group)
        self._optimizer.step()
        return self._transfers.all_gather(self._flat)

    def _update(self, own_group: dict[str, Any], group: Mapping[str, Any]) -> None:
        """Give a group of parts the learning rate and other options of its parameters' group.

        The fused kernel is the fastest. In torch 2.13 that of SGD makes wrong steps in bfloat16 on
        the CPU, and cannot begin to have momentum for some of the tensors.
        """
        state, parts = self._optimizer.state, own_group["params"]
        own_group.update({k: v for k, v in group.items() if k not in ("params", "param_names")})
        if group.get("fused") is None and group.get("foreach") is None:
            is_fused = isinstance(self._optimizer, _FUSED) and (
                parts[0].is_cuda or parts[0].dtype in (torch.float32, torch.float64)
            )
            if is_fused and isinstance(self._optimizer, optim.SGD):
                is_fused = len({bool(state.get(p)) for p in parts if p.grad is not None}) < 2
            own_group["fused"] = is_fused
        if parts[0].is_cuda and (own_group.get("fused") or own_group.get("capturable")):
            for part in parts:  # such a kernel reads these numbers on the GPU
                numbers = state.get(part, {})
                for name in numbers.keys() & SCALAR_STATE:
                    numbers[name] = numbers[name].to(part.device, torch.float32)


def elements(tensor: Tensor, like: Tensor) -> Tensor:
    """All elements of a tensor, 1-D, in the memory order of a dense one of its shape.

    A view where both have the same strides, else a copy.
    """
    if tensor.stride() != like.stride():
        strided = torch.empty_strided(
            like.size(), like.stride(), dtype=tensor.dtype, device=tensor.device
        )
        tensor = strided.copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


class ShardTransfers:
    """Starts the collectives of shards in the way that is fastest on the backend of a group.

    On gloo, ranks send each other messages: its all-gather takes twice as long, and its
    reduce-scatter is an all-reduce. A thread posts them, as to post one blocks while gloo reads or
    writes another. On shm, which takes less time than to wake a thread, all is done by what waits.

    Attributes:
        group, rank, size: the group, and this rank in it.
        overlap: whether they proceed before something waits for them.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self.overlap = not isinstance(group, ShmProcessGroup)
        self._peers = [rank for rank in range(self.size) if rank != self.rank]
        sends = device.type == "cpu" and has_backend(group, device, "gloo")
        self._thread = ThreadPoolExecutor(1, "dpbench-sharded") if sends else None
        # What other ranks send, until it is added; kept, as new memory costs as much as a message.
        self._received = torch.empty(0, dtype=torch.uint8)

    def reduce_scatter(self, flat: Tensor, average: Tensor) -> Wait:
        """Start to average a flat tensor over the ranks; `average` gets the shard of this rank."""
        if self._thread is not None:
            shards = list(flat.view(self.size, -1))
            return self._thread.submit(self._send_and_average, shards, average).result
        return self._start(partial(reduce_scatter_single, average, flat, dist.ReduceOp.AVG))

    def all_gather(self, flat: Tensor) -> Wait:
        """Start to give all ranks a flat tensor, of which each has its own shard."""
        shards = list(flat.view(self.size, -1))
        sent = shards[self.rank]
        if self._thread is not None:
            return self._thread.submit(self._send, [sent] * self.size, shards).result
        return self._start(partial(all_gather_single, flat, sent))

    def _start(self, collective: Callable[..., Any]) -> Wait:
        if not self.overlap:
            return partial(collective, group=self.group)
        wait: Wait = collective(group=self.group, async_op=True).wait
        return wait

    def _send_and_average(self, shards: Sequence[Tensor], average: Tensor) -> None:
        nbytes = self.size * average.nbytes
        if self._received.numel() < nbytes:
            self._received = torch.empty(nbytes, dtype=torch.uint8)
        received = self._received[:nbytes].view(average.dtype).view(self.size, -1)
        self._send(shards, list(received))
        torch.mul(shards[self.rank], 1 / self.size, out=average)
        for rank in self._peers:
            average.add_(received[rank], alpha=1 / self.size)

    def _send(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """Send a tensor to each other rank, and receive one from it."""
        group: Any = self.group
        works = [group.recv([received[rank]], rank, 0) for rank in self._peers]
        works += [group.send([sent[rank]], rank, 0) for rank in self._peers]
        for work in works:
            work.wait()
