"""A node placed after the graph of a forward: it is the first to run in a backward.

A reducer that must know the end of the outermost backward has to register its callback from within
it. Parameter hooks are too late: they may first fire in a nested backward, such as that of a
reentrant checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.tree import map_tensors, tensors


class Sink:
    """Calls back when a backward starts through an output that passed through the sink.

    Only a backward that accumulates gradients counts, not one for autograd.grad: the callback hooks
    a leaf of the sink's own, which the backward reaches first.
    """

    def __init__(self, on_backward: Callable[[], None], device: torch.device) -> None:
        # On the gradients' device: that device's autograd thread runs it before them.
        self._leaf = torch.zeros((), device=device, requires_grad=True)
        self._leaf.register_post_accumulate_grad_hook(self._reached)  # type: ignore[no-untyped-call]
        self._on_backward = on_backward

    def __call__(self, output: Any) -> Any:
        """The same output, with copies of the tensors that need a gradient, so that a loss may
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
