"""Hooks of autograd: on the nodes that accumulate gradients, and at the end of a backward.

A call from autograd into Python costs about a microsecond, which adds up with a hook per parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._functorch import pyfunctorch
from torch.autograd.graph import get_gradient_edge

from dpbench.parallel.ddp.holders import reducers

if TYPE_CHECKING:
    from dpbench.parallel.ddp.reducer import Reducer

OUTSIDE = -1
"""The number of the running backward when there is none."""


class GradientHooks:
    """The hooks of one reducer, which end when it does.

    Attributes:
        nodes: the node that accumulates each parameter's gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], reducer: Reducer) -> None:
        self._parameters = parameters
        # A weak reference: the parameters outlive the wrapper, and must not keep its buckets.
        self._reducer = weakref.ref(reducer)
        # A node must be kept: a parameter does not hold its own.
        self.nodes: list[Any] = [None] * len(parameters)
        self._handles: dict[int, Any] = {}
        self.put_on(range(len(parameters)))
        reducers.enter(parameters)
        self.remove = weakref.finalize(
            reducer, _remove, self._handles, [weakref.ref(p) for p in parameters]
        )

    @property
    def indices(self) -> Collection[int]:
        """The parameters that have a hook."""
        return self._handles.keys()

    def put_on(self, indices: Collection[int]) -> None:
        """Hook these parameters, and no others."""
        for index in self._handles.keys() - indices:
            self._handles.pop(index).remove()
        for index in indices:
            if index not in self._handles:
                self._hook(index)

    def renew(self, indices: Iterable[int]) -> None:
        """Move the hooks of parameters whose node may be another one now."""
        for index in indices:
            node = get_gradient_edge(self._parameters[index]).node
            if node is not self.nodes[index] and index in self._handles:
                self._handles.pop(index).remove()
                self._hook(index)

    def _hook(self, index: int) -> None:
        # On the node, so that users' hooks on the parameter always run first.
        node = get_gradient_edge(self._parameters[index]).node
        self.nodes[index] = node
        self._handles[index] = node.register_hook(partial(_on_ready, self._reducer, index))


def running_backward() -> int:
    """The number of the running backward; a nested one has a number of its own."""
    # The only way to distinguish backwards of several threads; torch.autograd.graph uses it.
    return torch._C._current_graph_task_id()


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the running backward."""
    # Private, but the only way to run code there; torch's own DDP uses it too.
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)


def outside_of_transforms() -> AbstractContextManager[object]:
    """A context that makes new tensors plain ones, even while torch.func transforms a function."""
    # Private, but torch's own custom functions do it this way.
    return pyfunctorch.temporarily_clear_interpreter_stack()


def when_alive(method: Callable[[], None]) -> Callable[[], None]:
    """A function that calls the method as long as its object lives, without keeping it alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := reference()) is not None:
            alive()

    return call


def _on_ready(
    reducer: weakref.ref[Reducer],
    index: int,
    _: object,
    accumulated: tuple[Tensor | None, ...],
) -> None:
    if (alive := reducer()) is not None:
        alive.mark_ready(index, accumulated[0] is not None)


def _remove(handles: dict[int, Any], parameters: Sequence[weakref.ref[nn.Parameter]]) -> None:
    for handle in handles.values():
        handle.remove()
    handles.clear()
    reducers.leave(parameters)
