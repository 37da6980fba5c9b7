"""ShardedOptimizer: each rank steps its share of the parameters, on gradients that it alone has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from dpbench.parallel.agreement import Entry, require_agreement
from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.ddp.holders import reducers
from dpbench.parallel.groups import gather_values
from dpbench.parallel.sharded.bucket import ShardedBucket
from dpbench.parallel.sharded.shares import ShareExchange, Wait
from dpbench.parallel.sharded.stepping import ShareOptimizer, States, is_elementwise

ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adadelta, optim.Adagrad, optim.Adamax),
    *(optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop),
)
"""Optimizers that step each element by itself, so that a parameter can be divided anywhere."""


class ShardedOptimizer(Optimizer):
    """Steps a DistributedDataParallel in shares: each rank its own, with its part of the state.

        model = dpbench.DistributedDataParallel(module)
        optimizer = ShardedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    A backward leaves each rank the average gradients of its share of every bucket, `step` steps
    that share, and then the ranks give each other the parameters. That moves as many bytes as to
    average all gradients, but each rank makes only its part of the step and holds only that part
    of the optimizer's state (ZeRO-1: Rajbhandari et al., "ZeRO: Memory Optimizations Toward
    Training Trillion Parameter Models" (2020), arXiv:1910.02054). The parameters are those that
    the plain optimizer would give.

    - `.grad` of a parameter is None after a backward that reduced, since no rank has the whole
      average. `clip_grad_norm_` clips, and `gradients` gathers them to look at.
    - `step` uses the gradients up: those of the next backward are not added to them. Before it,
      backwards that reduce add up, as do those in `no_sync`.
    - Construction, `step`, `clip_grad_norm_`, `gradients` and `state_dict` are collectives.
    - Parameters are views of flat tensors: change them in place only, as `load_state_dict` does.
      Saving one of them alone with torch.save stores its whole bucket; save a clone.
    - Learning rate schedulers, parameter groups and `state_dict` are as in the plain optimizer. Its
      state moves here, so it refuses to be stepped, saved or loaded from then on.

    Args:
        model: the wrapper whose gradients are sharded from now on, without a comm hook.
        optimizer: over all parameters that the model reduces; an optimizer that steps each element
            by itself. Unless it says foreach or fused, the fused kernel is used where there is one.

    Raises:
        TypeError: `model` is another wrapper, or the optimizer steps elements together.
        ValueError: the optimizer has not the parameters that the model reduces.
        RuntimeError: the model has a comm hook or is sharded already, or the ranks differ.
    """

    def __init__(self, model: DistributedDataParallel, optimizer: Optimizer) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"ShardedOptimizer: got a {type(model).__name__}, expected a "
                "dpbench.DistributedDataParallel"
            )
        if type(optimizer) not in ELEMENTWISE:
            known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
            raise TypeError(
                f"ShardedOptimizer: got {type(optimizer).__name__}, expected one of torch.optim's "
                f"optimizers that step each element by itself: {known}"
            )
        named = model.reduced_parameters()
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._index_of = {id(p): index for index, p in enumerate(self._parameters)}
        self._group_of = self._assigned(optimizer.param_groups)
        self._require_agreement(model.process_group, optimizer)
        # The same dictionaries, so that a scheduler of the plain optimizer acts here too.
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._model = model
        self._exchange = ShareExchange(
            Exchange(model.process_group, self._parameters[0].device), self._parameters[0].device
        )
        # Without a reference to this object: only the garbage collector would end such a cycle.
        buckets = model.shard(partial(_bucket, self._group_of, self._exchange))
        self._shares = [
            ShareOptimizer(bucket, type(optimizer), optimizer.defaults, self._group_of)
            for bucket in buckets
        ]
        self._addresses = list(map(Tensor.data_ptr, self._parameters))
        self._install(optimizer.state)
        optimizer.state.clear()
        optimizer.register_step_pre_hook(_refuse)
        optimizer.register_state_dict_pre_hook(_refuse)
        optimizer.register_load_state_dict_pre_hook(_refuse)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step this rank's share, and give all ranks the parameters; a collective.

        Args:
            closure: computes the loss again, with its backward, before the step.

        Returns:
            The closure's loss, or None.

        Raises:
            RuntimeError: a gradient is not reduced (its backward was made in `no_sync`), no
                backward has reduced since the last step, or a parameter has been moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._require_reduced()
        stepped = self._step_shares()
        self._exchange.settle()
        torch.autograd.graph.increment_version(
            [parameter for bucket in stepped for parameter in bucket.parameters]
        )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero, in the shares and those that are not reduced."""
        super().zero_grad(set_to_none)
        for share in self._shares:
            share.bucket.zero(set_to_none)

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Scale the gradients down to a norm of `max_norm` over all ranks; a collective.

        Args:
            max_norm: the largest norm.
            norm_type: the exponent of the norm, above 0; infinity for the largest element.
            error_if_nonfinite: raise if the norm is infinite or not a number.

        Returns:
            The norm before, of all gradients as one vector: what torch.nn.utils.clip_grad_norm_
            returns for averaged gradients.

        Raises:
            ValueError: the exponent is not above 0.
            RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
        """
        if not norm_type > 0:
            raise ValueError(f"got norm_type={norm_type}, expected a number above 0 or infinity")
        own = [s.bucket.own_gradients for s in self._shares if s.bucket.is_due]
        norms = [
            torch.linalg.vector_norm(_wide(part), norm_type).double() for part in own if len(part)
        ]
        nothing = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        mine = torch.linalg.vector_norm(torch.stack([nothing, *norms]), norm_type)
        # Not a maximum over the ranks, in which gloo loses a NaN.
        everyone = [torch.empty_like(mine) for _ in range(self._exchange.size)]
        dist.all_gather(everyone, mine, self._model.process_group)
        together: Tensor = torch.linalg.vector_norm(torch.stack(everyone), norm_type)
        if error_if_nonfinite and not together.isfinite():
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be "
                "clipped. To disable this error, set `error_if_nonfinite=False`"
            )
        # As torch.nn.utils.clip_grad_norm_ does, without asking the device.
        factor = (max_norm / (together + 1e-6)).clamp(max=1.0)
        for part in own:
            part.mul_(factor.to(part.real.dtype if part.is_complex() else part.dtype))
        return together

    @torch.no_grad()
    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Gather the average gradients, also those of the last step; a collective.

        Returns:
            New tensors, by the parameters that have a gradient.
        """
        found: dict[nn.Parameter, Tensor] = {}
        for bucket in (share.bucket for share in self._shares):
            if not bucket.present:
                continue
            flat = bucket.gradients.clone()
            self._exchange.over(flat).gather()()
            views = bucket.views_of(flat)
            for index in bucket.indices:
                if index in bucket.present:
                    found[self._parameters[index]] = views[index]
        return found

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's state dict, with the state of all ranks; a collective.

        Every rank gets all of it, in new tensors.
        """
        self.state.update(self._whole_states())
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of the plain optimizer: on every rank the whole."""
        groups = self.param_groups
        super().load_state_dict(state_dict)
        # Into the dictionaries that a scheduler of the plain optimizer acts on.
        for group, loaded in zip(groups, self.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self.param_groups = groups
        self._install(self.state)
        self.state.clear()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by the constructor only.

        Raises:
            RuntimeError: at any later time, since parameters have their places in the shares.
        """
        if hasattr(self, "_shares"):
            raise RuntimeError(
                "ShardedOptimizer: the parameter groups are fixed; give all of them to the plain "
                "optimizer"
            )
        super().add_param_group(param_group)

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """Read by torch.amp.GradScaler before a step that it may have to skip."""
        raise RuntimeError(
            "ShardedOptimizer: got a GradScaler, which looks at `.grad` of every parameter, and "
            "here there is none; use bfloat16, which needs no scaler"
        )

    def _step_shares(self) -> list[ShardedBucket]:
        """Step this rank's share of each bucket that has gradients; returns those buckets.

        While one is under way the next is stepped. The first layers' come last, as they do in the
        backward, and are fresh in the cache for the next forward.
        """
        stepped: list[ShardedBucket] = []
        waits: list[Wait] = []
        for share in self._shares:
            if share.step(self.param_groups):
                stepped.append(share.bucket)
                waits.append(share.bucket.gather())
        for wait in waits:
            wait()
        return stepped

    def _assigned(self, groups: Iterable[Mapping[str, Any]]) -> dict[int, int]:
        """The number of the parameter group of each reduced parameter, by its index."""
        group_of: dict[int, int] = {}
        for number, group in enumerate(groups):
            if group.get("differentiable"):
                raise ValueError("ShardedOptimizer: got differentiable=True, expected False")
            for parameter in group["params"]:
                if id(parameter) in self._index_of:
                    group_of[self._index_of[id(parameter)]] = number
                elif parameter.requires_grad:
                    raise ValueError(
                        f"ShardedOptimizer: parameter group {number} has a parameter of shape "
                        f"{tuple(parameter.shape)} that the model does not reduce; give it to "
                        "another optimizer"
                    )
        for index, name in enumerate(self._names):
            if index not in group_of:
                raise ValueError(
                    f"ShardedOptimizer: parameter {name!r} is not in the optimizer, expected all "
                    "that the model reduces; freeze it before the model is wrapped"
                )
            if reducers.share(self._parameters[index]):
                raise ValueError(
                    f"ShardedOptimizer: parameter {name!r} is in several wrapped modules, expected "
                    "one"
                )
        return group_of

    def _require_agreement(self, group: dist.ProcessGroup, optimizer: Optimizer) -> None:
        mine = [Entry("option", "optimizer", type(optimizer).__name__)]
        mine += [
            Entry("parameter", name, f"group {self._group_of[index]}")
            for index, name in enumerate(self._names)
        ]
        device = self._parameters[0].device
        require_agreement("ShardedOptimizer", mine, group, device=device)

    def _require_reduced(self) -> None:
        addresses = map(Tensor.data_ptr, self._parameters)
        for name, parameter, here, address in zip(
            self._names, self._parameters, addresses, self._addresses, strict=True
        ):
            if parameter.grad is not None:
                raise RuntimeError(
                    f"ShardedOptimizer: the gradient of {name!r} is not reduced; was the last "
                    "backward made in no_sync()?"
                )
            if here != address:
                raise RuntimeError(
                    f"ShardedOptimizer: {name!r} has other memory than it had when the optimizer "
                    "was made; change parameters in place, and convert the module before"
                )
        buckets = [share.bucket for share in self._shares]
        if any(b.is_spent for b in buckets) and not any(b.is_due for b in buckets):
            raise RuntimeError(
                "ShardedOptimizer: no backward has reduced gradients since the last step, which "
                "used them up"
            )

    def _install(self, states: Mapping[Any, Any]) -> None:
        """Continue from state in the plain optimizer's form."""
        whole: States = {
            self._index_of[id(parameter)]: dict(state)
            for parameter, state in states.items()
            if id(parameter) in self._index_of
        }
        for share in self._shares:
            share.install(share.parts_of(whole), self.param_groups)

    @torch.no_grad()
    def _whole_states(self) -> dict[Tensor, dict[str, Any]]:
        """The state of all parameters, by themselves; a collective."""
        whole: dict[Tensor, dict[str, Any]] = {}
        for share in self._shares:
            states, bucket = share.states(), share.bucket
            described = {
                index: {name: _described(name, value) for name, value in state.items()}
                for index, state in states.items()
            }
            everyone: States = {}
            for theirs in gather_values(
                described, self._model.process_group, device=bucket.values.device
            ):
                everyone.update(theirs)
            flats = self._gathered(share, states, everyone)
            for index, state in everyone.items():
                whole[self._parameters[index]] = {
                    name: flats[name][index].clone() if isinstance(value, str) else value
                    for name, value in state.items()
                }
        return whole

    def _gathered(
        self, share: ShareOptimizer, states: States, everyone: States
    ) -> dict[str, dict[int, Tensor]]:
        """Tensors of state in the shapes of the parameters, by name and index of the parameter."""
        bucket = share.bucket
        kinds = {
            name: kind
            for state in everyone.values()
            for name, kind in state.items()
            if isinstance(kind, str)
        }
        found = {}
        for name in sorted(kinds):
            flat = torch.zeros_like(bucket.values, dtype=getattr(torch, kinds[name]))
            for index, state in states.items():
                if name in state:
                    begin, end = share.parts[index]
                    flat[begin:end] = state[name]
            self._exchange.over(flat).gather()()
            found[name] = bucket.views_of(flat)
        return found


def _bucket(
    group_of: Mapping[int, int],
    exchange: ShareExchange,
    indices: Sequence[int],
    parameters: Sequence[nn.Parameter],
) -> ShardedBucket:
    """A bucket in which the parameters of a group are neighbours."""
    return ShardedBucket(sorted(indices, key=group_of.__getitem__), parameters, exchange)


def _described(name: str, value: Any) -> Any:
    """A value of an optimizer's state for the other ranks: of a tensor like the parameter only the
    name of its dtype."""
    if is_elementwise(name, value):
        return str(value.dtype).removeprefix("torch.")
    return value.cpu() if isinstance(value, Tensor) else value


def _wide(part: Tensor) -> Tensor:
    """The tensor in a dtype that can hold its norm."""
    return part if part.dtype.itemsize >= 4 else part.float()


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "this optimizer's parameters are stepped by a ShardedOptimizer, which has their state; "
        "step, save and load that one instead"
    )
