"""Where a replica's graph begins: leaves that stand for tensors of the caller.

A backward of the wrapper collects the gradients that arrive in the leaves. A backward that the user
starts inside a replica's graph, e.g. from an activation that a forward hook has kept, reaches them
too; its gradients go straight on to the tensors that the leaves stand for.
"""

from __future__ import annotations

import threading
from types import TracebackType

import torch
from torch import Tensor


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
