"""The optimizer of one rank's share of a bucket, which steps it in long flat stretches."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from dpbench.parallel.sharded.bucket import ShardedBucket

States = dict[int, dict[str, Any]]
"""Optimizer state by the parameters' indices and its names: tensors like the parameter, or flat
parts of them, and single values such as a count of steps."""
Groups = Sequence[Mapping[str, Any]]
"""Parameter groups, with their present hyperparameters."""
_FUSED = (SGD, Adam, AdamW)
"""Optimizers with one kernel for the whole step, on the CPU and on CUDA."""
_NOT_HYPERPARAMETERS = ("params", "param_names")
_SINGLE = ("step", "mu_product")
"""Names of state that is one number for a whole parameter, in any optimizer of torch's that steps
each element by itself. Its shape does not tell, as a parameter may be a single number too."""


def is_elementwise(name: str, value: object) -> bool:
    """Whether a value in an optimizer's state has an element for each of the parameter's."""
    return isinstance(value, Tensor) and name not in _SINGLE


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Neighbouring elements of a bucket that are stepped as if they were one parameter.

    Attributes:
        group: the number of their parameter group.
        indices: the parameters that they belong to; the first and last perhaps in part.
        begin, end: where they are in the bucket, in elements.
        tensor: the elements themselves.
    """

    group: int
    indices: tuple[int, ...]
    begin: int
    end: int
    tensor: nn.Parameter


class ShareOptimizer:
    """Steps this rank's share of a bucket.

    Attributes:
        bucket: holds the share.
        parts: where the part of each parameter in the share begins and ends in the bucket, in
            elements, by its index; only of those that have one.

    Parameters are in one stretch if they have made the same steps; it is divided as soon as only
    some of them have a gradient.
    """

    def __init__(
        self,
        bucket: ShardedBucket,
        kind: type[Optimizer],
        defaults: Mapping[str, Any],
        group_of: Mapping[int, int],
    ) -> None:
        """
        Args:
            bucket: holds the share.
            kind: class of the optimizer.
            defaults: its hyperparameters.
            group_of: the number of the parameter group, by the parameters' indices.
        """
        self.bucket = bucket
        self._kind = kind
        options = inspect.signature(kind).parameters
        self._defaults = {name: value for name, value in defaults.items() if name in options}
        self._group_of = group_of
        self.parts = _parts(bucket)
        self._stretches: list[Stretch] = []
        self._optimizer: Optimizer | None = None

    def step(self, groups: Groups) -> bool:
        """Step the parameters that have a gradient.

        Returns:
            Whether any parameter of the bucket has one, in whichever share; all ranks agree.
        """
        present = self.bucket.present if self.bucket.is_due else set()
        if any(0 < len(present.intersection(s.indices)) < len(s.indices) for s in self._stretches):
            self.install(self.states(), groups, present)
        if present and self._optimizer is not None:
            for stretch in self._stretches:
                part = self.bucket.gradients[stretch.begin : stretch.end]
                stretch.tensor.grad = part if stretch.indices[0] in present else None
            for number, group in zip(self._numbers, self._optimizer.param_groups, strict=True):
                group.update(self._hyperparameters(groups[number]))
                if groups[number].get("fused") is None and self._is_mixed(group["params"]):
                    group["fused"] = False
            self._optimizer.step()
        self.bucket.is_spent = bool(self.bucket.present)
        return bool(present)

    def states(self) -> States:
        """The state of the parameters in this share: of tensors the flat part in the share."""
        found: States = {}
        for stretch in self._stretches:
            assert self._optimizer is not None
            state = self._optimizer.state.get(stretch.tensor, {})
            for index in stretch.indices if state else ():
                begin, end = self.parts[index]
                low, high = begin - stretch.begin, end - stretch.begin
                found[index] = {
                    name: value[low:high] if is_elementwise(name, value) else value
                    for name, value in state.items()
                }
        return found

    def install(self, states: States, groups: Groups, apart: Collection[int] = ()) -> None:
        """Continue from this state.

        Args:
            states: as `states` returns them; a parameter may be left out.
            groups: the parameter groups.
            apart: indices of parameters that share no stretch with others.
        """

        def kind(index: int) -> Hashable:
            return self._group_of[index], index in apart, _signature(states.get(index, {}))

        self._stretches = [
            self._stretch(tuple(indices)) for _, indices in groupby(self.parts, key=kind)
        ]
        self._numbers = sorted({stretch.group for stretch in self._stretches})
        if not self._stretches:
            return
        ordered = [
            [stretch for stretch in self._stretches if stretch.group == number]
            for number in self._numbers
        ]
        self._optimizer = self._kind(
            [
                {"params": [s.tensor for s in alike], **self._hyperparameters(groups[number])}
                for number, alike in zip(self._numbers, ordered, strict=True)
            ],
            **self._defaults,
        )
        joined = [self._joined(stretch, states) for alike in ordered for stretch in alike]
        if any(joined):
            everything = self._optimizer.state_dict()
            everything["state"] = {place: state for place, state in enumerate(joined) if state}
            self._optimizer.load_state_dict(everything)

    def parts_of(self, whole: States) -> States:
        """The part in this share of state in the shapes of the parameters."""
        names = {
            name
            for index in self.parts
            for name, value in whole.get(index, {}).items()
            if is_elementwise(name, value)
        }
        found: States = {index: dict(whole[index]) for index in self.parts if index in whole}
        for name in sorted(names):
            having = [index for index in found if name in found[index]]
            flat = self.bucket.values.new_zeros(
                self.bucket.values.shape, dtype=found[having[0]][name].dtype
            )
            views = self.bucket.views_of(flat)
            for index in having:
                views[index].copy_(found[index][name])
                begin, end = self.parts[index]
                found[index][name] = flat[begin:end]
        return found

    def _stretch(self, indices: tuple[int, ...]) -> Stretch:
        begin, end = self.parts[indices[0]][0], self.parts[indices[-1]][1]
        tensor = nn.Parameter(self.bucket.values[begin:end])
        return Stretch(self._group_of[indices[0]], indices, begin, end, tensor)

    def _joined(self, stretch: Stretch, states: States) -> dict[str, Any]:
        """The state of a stretch; between parameters, where nothing is stepped, it is zero."""
        joined: dict[str, Any] = {}
        for name, value in states.get(stretch.indices[0], {}).items():
            if not is_elementwise(name, value):
                joined[name] = value.clone() if isinstance(value, Tensor) else value
                continue
            joined[name] = value.new_zeros(stretch.end - stretch.begin)
            for index in stretch.indices:
                begin, end = self.parts[index]
                low, high = begin - stretch.begin, end - stretch.begin
                joined[name][low:high] = states[index][name]
        return joined

    def _is_mixed(self, tensors: Sequence[Tensor]) -> bool:
        """Whether only some of those to step have state: torch's fused SGD cannot begin to have
        momentum for some, and raises a TypeError (seen in 2.13)."""
        assert self._optimizer is not None
        known = {bool(self._optimizer.state.get(one)) for one in tensors if one.grad is not None}
        return self._kind is SGD and len(known) > 1

    def _hyperparameters(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the share's own optimizer needs of a group. If nobody has chosen a
        kernel, the fused one is best for few long tensors."""
        chosen = {k: value for k, value in group.items() if k not in _NOT_HYPERPARAMETERS}
        asked = group.get("fused"), group.get("foreach")
        if self._kind in _FUSED and asked == (None, None):
            # In bfloat16 torch's fused SGD makes wrong steps on the CPU (seen in 2.13).
            wide = self.bucket.values.dtype in (torch.float32, torch.float64)
            chosen["fused"] = wide and self.bucket.values.device.type in ("cpu", "cuda")
        return chosen


def _parts(bucket: ShardedBucket) -> dict[int, tuple[int, int]]:
    """Begin and end in the bucket of each parameter's part in this rank's share; only for
    parameters that have a part."""
    parts: dict[int, tuple[int, int]] = {}
    for index, parameter in zip(bucket.indices, bucket.parameters, strict=True):
        begin = max(bucket.begin, bucket.offsets[index])
        end = min(bucket.end, bucket.offsets[index] + parameter.numel())
        if begin < end:
            parts[index] = (begin, end)
    return parts


def _signature(state: Mapping[str, Any]) -> Hashable:
    """The values that must be equal in the states of two parameters that are stepped as one."""
    return tuple(
        (name, value.dtype if is_elementwise(name, value) else _plain(value))
        for name, value in sorted(state.items())
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
