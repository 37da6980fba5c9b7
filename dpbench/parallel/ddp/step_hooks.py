"""Hooks by which a reducer follows a step: in autograd, and before the optimizer's step.

In autograd they are on the nodes that accumulate gradients, at the start and at the end of a
backward. A call from autograd into Python costs about a microsecond, which adds up with a hook per
parameter.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._functorch import pyfunctorch
from torch.autograd.graph import get_gradient_edge
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpbench.parallel.ddp.holders import reducers
from dpbench.parallel.torch_private import not_compiled
from dpbench.parallel.tree import map_tensors, tensors

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


class Sink:
    """Calls back when a backward starts through an output that passed through the sink.

    It is a node after the graph of a forward, and so the first to run in a backward. A reducer that
    must know the end of the outermost backward has to register its callback from within it.
    Parameter hooks are too late: they may first fire in a nested backward, such as that of a
    reentrant checkpoint.

    Only a backward that accumulates gradients counts, not one for autograd.grad: the callback hooks
    a leaf of the sink's own, which the backward reaches first.
    """

    def __init__(self, on_backward: Callable[[], None], device: torch.device) -> None:
        # On the gradients' device: that device's autograd thread runs it before them.
        self._leaf = torch.zeros((), device=device, requires_grad=True)
        self._leaf.register_post_accumulate_grad_hook(self._reached)  # type: ignore[no-untyped-call]
        self._on_backward = on_backward

    def __call__(self, output: Any) -> Any:
        """The output with copies of the tensors that need a gradient, so that a loss may
        change them in place. Output parts that the loss does not use pass on "no gradient", which
        also fires the hooks of their parameters."""
        found = [tensor for tensor in tensors(output) if tensor.requires_grad]
        if not found:
            return output
        passed = _Pass.apply(self._leaf, *found)  # type: ignore[no-untyped-call]
        replaced = {id(old): new for old, new in zip(found, passed, strict=True)}
        return map_tensors(lambda tensor: replaced.get(id(tensor), tensor), output)

    def watch(self, output: Any) -> bool:
        """Call back for this output too, without copying it, and for autograd.grad as well.

        Returns:
            Whether the output has a tensor that a backward can start from.
        """
        nodes = [tensor.grad_fn for tensor in tensors(output) if tensor.grad_fn is not None]
        for node in nodes:
            node.register_prehook(self._node_reached)
        return bool(nodes)

    def _node_reached(self, _: object) -> None:
        self._on_backward()

    def _reached(self, leaf: Tensor) -> None:
        leaf.grad = None
        self._on_backward()


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.device = leaf.device
        return tuple(tensor.clone() for tensor in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (torch.zeros((), device=ctx.device), *gradients)


@not_compiled
class _OptimizerSteps:
    """Asks every reducer, before an optimizer steps, whether the gradients are averaged.

    Optimizers do not know the wrapper around their parameters, so this uses torch's global hook,
    which runs before each optimizer's step.
    """

    def __init__(self) -> None:
        self._watching: weakref.WeakSet[Reducer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_hooked = False

    def watch(self, reducer: Reducer) -> None:
        """Call this reducer before every optimizer step from now on, as long as it lives."""
        with self._lock:
            self._watching.add(reducer)
            if not self._is_hooked:
                register_optimizer_step_pre_hook(self._before)
                self._is_hooked = True

    def _before(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        # A copy: a reducer may wait for other ranks, and must not hold the lock meanwhile.
        with self._lock:
            watching = list(self._watching)
        if watching:
            stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for reducer in watching:
                reducer.before_optimizer(stepped)


optimizer_steps = _OptimizerSteps()
"""The steps of all optimizers of this process."""
