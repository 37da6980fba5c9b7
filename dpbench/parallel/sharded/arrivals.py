"""Parameters that are still under way to this rank when its next forward begins.

Whoever reads a parameter from its module waits until it is here: a forward, wherever it uses it,
and all that goes through the modules, as `parameters`, `state_dict` and copies do.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn

from dpbench.parallel.sharded.shares import Wait

D = TypeVar("D")


class Arrivals:
    """The waits for the parameters of one model, by the number of the bucket that has them.

    Attributes:
        missing: the buckets whose parameters are not here: each wait until then, or None if that
            has failed.
    """

    def __init__(self, buckets: Mapping[int, int]) -> None:
        """
        Args:
            buckets: the number of the bucket of each parameter, by the parameter's id.
        """
        self.missing: dict[int, Wait | None] = {}
        self._bucket_of = buckets
        self._lock = RLock()  # a signal's handler may read parameters too
        self._process = os.getpid()
        self._failure: Exception | None = None
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._kept_apart: set[int] = set()

    def watch(self, root: nn.Module) -> Collection[int]:
        """Have all that is read from a module and those inside it waited for.

        Returns:
            The buckets that must be here at once, as they have parameters that are read otherwise:
            a module keeps them in a list too, as nn.LSTM does, or is compiled or scripted.
        """
        if not all(map(self._is_watched, self._modules)) or root not in self._modules:
            for module in root.modules():
                if _is_translated(module):
                    return set(self._bucket_of.values())
                self._enter(module)
        return self._kept_apart

    def _is_watched(self, module: nn.Module) -> bool:
        """Whether a module and those right inside it are as they were entered."""
        own = module.__dict__["_parameters"]
        if type(own) is not AwaitedParameters or self not in own.awaited:
            return False
        entered = (
            child in self._modules for child in module._modules.values() if child is not None
        )
        return module._compiled_call_impl is None and all(entered)

    def _enter(self, module: nn.Module) -> None:
        own = module.__dict__["_parameters"]
        if type(own) is not AwaitedParameters:
            own = module.__dict__["_parameters"] = AwaitedParameters(own)
        if self in own.awaited:
            return
        own.awaited.append(self)
        self._modules.add(module)
        for name, value in vars(module).items():
            if name != "_parameters" and isinstance(value, list | tuple | dict):
                several = value.values() if isinstance(value, dict) else value
                self._kept_apart.update(self._numbers(several))

    def expect(self, number: int, wait: Wait) -> None:
        """From now on the parameters of this bucket are under way; `wait` returns when they are
        here."""
        self.missing[number] = wait

    def wait_for(self, parameters: Iterable[object]) -> None:
        """Return when these parameters are here.

        Raises:
            RuntimeError: the group has failed, now or before, and they will not come.
        """
        self.wait_for_buckets(self._numbers(parameters))

    def wait_for_buckets(self, numbers: Iterable[int]) -> None:
        """Return when the parameters of these buckets are here; raises as `wait_for` does."""
        for number in numbers:
            if number in self.missing:
                self._wait(number)

    def wait_for_all(self) -> None:
        """Return when all parameters are here; raises as `wait_for` does."""
        self.wait_for_buckets(list(self.missing))

    def end(self) -> None:
        """Wait for what is under way, if it still comes, and leave the modules as they were."""
        with suppress(RuntimeError):  # which whoever read a parameter has seen
            self.wait_for_all()
        for module in self._modules:
            own = module.__dict__["_parameters"]
            if type(own) is AwaitedParameters and self in own.awaited:
                own.awaited.remove(self)
                if not own.awaited:
                    module.__dict__["_parameters"] = dict(own)

    def _wait(self, number: int) -> None:
        with self._lock:  # a forward in another thread must not go on before they are here either
            if os.getpid() != self._process:
                raise RuntimeError(
                    "ShardedOptimizer: this process was forked while parameters were on their way, "
                    "and they do not arrive here; call settle() before"
                )
            wait = self.missing.get(number)
            if self._failure is None and wait is not None:
                try:
                    wait()
                except Exception as error:
                    # To wait for others would take as long again, each.
                    self._failure = error
                    self.missing = dict.fromkeys(self.missing)
                else:
                    self.missing.pop(number, None)
        if self._failure is not None and number in self.missing:
            raise RuntimeError(
                "ShardedOptimizer: parameters that other ranks have stepped did not arrive, and "
                f"are lost on this rank: {self._failure}"
            ) from self._failure

    def _numbers(self, parameters: Iterable[object]) -> Iterator[int]:
        known = self._bucket_of
        return (known[id(one)] for one in parameters if id(one) in known)


class AwaitedParameters(dict[str, Any]):
    """A module's own parameters by name, which are here when they are read; a copy is a plain
    dictionary.

    Attributes:
        awaited: where they may be under way; more than one if several wrappers train parts of a
            module.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.awaited: list[Arrivals] = []

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        for one in self.awaited:
            if one.missing:
                one.wait_for((value,))
        return value

    def __iter__(self) -> Iterator[str]:
        # Otherwise dict(…), {**…} and copy() take the values without asking for any.
        return super().__iter__()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())

    def get(self, name: str, default: D | None = None) -> Any | D | None:
        try:
            return self[name]
        except KeyError:
            return default

    def items(self) -> Any:
        self._wait()
        return super().items()

    def values(self) -> Any:
        self._wait()
        return super().values()

    def setdefault(self, name: str, default: Any = None) -> Any:
        self._wait()
        return super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._wait()
        return super().pop(name, *default)

    def popitem(self) -> Any:
        self._wait()
        return super().popitem()

    def _wait(self) -> None:
        for one in self.awaited:
            if one.missing:
                one.wait_for(super().values())


def _is_translated(module: nn.Module) -> bool:
    """Whether a module reads its parameters otherwise than Python does, as it is compiled or
    scripted."""
    return (
        module._compiled_call_impl is not None
        or hasattr(module, "_orig_mod")
        or isinstance(module, torch.jit.ScriptModule)
    )
