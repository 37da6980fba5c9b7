"""ShardedOptimizer: each rank steps its shard of the parameters, with its shard of the state."""

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

from dpbench.parallel.ddp.buckets import Bucket
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel, sparse_weights
from dpbench.parallel.ddp.reducer import UnfinishedReduction
from dpbench.parallel.groups import CPU, gather_tensors, gather_values, has_backend
from dpbench.parallel.sharded.shards import SCALAR_STATE, BucketShard, ShardTransfers, elements

ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adadelta, optim.Adagrad, optim.Adamax),
    *(optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop),
)
"""Optimizers that step each element by itself, so that a parameter can be divided anywhere."""


class ShardedOptimizer(Optimizer):
    """Shards a DistributedDataParallel's optimizer step and state over its ranks (ZeRO-1).

        model = dpbench.DistributedDataParallel(module, gradient_as_bucket_view=True)
        optimizer = ShardedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    A communication hook averages each bucket so that a rank gets its shard only. `step` steps that
    shard, and then the ranks give each other the parameters. That moves as many bytes as to average
    all gradients, but each rank makes only its part of the step and holds only that part of the
    optimizer's state (Rajbhandari et al., arXiv:1910.02054). On gloo and nccl the averaging
    overlaps with backward.

    - `.grad` stays this rank's own gradient, and changing it after a backward has no effect; only
      parameters where it is None are not stepped. Use `clip_grad_norm_` and `gradients`.
    - `step`, `clip_grad_norm_`, `gradients` and `state_dict` are collectives, as is the constructor
      on `shm`.
    - Buckets keep their first order, the reverse of the parameters'.
    - Parameters are views of flat tensors: change them in place only, as `load_state_dict` does.
      Saving one of them alone with torch.save stores its whole bucket; save a clone.
    - Learning rate schedulers, parameter groups and `state_dict` are as in the plain optimizer. Its
      state moves here, so it refuses to be stepped, saved or loaded from then on, and no group can
      be added.

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
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._group: dist.ProcessGroup = model.process_group
        groups = [{p for p in g["params"] if p.requires_grad} for g in optimizer.param_groups]
        if set().union(*groups) != set(self._parameters):
            raise ValueError(
                "ShardedOptimizer: expected an optimizer of exactly the parameters that the model "
                "reduces; freeze some before it is wrapped, or give others to another optimizer"
            )
        model.register_comm_hook(self, ShardedOptimizer._reduce)
        # The same dictionaries, so that a scheduler of the plain optimizer acts here too.
        super().__init__(optimizer.param_groups, optimizer.defaults)
        make: Any = type(optimizer)
        transfers = ShardTransfers(self._group, self._parameters[0].device)
        self._shards = [
            BucketShard(bucket, groups, make, transfers)
            for bucket in model.keep_buckets(overlap=transfers.overlap)
        ]
        self._messages: dist.ProcessGroup | None = None
        self._has_reduced = False
        self._divide(optimizer.state)
        optimizer.state.clear()
        optimizer.register_step_pre_hook(_refuse)
        optimizer.register_state_dict_pre_hook(_refuse)
        optimizer.register_load_state_dict_pre_hook(_refuse)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Step this rank's shard, and give all ranks the parameters; a collective. There is no
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
        for shard in self._shards:
            shard.require_in_place()
        # The shards of a bucket travel while the next bucket is stepped.
        waits = [shard.step(self.param_groups) for shard in self._shards]
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
        norms = [torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)]
        for part in chain(*(shard.parts for shard in self._shards)):
            if part.parameter.grad is not None:
                wide = torch.promote_types(part.averages.dtype, torch.float32)
                norm = torch.linalg.vector_norm(part.averages, norm_type, dtype=wide)
                norms.append(norm.double())
        rank_norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        rank_norms = torch.stack(gather_tensors(rank_norm, self._group))
        total_norm: Tensor = torch.linalg.vector_norm(rank_norms, norm_type)
        for shard in self._shards:
            shard.averages.mul_((max_norm / (total_norm + 1e-6)).clamp(max=1.0))
        return total_norm

    @torch.no_grad()
    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Gather the average gradients of the last backward, in new tensors; a collective.

        Returns:
            The averages by parameter, for those with a gradient.
        """
        averages = chain(*(shard.gather_averages() for shard in self._shards))
        return {p: average for p, average in averages if p.grad is not None}

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's state dict, with the state of all ranks; a collective.

        Rank 0 of the group gets it, in new tensors on the CPU; the others get an empty dictionary,
        so that a host does not hold it once for each of its ranks.
        """
        if self._messages is None:
            # In the memory of the host, as they would take as much of a GPU as all states.
            ranks = dist.get_process_group_ranks(self._group)
            self._messages = (
                self._group
                if has_backend(self._group, CPU)
                else dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            )
        full: dict[Tensor, dict[str, Any]] = {}
        for shard in self._shards:
            parts = {part.parameter: part for part in shard.parts}
            for parameter in shard.bucket.parameters():
                part, own = parts.get(parameter), None
                if part is not None and (state := shard.state_of(part)):
                    own = part.begin, state
                for begin, state in filter(None, gather_values(own, self._messages, root=0)):
                    full_state = full.setdefault(parameter, {})
                    for name, value in state.items():
                        if not _is_elementwise(name, value):
                            full_state[name] = value
                            continue
                        if name not in full_state:
                            full_state[name] = torch.empty_strided(
                                parameter.size(), parameter.stride(), dtype=value.dtype
                            )
                        elements(full_state[name], parameter)[begin:][: len(value)] = value
        if dist.get_rank(self._group):
            return {}
        self.state.update(full)
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
        self._divide(self.state)
        self.state.clear()

    def _reduce(self, bucket: Bucket) -> Any:
        """Start to average a bucket over the ranks, each rank's shard for that rank only."""
        self._has_reduced = True
        gradients = bucket.buffer()
        wait = self._shards[bucket.index()].reduce_scatter(gradients)

        def unchanged() -> Tensor:
            wait()
            return gradients

        return SimpleNamespace(wait=unchanged)

    def _divide(self, states: Mapping[Any, dict[str, Any]]) -> None:
        """Take this rank's shard of the states of full parameters, in the place of all it has."""
        for shard in self._shards:
            for part in shard.parts:
                state = shard.state_of(part)
                state.clear()
                for name, value in states.get(part.parameter, {}).items():
                    if _is_elementwise(name, value):
                        values = elements(value, part.parameter)[part.begin : part.end]
                        state[name] = values.to(part.values.device, copy=True)
                    else:
                        state[name] = copy.deepcopy(value)


def _is_elementwise(name: str, value: object) -> bool:
    """Whether a value in an optimizer's state has an element for each of the parameter's."""
    return isinstance(value, Tensor) and name not in SCALAR_STATE


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "this optimizer's parameters are stepped by a ShardedOptimizer, which has their state; "
        "step, save and load that one instead"
    )
