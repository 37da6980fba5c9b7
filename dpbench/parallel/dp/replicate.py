"""Clones of a module tree, one per device, whose graphs begin at leaves of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.parallel.flat import by_kind, flattened, unflattened


class Collecting:
    """A context, active while a backward of the wrapper runs in one replica's graph; any thread may
    enter it."""

    def __init__(self) -> None:
        self._depth = 0
        self._changing = threading.Lock()

    def __enter__(self) -> None:
        with self._changing:
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changing:
            self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


class _PassOn:
    """Leaf hook: passes an uncollected gradient on to the tensor that the leaf stands for."""

    __slots__ = ("_collecting", "_source")

    def __init__(self, source: Tensor, collecting: Collecting) -> None:
        self._source = source
        self._collecting = collecting

    def __call__(self, leaf: Tensor) -> None:
        if self._collecting:
            return
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            # Retained: the backward from the wrapper's outputs still needs the caller's graph.
            torch.autograd.backward(
                self._source, gradient.to(self._source.device), retain_graph=True
            )


def watch_leaf(leaf: Tensor, source: Tensor, collecting: Collecting) -> None:
    """Pass gradients that no backward of the wrapper collects from `leaf` on to `source`."""
    hook = _PassOn(source, collecting)
    leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def new_leaf(source: Tensor, collecting: Collecting) -> Tensor:
    """A leaf that shares the memory of `source` and requires a gradient."""
    leaf = source.detach().requires_grad_()
    watch_leaf(leaf, source, collecting)
    return leaf


@dataclass(frozen=True, slots=True)
class Replica:
    """A clone of the module and its counterparts of the original's parameters."""

    module: nn.Module
    parameters: list[nn.Parameter]
    device: torch.device
    collecting: Collecting
    captured: list[tuple[Tensor, Tensor]]
    """Buffers and plain attributes that require a gradient, and the leaves that replace them."""


@dataclass(slots=True)
class _Leaf:
    """A replica's parameter, and the version of the original that it was made from."""

    original: nn.Parameter
    version: int | None
    parameter: nn.Parameter
    source: nn.Parameter

    def is_current(self, original: nn.Parameter) -> bool:
        return (
            self.original is original
            and self.source.dtype is original.dtype
            and self.source.requires_grad == original.requires_grad
            and self.source.is_set_to(original)
            # Shared memory is always current; a copy is until somebody writes to the original.
            and (
                self.parameter is self.source
                or (self.version is not None and self.version == _version(original))
            )
        )


class Replicator:
    """Makes replicas of one module on several devices; a copy or a pickle of it starts empty.

    Writes to `parameter.data` are not counted by torch. Replicas that share memory see them, a
    copy on another device does not until the next counted write; call `forget` after them.
    """

    def __init__(self, devices: Sequence[torch.device], *, cache: bool = True) -> None:
        """`cache=False` makes new parameters for all replicas in each forward."""
        self.devices = tuple(devices)
        self.cache = cache
        self.replicate_bytes = 0
        self._leaves: list[dict[int, _Leaf]] = [{} for _ in self.devices]
        self._collecting = [Collecting() for _ in self.devices]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Replicator, cache=self.cache), (self.devices,)

    def forget(self) -> None:
        """Drop the parameters kept between forwards."""
        self._leaves = [{} for _ in self.devices]

    def replicate(self, module: nn.Module, count: int) -> list[Replica]:
        """Replicas of `module` on the first `count` devices.

        Replica 0 has the buffers of the original, so what its forward writes to them stays; the
        others have copies that are thrown away.

        Raises:
            ValueError: a parameter or buffer that is not on the first device.
            TypeError: a ScriptModule, which cannot be cloned.
        """
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        check_location(parameters, buffers, self.devices[0])
        if not self.cache:
            self.forget()
        recording = torch.is_grad_enabled()
        # A leaf made under inference mode could not be used for training later. Without it torch
        # records, whatever the caller's mode is.
        with torch.inference_mode(False), torch.set_grad_enabled(recording):
            return [
                self._replica(module, list(parameters.values()), list(buffers.values()), index)
                for index in range(count)
            ]

    def _replica(
        self,
        module: nn.Module,
        originals: Sequence[nn.Parameter],
        buffers: Sequence[Tensor],
        index: int,
    ) -> Replica:
        device = self.devices[index]
        fresh = self._current_leaves(originals, index)
        twins: dict[int, Any] = {key: leaf.parameter for key, leaf in fresh.items()}
        values = [buffer for buffer in buffers if not buffer.requires_grad]
        own = values if index == 0 else self._copies(values, device)
        twins.update(zip(map(id, values), own, strict=True))
        captured: list[tuple[Tensor, Tensor]] = []

        def capture(tensor: Tensor) -> Tensor:
            """The leaf that replaces a tensor with a gradient that is no parameter."""
            source = tensor.to(device)
            if not torch.is_grad_enabled():
                return source
            captured.append((source, new_leaf(source, self._collecting[index])))
            return captured[-1][1]

        twins.update((id(buffer), capture(buffer)) for buffer in buffers if buffer.requires_grad)
        module = clone(module, twins, capture)
        parameters = [leaf.parameter for leaf in fresh.values()]
        return Replica(module, parameters, device, self._collecting[index], captured)

    def _current_leaves(self, originals: Sequence[nn.Parameter], index: int) -> dict[int, _Leaf]:
        """The leaf of each parameter by its `id`: either kept or newly made."""
        kept = self._leaves[index]
        stale = [
            original
            for original in originals
            if (leaf := kept.get(id(original))) is None or not leaf.is_current(original)
        ]
        made = dict(zip(map(id, stale), self._make_leaves(stale, index), strict=True))
        fresh = {
            id(original): made.get(id(original)) or kept[id(original)] for original in originals
        }
        self._leaves[index] = fresh
        return fresh

    def _make_leaves(self, originals: Sequence[nn.Parameter], index: int) -> list[_Leaf]:
        device = self.devices[index]
        sources = [
            nn.Parameter(original.detach(), original.requires_grad) for original in originals
        ]
        if device == self.devices[0]:
            made = [
                _Leaf(original, None, source, source)
                for original, source in zip(originals, sources, strict=True)
            ]
        else:
            made = [
                _Leaf(
                    original, _version(original), nn.Parameter(copy, source.requires_grad), source
                )
                for original, source, copy in zip(
                    originals, sources, self._copies(originals, device), strict=True
                )
            ]
        for leaf in made:
            if leaf.parameter.requires_grad:
                watch_leaf(leaf.parameter, leaf.original, self._collecting[index])
        return made

    def _copies(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """Copies of the tensors on `device`, sent in one message per dtype, in the same memory
        layouts."""
        self.replicate_bytes += sum(tensor.nbytes for tensor in tensors)
        copies: dict[int, Tensor] = {}
        with torch.no_grad():
            for alike in by_kind(tensors):
                flat = flattened(alike).to(device, non_blocking=True)
                copies.update(zip(map(id, alike), unflattened(flat, alike), strict=True))
        return [copies[id(tensor)] for tensor in tensors]


def check_location(
    parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], device: torch.device
) -> None:
    """Raise ValueError, with the name, unless all parameters and buffers are on `device`."""
    for kind, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named.items():
            if tensor.device != device:
                raise ValueError(
                    f"{kind} {name!r} is on {tensor.device}, expected it on {device}, the first "
                    "of the device_ids; move the module there first"
                )


def clone(
    module: nn.Module, twins: dict[int, Any], capture: Callable[[Tensor], Tensor]
) -> nn.Module:
    """A new module tree with the plain attributes of `module` and the tensors in `twins`.

    Args:
        module: the original; shared submodules are shared in the clone too.
        twins: the counterpart of each parameter and buffer by `id`; those of the modules are added.
        capture: makes the counterpart of another tensor that requires a gradient.
    """
    originals = list(module.modules())
    for original in originals:
        if isinstance(original, torch.jit.ScriptModule):
            raise TypeError(f"a {type(original).__name__} cannot be cloned for the replicas")
        twins[id(original)] = type(original).__new__(type(original))
    for original in originals:
        state = original.__dict__.copy()
        for name in state.keys() - _SHARED:
            state[name] = _counterpart(state[name], twins, capture)
        for name in ("_parameters", "_buffers", "_modules"):
            state[name] = {k: twins.get(id(v), v) for k, v in state[name].items()}
        # Written to __dict__, because Module.__setattr__ needs attributes that are not set yet.
        twins[id(original)].__dict__.update(state)
    return twins[id(module)]  # type: ignore[no-any-return]


# Hooks and flags of every module; the clone shares them, so that it runs the hooks of the original.
_SHARED = frozenset(nn.Module().__dict__)


def _counterpart(value: Any, twins: dict[int, Any], capture: Callable[[Tensor], Tensor]) -> Any:
    """A plain attribute for the clone: parts that belong to the original are replaced.

    Examples are the list of weights that an LSTM keeps, or a bound method as activation.
    """
    if isinstance(value, (Tensor, nn.Module)):
        if isinstance(value, Tensor) and value.requires_grad and id(value) not in twins:
            twins[id(value)] = capture(value)
        return twins.get(id(value), value)
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, twins[id(value.__self__)])
    if type(value) in (list, tuple):
        parts = [_counterpart(part, twins, capture) for part in value]
        changed = any(new is not old for new, old in zip(parts, value, strict=True))
        return type(value)(parts) if changed else value
    if type(value) is dict:
        items = {key: _counterpart(part, twins, capture) for key, part in value.items()}
        changed = any(items[key] is not value[key] for key in items)
        return items if changed else value
    return value


def _version(tensor: Tensor) -> int | None:
    """The number of writes to the tensor that torch counted; None where it does not count."""
    return None if tensor.is_inference() else tensor._version
