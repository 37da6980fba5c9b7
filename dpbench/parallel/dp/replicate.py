"""Clones of a module tree, one per device, whose graphs begin at leaves of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.parallel.torch_private import copy_all, version


@dataclass(frozen=True, slots=True)
class Replica:
    """A clone of the module and its counterparts of the original's parameters, in their order."""

    module: nn.Module
    parameters: list[nn.Parameter]
    device: torch.device


class Replicator:
    """Makes replicas of one module on several devices.

    A replica on the first device shares the memory of the originals. One elsewhere keeps copies,
    which are written again if torch has counted a write to an original, which it does not do for
    writes to `parameter.data`.
    """

    def __init__(self, devices: Sequence[torch.device], *, cache: bool = True) -> None:
        """`cache=False` makes new copies in each forward."""
        self.devices = tuple(devices)
        self.cache = cache
        # By replica the copies, and kinds and values of the originals when they were copied.
        # These keep the memory of the originals, so that nothing else gets its address meanwhile.
        self._copies: dict[int, tuple[list[nn.Parameter], list[Any], list[Any]]] = {}

    def replicate(self, module: nn.Module, count: int) -> list[Replica]:
        """Replicas of `module` on the first `count` devices.

        Replica 0 has the buffers of the original, so what its forward writes to them stays; the
        others have copies that are thrown away.

        Raises:
            ValueError: a parameter or buffer that is not on the first device.
            TypeError: a ScriptModule, which cannot be cloned.
        """
        originals, buffers = tensors_on(self.devices[0], module)
        replicas = []
        for index in range(count):
            device = self.devices[index]
            # A leaf made under inference mode could not be used for training later.
            with torch.inference_mode(False), torch.no_grad():
                parameters = self._parameters(originals, index)
                own_buffers = buffers if index == 0 else [_copy(b, device) for b in buffers]
            twins: dict[int, Any] = dict(zip(map(id, originals), parameters, strict=True))
            twins.update(zip(map(id, buffers), own_buffers, strict=True))
            replicas.append(Replica(clone(module, twins), parameters, device))
        return replicas

    def _parameters(self, originals: Sequence[nn.Parameter], index: int) -> list[nn.Parameter]:
        """Leaves with the values of the originals on the device of a replica."""
        device = self.devices[index]
        if device == self.devices[0]:
            return [nn.Parameter(p.detach(), p.requires_grad) for p in originals]
        kinds = [(p.size(), p.stride(), p.dtype, p.requires_grad) for p in originals]
        values = [(p.untyped_storage(), p.storage_offset(), version(p)) for p in originals]
        copies, copied_kinds, copied_values = self._copies.get(index, ([], [], []))
        if not self.cache or copied_kinds != kinds:
            copies = [nn.Parameter(_copy(p, device), p.requires_grad) for p in originals]
        elif copied_values != values:
            copy_all(copies, originals)
        self._copies[index] = copies, kinds, values
        return copies


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device, non_blocking=True, copy=True)


def tensors_on(device: torch.device, module: nn.Module) -> tuple[list[nn.Parameter], list[Tensor]]:
    """The parameters and the buffers of a module; ValueError names one that is not on `device`."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for kind, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named.items():
            if tensor.device != device:
                raise ValueError(
                    f"{kind} {name!r} is on {tensor.device}, expected it on {device}, the first "
                    "of the device_ids; move the module there first"
                )
    return [*parameters.values()], [*buffers.values()]


def clone(module: nn.Module, twins: dict[int, Any]) -> nn.Module:
    """A new module tree with the plain attributes of `module` and the tensors in `twins`.

    Args:
        module: the original; shared submodules are shared in the clone too.
        twins: the counterpart of each parameter and buffer by `id`; this adds the modules.
    """
    originals = list(module.modules())
    for original in originals:
        if isinstance(original, torch.jit.ScriptModule):
            raise TypeError(f"a {type(original).__name__} cannot be cloned for the replicas")
        twins[id(original)] = type(original).__new__(type(original))
    for original in originals:
        # Written to __dict__, because Module.__setattr__ needs attributes that are not set yet.
        vars(twins[id(original)]).update(
            {name: _counterpart(value, twins) for name, value in vars(original).items()}
        )
    return twins[id(module)]  # type: ignore[no-any-return]


_PLAIN = frozenset({bool, int, float, str, type(None), OrderedDict, set})
"""Types of attributes that a clone shares with its original; OrderedDict is that of hooks."""


def _counterpart(value: Any, twins: dict[int, Any]) -> Any:
    """An attribute for the clone: parts that belong to the original are replaced.

    Examples are the list of weights that an LSTM keeps, a bound method as activation, and the
    function that torch.compile has put around a bound method. Plain dictionaries, such as those in
    which a module keeps its parameters and buffers, are always copied; what a replica adds to one
    is lost.
    """
    if type(value) in _PLAIN:  # most of all attributes
        return value
    if isinstance(value, (Tensor, nn.Module)):
        return twins.get(id(value), value)
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, twins[id(value.__self__)])
    if isinstance(value, FunctionType):
        return _function_of_clone(value, twins) if value.__closure__ else value
    if type(value) in (list, tuple):
        parts = [_counterpart(part, twins) for part in value]
        changed = any(new is not old for new, old in zip(parts, value, strict=True))
        return type(value)(parts) if changed else value
    if type(value) is dict:
        return {key: _counterpart(part, twins) for key, part in value.items()}
    return value


_IN_FUNCTIONS = (Tensor, nn.Module, MethodType, FunctionType)
"""Types of objects that a cloned function replaces. It shares all others with its original."""


def _function_of_clone(function: FunctionType, twins: dict[int, Any]) -> FunctionType:
    """The same function, in which the originals that it refers to are replaced by their twins."""
    if id(function) in twins:
        return twins[id(function)]  # type: ignore[no-any-return]
    twins[id(function)] = function  # ends the search where functions refer to each other
    cells = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            content = None
        twin = _counterpart(content, twins) if isinstance(content, _IN_FUNCTIONS) else content
        cells.append(cell if twin is content else CellType(twin))
    if all(new is old for new, old in zip(cells, function.__closure__ or (), strict=True)):
        return function
    code, names = function.__code__, function.__globals__
    clone = FunctionType(code, names, function.__name__, function.__defaults__, tuple(cells))
    clone.__kwdefaults__ = function.__kwdefaults__
    twins[id(function)] = clone
    # The compiler finds there which function it has compiled.
    for name, value in vars(function).items():
        vars(clone)[name] = (
            _counterpart(value, twins) if isinstance(value, _IN_FUNCTIONS) else value
        )
    return clone
