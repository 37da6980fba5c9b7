"""The training loop, the same in every mode: backward, reduce, clip, step, broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice

from dpbench.training.gradients import clip
from dpbench.training.groups import Group
from dpbench.training.result import History, Indices, NonFinite
from dpbench.training.settings import PARTS, Settings


def train(
    settings: Settings,
    group: Group,
    steps: Iterable[Indices],
    report: Callable[[int, float], None] | None = None,
) -> History:
    """Run all steps; in a process that does not lead, as long as replica 0 goes on.

    Args:
        report: gets iteration and loss after each step.

    Raises:
        NonFinite: unless settings.on_nonfinite is "record".
    """
    leader = _Leader(settings, group) if group.leads else None
    history = History()
    for iteration, samples in enumerate(islice(steps, settings.n_iter), start=1):
        losses = group.backward(iteration, samples)
        if leader is not None:
            leader.update(iteration, samples, losses, history)
        if not group.broadcast():
            break
        if leader is not None:
            leader.call("on_broadcast", iteration)
        if report is not None:
            report(iteration, history.losses[-1])
    return history


class _Leader:
    """The part of the loop where replica 0 is."""

    def __init__(self, settings: Settings, group: Group) -> None:
        self._settings = settings
        self._group = group
        self._model = group.models[0]
        self._optimizer = settings.optimizer(self._model.parameters(), lr=settings.lr)
        make = settings.scheduler
        self._scheduler = make(self._optimizer) if make is not None else None

    def update(
        self, iteration: int, samples: Indices, losses: list[float], history: History
    ) -> None:
        """Reduce, clip and step, with replica 0; or skip the step if something is not finite."""
        self.call("on_backward", iteration)
        self._group.reduce()
        self.call("on_reduce", iteration)
        norm = clip(self._model, self._settings.max_norm)
        failure = _failure(iteration, samples, losses, norm)
        if failure is not None and self._settings.on_nonfinite == "raise":
            raise failure
        history.indices.append(samples)
        history.norms.append(norm)
        finite = all(map(math.isfinite, losses))
        history.losses.append(sum(losses) / len(losses) if finite else math.nan)
        if failure is None:
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        else:
            history.skipped_steps += 1
        self.call("on_step", iteration)
        self._optimizer.zero_grad()

    def call(self, name: str, iteration: int) -> None:
        callback = self._settings.callbacks[PARTS.index(name)]
        if callback is not None:
            callback(iteration, self._group.models)


def _failure(
    iteration: int, samples: Indices, losses: list[float], norm: float
) -> NonFinite | None:
    for replica, (loss, mine) in enumerate(zip(losses, samples, strict=True)):
        if not math.isfinite(loss):
            return NonFinite(f"the loss is {loss}", iteration, mine, replica)
    if not math.isfinite(norm):
        everything = tuple(index for mine in samples for index in mine)
        return NonFinite(f"the norm of the mean gradient is {norm}", iteration, everything)
    return None
