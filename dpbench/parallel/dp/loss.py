"""The loss of the last forward, for `DataParallel.backward`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from dpbench.parallel.tree import children, tensors

JoinLosses = Callable[[list[Tensor]], Tensor]


class _Use:
    """Which of the two ways has already computed the gradients of one loss."""

    by_caller = by_wrapper = False

    def note(self, _gradient: Tensor) -> None:
        """Hook on the loss; it must not hold the loss itself, which would be a reference cycle."""
        if self.by_wrapper:
            raise RuntimeError(
                "DataParallel.backward has added the gradients of this loss already, and "
                "loss.backward would add them again; call one of them"
            )
        self.by_caller = True


class LastLoss:
    """Finds the loss in outputs and runs its backward once; a copy or a pickle of it is empty."""

    def __init__(self, key: str | int | None) -> None:
        """`key` is the place of the loss in the output; None means the only 0-dim float."""
        self.key = key
        self._loss: Tensor | None = None
        self._use = _Use()
        self._reason = "there was no forward yet"

    def __reduce__(self) -> tuple[type[Self], tuple[str | int | None]]:
        return type(self), (self.key,)

    def forget(self) -> None:
        """Count the last forward as failed until `remember` is called."""
        self._loss, self._reason = None, "the last forward failed"

    def remember(self, outputs: Sequence[Any], join: JoinLosses | None) -> None:
        """Note the loss in the outputs of a forward, or why there is none.

        Args:
            outputs: the gathered output, or the outputs of all replicas.
            join: combines the replicas' losses into one; None for a gathered output.
        """
        try:
            losses = [self._find(output) for output in outputs]
        except LookupError as error:
            self._reason = str(error.args[0])
            return
        self._use = _Use()
        for loss in losses:
            if loss.grad_fn is not None:  # a hook on a leaf would stay forever
                loss.register_hook(self._use.note)  # type: ignore[no-untyped-call]
        self._loss = losses[0] if join is None or len(losses) == 1 else join(losses)

    def backward(self, scale: float) -> Tensor:
        """Run backward from `scale` × the loss, once; returns the loss, without graph.

        Raises:
            RuntimeError: backward is not possible; the message says why.
        """
        loss, reason = self._loss, self._reason
        self._loss, self._reason = None, reason if loss is None else "it has had its backward"
        if loss is not None and self._use.by_caller:
            reason = "its gradients were computed from the loss itself already; call one of them"
        if loss is None or self._use.by_caller:
            raise RuntimeError(f"backward is not possible after the last forward: {reason}")
        torch.autograd.backward(loss, torch.full_like(loss, scale))
        self._use.by_wrapper = True
        return loss.detach()

    def _find(self, output: Any) -> Tensor:
        """The loss in one output; a LookupError with the reason if there is none."""
        if self.key is None:
            losses = [t for t in tensors(output) if t.dim() == 0 and t.is_floating_point()]
            if len(losses) != 1:
                raise LookupError(
                    f"the last output has {len(losses)} 0-dim floating-point tensors, expected one "
                    "loss; name it with loss_key"
                )
            loss = losses[0]
        else:
            parts = dict(children(output) or {})
            names = getattr(output, "_fields", ())  # of a namedtuple
            parts.update({name: getattr(output, name) for name in names})
            if self.key not in parts:
                raise LookupError(f"the last output has no {self.key!r}, it has {list(parts)}")
            loss = parts[self.key]
            if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
                raise LookupError(f"output[{self.key!r}] is no 0-dim floating-point tensor")
        if not loss.requires_grad:
            raise LookupError("the last forward recorded no gradients (no_grad, or none to train)")
        return loss
