"""A user's own training step, run between the batches of a trial and its parallel model.

The objects passed to it do what dpbench's own step does: they weigh uneven shards, compute in the
trial's precision, scale the loss of float16, and report each change of phase. A step that bypasses
them would not be measured as what it is, and is refused. docs/models.md shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpbench.architecture import load_function
from dpbench.architecture.user_errors import code_place, described
from dpbench.data.batch import Samples
from dpbench.errors import UsageError
from dpbench.measure.step import Enter, Trainer, clip_gradients


class OwnStepModel:
    """The model passed to the user's step."""

    def __init__(self, trainer: Trainer, enter: Enter, *, sync: bool) -> None:
        self.forwards = self.backwards = self.no_syncs = 0
        self._trainer, self._enter, self._sync = trainer, enter, sync

    def __call__(self, inputs: Samples) -> Any:
        """The outputs for this rank's samples."""
        self.forwards += 1
        self._enter("forward")
        with self._trainer.amp.autocast:
            return self._trainer.model.forward(inputs)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, a mean over this rank's samples, to the parameters' own."""
        self.backwards += 1
        self._enter("backward")
        model, scaler = self._trainer.model, self._trainer.amp.scaler
        model.backward(scaler.scale(loss if model.loss_weight == 1.0 else loss * model.loss_weight))

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which gradients only accumulate; the next backward pass outside reduces
        them."""
        self.no_syncs += 1
        return self._trainer.model.no_sync() if self._sync else nullcontext()


class OwnStepOptimizer:
    """The optimizer passed to the user's step."""

    def __init__(self, trainer: Trainer, enter: Enter) -> None:
        self.steps = 0
        self._trainer, self._enter = trainer, enter

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale reduced gradients down to this norm, once in a step; returns the norm before."""
        self._trainer.amp.scaler.unscale_(self._trainer.optimizer)
        return clip_gradients(self._trainer.optimizer, max_norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._enter("optimizer")
        self._trainer.optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        """Step on reduced gradients; with float16 only if they did not overflow."""
        self.steps += 1
        self._enter("optimizer")
        self._trainer.amp.step(self._trainer.optimizer)


class OwnStepBatches:
    """The micro-batches passed to the user's step; each is loaded when the loop reaches it."""

    def __init__(self, trainer: Trainer, indices: Sequence[Tensor], enter: Enter) -> None:
        self.left = len(indices)
        """Number of micro-batches not taken yet."""
        self._trainer, self._indices, self._enter = trainer, indices, enter

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[tuple[Samples, Samples]]:
        """Inputs and targets, as the architecture's `synthetic_batch` makes them."""
        for indices in self._indices[len(self) - self.left :]:
            self._enter("data")
            self.left -= 1
            yield self._trainer.load(indices)


OwnStep = Callable[
    [OwnStepModel, OwnStepOptimizer, OwnStepBatches, Callable[[Any, Any], Tensor]], Tensor
]
"""A user's step; it returns the mean loss over this rank's samples, 0-dimensional."""


class OwnTrainer(Trainer):
    """Trainer that takes the user's steps."""

    def __init__(self, title: str, own: OwnStep, *arguments: Any, **named: Any) -> None:
        """Further arguments are those of Trainer; error messages begin with `title`."""
        super().__init__(*arguments, **named)
        self._title, self._own = title, own

    def _step(self, batches: Sequence[Tensor], sync: bool, enter: Enter) -> Tensor:
        """Take the step. Raises UsageError if it was incomplete; that reads nothing from the
        device."""
        model, optimizer = OwnStepModel(self, enter, sync=sync), OwnStepOptimizer(self, enter)
        taken = OwnStepBatches(self, batches, enter)

        def loss_function(outputs: Any, targets: Any) -> Tensor:
            with self.amp.autocast:
                return self._loss(outputs, targets)

        with nullcontext() if sync else self.model.without_sync():
            loss: Any = self._own(model, optimizer, taken, loss_function)
        mistake = None
        if taken.left:
            mistake = f"it left {taken.left} of {len(taken)} batches; loop over all of them"
        elif not model.forwards:
            mistake = "it never called model(inputs)"
        elif not model.backwards:
            mistake = "it never called model.backward(loss); it replaces loss.backward()"
        elif optimizer.steps != 1:
            mistake = f"it called optimizer.step() {optimizer.steps} times; expected once"
        elif not isinstance(loss, Tensor) or loss.dim() != 0:
            mistake = (
                f"it returned {described(loss)}; expected the mean loss as a tensor without "
                "dimensions, not loss.item(), which waits for the device"
            )
        if mistake is not None:
            raise UsageError(f"{self._title}: {mistake}{code_place(self._own)}")
        if sync and model.backwards > 1 and not model.no_syncs:
            self.reduces_each_micro_step = True
        mean: Tensor = loss.detach()
        return mean


def expect_gradients(module: torch.nn.Module, title: str) -> None:
    """Raise UsageError unless a step has left gradients: without them nothing can be verified."""
    if all(parameter.grad is None for parameter in module.parameters()):
        raise UsageError(
            f"{title}: a step leaves no gradients; compute the loss from the model's outputs, and "
            "call optimizer.zero_grad() before model.backward(loss), not after optimizer.step()"
        )


def trainer_of(step: str | None) -> Callable[..., Trainer]:
    """The class of trainers that take dpbench's steps, or the user's, which it loads. Raises
    UsageError."""
    if step is None:
        return Trainer
    return partial(OwnTrainer, f"step {step!r}", load_function(step, "step"))
