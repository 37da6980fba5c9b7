"""Parameters that are still under way to this rank when its next forward begins.

A module waits, when it is called, for what it may use: its own parameters, and those of modules
inside it that are never called themselves, as `out_proj` in torch's MultiheadAttention. Which ones
are called is seen in the forwards so far; before the first, the outermost module waits for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.sharded.shares import Wait


@not_compiled
class Arrivals:
    """The waits for the parameters of one model, by the number of the bucket that has them."""

    def __init__(self, module: nn.Module, buckets: Mapping[int, int]) -> None:
        """
        Args:
            module: the outermost one that a forward calls.
            buckets: the number of the bucket of each parameter, by the parameter's id.
        """
        self._bucket_of = buckets
        self._waits: dict[int, Wait] = {}
        self._lock = Lock()
        # Weak: the modules have the hooks, and only the garbage collector would end such a cycle.
        self._calls: WeakKeyDictionary[nn.Module, _Call] = WeakKeyDictionary()
        self._handles: list[Any] = []
        self._is_planned = False
        look = _Look(self)
        for one in module.modules():
            call = self._calls[one] = _Call(self)
            self._handles += (
                # Before hooks that compute a weight from parameters, as weight_norm of torch has.
                one.register_forward_pre_hook(call, prepend=True),
                one.register_state_dict_pre_hook(look),  # type: ignore[no-untyped-call]
                one.register_load_state_dict_pre_hook(look),  # type: ignore[no-untyped-call]
            )

    def plan(self, module: nn.Module) -> None:
        """Settle for which buckets each module waits; `module` is the outermost one."""
        if not self._is_planned:
            self._is_planned = True
            if left := self._left_by(module):
                self._calls[module].numbers = tuple(sorted(left))

    def expect(self, number: int, wait: Wait) -> None:
        """From now on the parameters of this bucket are under way; `wait` returns when they are
        here."""
        self._waits[number] = wait

    def wait_for(self, numbers: Collection[int]) -> None:
        """Return when the parameters of these buckets are here."""
        if not self._waits:
            return
        with self._lock:  # a forward in another thread must not go on before they are here either
            for number in numbers:
                if (wait := self._waits.get(number)) is not None:
                    wait()
                    del self._waits[number]

    def wait_for_all(self) -> None:
        """Return when all parameters are here."""
        self.wait_for(list(self._waits))

    def end(self) -> None:
        """Wait for what is under way, if it still comes, and take the hooks off the modules."""
        with suppress(RuntimeError):  # a rank is gone
            self.wait_for_all()
        for handle in self._handles:
            handle.remove()

    def note_call(self) -> None:
        """A forward has called a module for the first time."""
        self._is_planned = False

    def _left_by(self, module: nn.Module) -> set[int]:
        """Settle it for a module and those inside it; returns the buckets that are left to the
        module around it, as this one is not called."""
        found = {
            self._bucket_of[id(parameter)]
            for parameter in module.parameters(recurse=False)
            if id(parameter) in self._bucket_of
        }
        found = found.union(*map(self._left_by, module.children()))
        call = self._calls.get(module)
        if call is None or not call.has_been:
            return found
        call.numbers = tuple(sorted(found))
        call.is_of_leaf = next(module.children(), None) is None
        return set()


class _Hook:
    """A hook on a module, whose copies and pickles do nothing: nothing is under way to them."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def __reduce__(self) -> tuple[Any, ...]:
        return _hook_of_a_copy, ()


@not_compiled
class _Call(_Hook):
    """Has a module wait before its forward.

    Attributes:
        numbers: the buckets that it waits for.
        has_been: whether a forward has called the module.
        is_of_leaf: whether the module has none inside it.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(arrivals)
        self.numbers: tuple[int, ...] = ()
        self.has_been = False
        self.is_of_leaf = False

    def __call__(self, module: nn.Module, _: object) -> None:
        if not self.has_been:
            self.has_been = True
            self._arrivals.note_call()
        # Modules evaluate in other ways than they train, past the modules inside them.
        if not torch.is_grad_enabled() or not (module.training or self.is_of_leaf):
            self._arrivals.wait_for_all()
        else:
            self._arrivals.wait_for(self.numbers)


@not_compiled
class _Look(_Hook):
    """Has a module wait before its parameters are looked at as a whole."""

    def __call__(self, *_: object) -> None:
        self._arrivals.wait_for_all()


def _hook_of_a_copy() -> Callable[..., None]:
    return _nothing


def _nothing(*_: object) -> None:
    """Do nothing."""


def has_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has been applied to a module or one inside it, where hooks on modules
    would divide the compiled code."""
    return any(
        one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in module.modules()
    )
