"""ShardedOptimizer: each rank steps its share of the parameters, with its share of the state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.ddp.comm_hooks import GradientBucket
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.ddp.reducer import UnfinishedReduction
from dpbench.parallel.ddp.sparse import sparse_weights
from dpbench.parallel.groups import CPU, gather_tensors, gather_values, has_backend
from dpbench.parallel.sharded.shares import (
    SCALAR_STATE,
    AveragedBucket,
    BucketShare,
    ShareExchange,
)

ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adadelta, optim.Adagrad, optim.Adamax),
    *(optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop),
)
"""Optimizers that step each element by itself, so that a parameter can be divided anywhere."""

State = dict[str, Any]
"""An optimizer's state of one parameter: tensors like it or flat parts of them, and numbers."""


class ShardedOptimizer(Optimizer):
    """Shards a DistributedDataParallel's optimizer step and state over its ranks (ZeRO-1).

        model = dpbench.DistributedDataParallel(module, gradient_as_bucket_view=True)
        optimizer = ShardedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    A communication hook averages each bucket so that a rank gets its share only. `step` steps that
    share, and then the ranks give each other the parameters. That moves as many bytes as to average
    all gradients, but each rank makes only its part of the step and holds only that part of the
    optimizer's state (Rajbhandari et al., arXiv:1910.02054). On gloo and nccl the averaging
    overlaps with backward.

    - `.grad` stays this rank's own gradient, which nothing reads after a backward but whether it is
      there. Use `clip_grad_norm_` to clip, and `gradients` to look at the averages.
    - `step`, `clip_grad_norm_`, `gradients` and `state_dict` are collectives; so is
      `load_state_dict` after the first step, on `shm`.
    - Parameters are views of flat tensors: change them in place only, as `load_state_dict` does.
      Saving one of them alone with torch.save stores its whole bucket; save a clone.
    - Learning rate schedulers, parameter groups and `state_dict` are as in the plain optimizer. Its
      state moves here, so it refuses to be stepped, saved or loaded from then on.

    Args:
        model: without another communication hook.
        optimizer: over all parameters that the model reduces; an optimizer that steps each element
            by itself. Unless it says foreach or fused, the fused kernel is used where there is one.

    Raises:
        TypeError: `model` is no dpbench.DistributedDataParallel, or the optimizer steps elements
            together.
        ValueError: the optimizer's parameters differ from those that the model reduces.
        RuntimeError: the model has a comm hook or sparse gradients.
    """

    def __init__(self, model: DistributedDataParallel, optimizer: Optimizer) -> None:
        if not isinstance(model, DistributedDataParallel):
            kind = f"{type(model).__module__}.{type(model).__name__}"
            raise TypeError(
                f"ShardedOptimizer: got a {kind}, expected a dpbench.DistributedDataParallel"
            )
        if type(optimizer) not in ELEMENTWISE:
            known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
            raise TypeError(
                f"ShardedOptimizer: got {type(optimizer).__name__}, expected one of torch.optim's "
                f"optimizers that step each element by itself: {known}"
            )
        if sparse := sparse_weights(model.module):
            raise RuntimeError(
                f"got sparse gradients for {min(sparse)!r}, expected dense ones: "
                "ShardedOptimizer reduces them in flat tensors; use sparse=False"
            )
        self._parameters = [one for one in model.module.parameters() if one.requires_grad]
        self._index_of = {id(p): index for index, p in enumerate(self._parameters)}
        self._group: dist.ProcessGroup = model.process_group
        self._size = dist.get_world_size(self._group)
        # The number of the parameter group of each reduced parameter, by its index.
        self._group_of: dict[int, int] = {}
        for number, group in enumerate(optimizer.param_groups):
            trained = [parameter for parameter in group["params"] if parameter.requires_grad]
            self._group_of |= {self._index_of.get(id(p), -1): number for p in trained}
        if self._group_of.keys() != set(range(len(self._parameters))):
            raise ValueError(
                "ShardedOptimizer: expected an optimizer of exactly the parameters that the model "
                "reduces; freeze some before it is wrapped, or give others to another optimizer"
            )
        # The same dictionaries, so that a scheduler of the plain optimizer acts here too.
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._kind: Any = type(optimizer)
        # The buckets of the last backward, by number: the model learns a better order once.
        self._buckets: dict[int, AveragedBucket] = {}
        self._shares: list[BucketShare] = []
        self._device = self._parameters[0].device
        self._exchange = ShareExchange(self._group, self._device)
        self._messages: dist.ProcessGroup | None = None
        self._has_reduced = False
        # State of full parameters that waits for the first shares.
        self._loaded: dict[int, State] | None = self._by_index(optimizer.state)
        optimizer.state.clear()
        optimizer.register_step_pre_hook(_refuse)
        optimizer.register_state_dict_pre_hook(_refuse)
        optimizer.register_load_state_dict_pre_hook(_refuse)
        model.register_comm_hook(self, ShardedOptimizer._reduce)
        self._is_fixed = True

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Step this rank's share, and give all ranks the parameters; a collective. There is no
        closure.

        Raises:
            RuntimeError: there are gradients, but no backward has reduced since the last step, as
                in `no_sync`; or a parameter has been moved.
        """
        if all(parameter.grad is None for parameter in self._parameters):
            return
        if not self._has_reduced:
            raise UnfinishedReduction(
                "ShardedOptimizer: no backward has reduced gradients since the last step; was the "
                "last one made in no_sync()?"
            )
        self._has_reduced = False
        if [share.bucket for share in self._shares] != [*self._buckets.values()]:
            self._lay_out()
        for share in self._shares:
            share.require_in_place()
        # The shares of a bucket travel while the next bucket is stepped.
        waits = [share.step(self._parameters, self.param_groups) for share in self._shares]
        for wait in waits:
            wait()
        torch.autograd.graph.increment_version(self._parameters)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients down to a norm of `max_norm` over all ranks; a collective.

        The arguments and the result are those of torch.nn.utils.clip_grad_norm_.
        """
        # In a dtype that can hold the norm, and not as a maximum over the ranks, in which gloo
        # loses a NaN.
        norms = [torch.zeros((), dtype=torch.float64, device=self._device)]
        for part in chain(*(bucket.parts for bucket in self._buckets.values())):
            if self._parameters[part.place.number].grad is not None:
                values = part.averages
                wide = values if values.dtype.itemsize >= 4 else values.float()
                norms.append(torch.linalg.vector_norm(wide, norm_type).double())
        mine = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        everyone = torch.stack(gather_tensors(mine, self._group))
        together: Tensor = torch.linalg.vector_norm(everyone, norm_type)
        for bucket in self._buckets.values():
            bucket.averages.mul_((max_norm / (together + 1e-6)).clamp(max=1.0))
        return together

    @torch.no_grad()
    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Gather the average gradients of the last backward, in new tensors; a collective.

        Returns:
            Those of the parameters that have a gradient.
        """
        found = {}
        for bucket in self._buckets.values():
            shares = bucket.averages.repeat(self._size)
            self._exchange.gather(shares)()
            for parameter, place in zip(bucket.parameters, bucket.places, strict=True):
                if parameter.grad is not None:
                    found[parameter] = place.view(shares)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's state dict, with the state of all ranks; a collective.

        Rank 0 of the group gets it, from the first step on in new tensors on the CPU; the others
        get an empty dictionary, so that a host does not hold it once for each of its ranks.
        """
        full = self._full_states(root=0)
        if self._exchange.rank:
            return {}
        self.state.update({self._parameters[index]: state for index, state in full.items()})
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of the plain optimizer, from any number of ranks."""
        groups = self.param_groups
        super().load_state_dict(state_dict)
        # Into the dictionaries that a scheduler of the plain optimizer acts on.
        for group, loaded in zip(groups, self.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self.param_groups = groups
        self._loaded = self._by_index(self.state)
        self.state.clear()
        if self._shares:
            self._lay_out()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by the constructor only; later a RuntimeError, as each parameter has its place."""
        if hasattr(self, "_is_fixed"):
            raise RuntimeError(
                "ShardedOptimizer: the parameter groups are fixed; give all of them to the plain "
                "optimizer"
            )
        super().add_param_group(param_group)

    def _reduce(self, bucket: GradientBucket) -> Any:
        """Begin to average a bucket over the ranks, each rank's share for that rank only."""
        number = bucket.index()
        averaged = self._buckets.get(number)
        if averaged is None or averaged.parameters is not bucket.parameters():
            if not number:
                self._buckets = {}
            averaged = AveragedBucket.like(bucket, self._index_of, self._exchange)
            self._buckets[number] = averaged
        self._has_reduced = True
        # Equal shares: the last ones reach into the elements behind the gradients of a bucket.
        gradients, numel = bucket.buffer(), len(averaged.averages) * self._size
        wait = self._exchange.reduce(gradients.as_strided((numel,), (1,)), averaged.averages)

        def unchanged() -> Tensor:
            wait()
            return gradients

        return SimpleNamespace(wait=unchanged)

    def _by_index(self, states: Mapping[Any, State]) -> dict[int, State]:
        index_of = self._index_of
        return {index_of[id(p)]: dict(state) for p, state in states.items() if id(p) in index_of}

    def _lay_out(self) -> None:
        """Divide the parameters and the state by the buckets of the last backward; a collective."""
        full, self._loaded = self._full_states(), None
        self._shares = []  # before the new ones need memory
        for bucket in self._buckets.values():
            share = BucketShare(bucket, self._group_of, self._kind, self._exchange)
            self._shares.append(share)
            for part, state in share.states():
                for name, value in full.get(part.place.number, {}).items():
                    if _is_elementwise(name, value):
                        own = part.place.part(value, part.begin, part.end)
                        state[name] = own.to(part.averages.device, copy=True)
                    else:
                        state[name] = copy.deepcopy(value)

    @torch.no_grad()
    def _full_states(self, root: int | None = None) -> dict[int, State]:
        """The state of all parameters, by index, in new tensors on the CPU; a collective. With a
        root only that rank gets it."""
        if self._loaded is not None:
            return self._loaded
        if self._messages is None:
            # Of the host: these messages would take as much of a GPU as all states.
            ranks = dist.get_process_group_ranks(self._group)
            self._messages = (
                self._group
                if has_backend(self._group, CPU)
                else dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            )
        full: dict[int, State] = {}
        for share in self._shares:
            mine = [
                (part.place.number, part.begin, state) for part, state in share.states() if state
            ]
            place_of = {place.number: place for place in share.bucket.places}
            everyone = gather_values(mine, self._messages, root=root)
            for number, begin, state in chain(*everyone):
                found, place = full.setdefault(number, {}), place_of[number]
                for name, value in state.items():
                    if not _is_elementwise(name, value):
                        found[name] = value
                        continue
                    if name not in found:
                        found[name] = torch.empty_strided(
                            place.size, place.stride, dtype=value.dtype
                        )
                    place.part(found[name], begin, begin + len(value)).copy_(value)
        return full


def _is_elementwise(name: str, value: object) -> bool:
    """Whether a value in an optimizer's state has an element for each of the parameter's."""
    return isinstance(value, Tensor) and name not in SCALAR_STATE


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "this optimizer's parameters are stepped by a ShardedOptimizer, which has their state; "
        "step, save and load that one instead"
    )
