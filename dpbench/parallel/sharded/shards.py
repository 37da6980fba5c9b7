"""The shard of a bucket that a rank has: its average gradients, its parameters and their state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.ddp.buckets import Bucket
from dpbench.parallel.groups import Wait
from dpbench.parallel.sharded.shard_transfers import ShardTransfers
from dpbench.parallel.shm import allocate_group_zeros
from dpbench.parallel.torch_private import copy_all

SCALAR_STATE = ("step", "mu_product")
"""Names of state that is one number for a whole parameter. Its shape is no proof of that, as a
parameter may be a single number too."""
_FUSED = (optim.SGD, optim.Adam, optim.AdamW)
"""Optimizers with one kernel for the whole step, on the CPU and on CUDA."""


class ParameterShard(NamedTuple):
    """The elements of one parameter in this rank's shard, which are stepped like a parameter.

    Attributes:
        parameter: the whole parameter.
        begin, end: of these elements, in the memory order of the parameter.
        values: these elements, 1-D, in the memory of the parameter.
        averages: of their gradients, 1-D.
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
            bucket: of the wrapper, which keeps it.
            groups: the parameters in each group of the optimizer.
            make_optimizer: the class of the optimizer.
            transfers: of the ranks.
        """
        self.bucket, self._transfers = bucket, transfers
        parameters, size = bucket.parameters, transfers.size
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
        return zip(self.bucket.parameters, self.bucket.views_in(flat), strict=True)

    def require_in_place(self) -> None:
        """Raise RuntimeError if a parameter has been moved to other memory."""
        if [parameter.data_ptr() for parameter in self.bucket.parameters] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )

    def step(self, settings: Sequence[dict[str, Any]]) -> Wait:
        """Step this shard with the average gradients, and start to give it to all ranks.

        Parameters without `.grad` are not stepped. `settings` are the parameter groups of the whole
        optimizer.
        """
        for part in self.parts:
            part.values.grad = None if part.parameter.grad is None else part.averages
        for of_all, of_shard in zip(settings, self._optimizer.param_groups, strict=True):
            if of_shard["params"]:
                self._use(of_all, of_shard)
        self._optimizer.step()
        return self._transfers.all_gather(self._flat)

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
