"""The replicas of `dp_train`: models that start equal and get the mean of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.tree import move
from dpbench.training.dp_train.arguments import DpTrainArguments
from dpbench.training.dp_train.result import Indices

Gradients = list[Tensor | None]
"""The gradient of each parameter, in order; None for a parameter without one."""


class LocalReplicas:
    """All replicas in this process: one after the other, or at the same time in threads."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        devices: Sequence[torch.device],
        arguments: DpTrainArguments,
        generators: Sequence[torch.Generator],
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        """`generators` has one source of random numbers on the CPU per replica."""
        self.models = models
        self.count = len(devices)
        """Number of replicas, also of those in other processes."""
        self._devices = devices
        self._arguments = arguments
        self._streams = ReplicaStreams(generators)
        self._map = map if threads is None else threads.map

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        """Compute the gradient of every replica on its samples; returns the losses."""
        work = partial(self.backward_of, iteration)
        return [*self._map(work, range(len(self.models)), self.models, samples)]

    def average(self, losses: list[float]) -> list[float]:
        """Give replica 0 the mean gradient and clear the others'; returns all losses."""
        gradients = [[parameter.grad for parameter in m.parameters()] for m in self.models]
        for model in self.models:
            model.zero_grad()
        set_mean(self.models[0], gradients)
        return losses

    def broadcast(self) -> None:
        """Copy the parameters and buffers of replica 0 to the others."""
        copy_state(self.models[0], self.models[1:])

    def backward_of(self, iteration: int, replica: int, model: nn.Module, samples: Any) -> float:
        """Add the gradient of the mean loss of the samples to one model; returns that loss.

        Raises:
            TypeError, ValueError: a loss is no scalar tensor with a gradient; the message has the
                iteration, replica and sample.
        """
        total = 0.0
        for index in samples:
            with self._random_numbers(replica):
                loss = self._loss(model, index, self._devices[replica])
            where = f"in iteration {iteration}, replica {replica}, sample {index}"
            if not isinstance(loss, Tensor):
                raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; pass loss_fn?")
            if loss.numel() != 1:
                shape = tuple(loss.shape)
                raise ValueError(f"got a loss of shape {shape} {where}, expected a scalar")
            if not loss.requires_grad:
                raise ValueError(f"got a loss without a gradient {where}")
            (loss / len(samples)).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total / len(samples)

    def _loss(self, model: nn.Module, index: int, device: torch.device) -> Any:
        task = self._arguments
        sample = move(task.data[index], device)
        output = model(sample) if task.forward_fn is None else task.forward_fn(model, sample)
        if task.loss_fn is None:
            return output
        return task.loss_fn(output, sample if task.target_fn is None else task.target_fn(sample))

    def _random_numbers(self, replica: int) -> AbstractContextManager[Any]:
        """A context in which random numbers on the CPU come from the replica's generator."""
        on_cpu = self._devices[replica].type == "cpu"
        return self._streams.entered(replica) if on_cpu else nullcontext()


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """Call `make_model` once per device; all models get the parameters and buffers of the first.

    Raises:
        TypeError: `make_model` is no function, or does not make modules.
        ValueError: models share parameters, differ in names, shapes or dtypes, or have no
            parameters.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function that makes a new model, e.g. "
            "lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in models[0].parameters()):
        raise ValueError("the model has no parameters to train")
    first = _structure(models[0])
    owners: dict[int, int] = {}
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if (owner := owners.setdefault(id(parameter), index)) != index:
                raise ValueError(
                    f"replicas {owner} and {index} share the parameter {name!r}; make_model must "
                    "make a new model in each call"
                )
        own = _structure(model)
        for name in [*first, *own]:
            if first.get(name) != own.get(name):
                raise ValueError(
                    f"make_model made different models: {name!r} is {first.get(name, 'missing')} "
                    f"in replica 0 and {own.get(name, 'missing')} in replica {index}"
                )
    for model, device in zip(models, devices, strict=True):
        model.to(device)
    copy_state(models[0], models[1:])
    return models


def _structure(model: nn.Module) -> dict[str, Any]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named}


def state(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]


def copy_state(source: nn.Module, others: Sequence[nn.Module]) -> None:
    """Overwrite the parameters and buffers of `others`."""
    with torch.no_grad():
        for model in others:
            for target, value in zip(state(model), state(source), strict=True):
                target.copy_(value)


def set_mean(model: nn.Module, gradients: Sequence[Gradients]) -> None:
    """Set the gradients of `model` to the sum of the replicas' gradients ÷ their number.

    A replica without a gradient counts as zero; if no replica has one, the parameter gets none.
    """
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        found = [gradient.to(parameter.device) for gradient in column if gradient is not None]
        parameter.grad = sum(found[1:], found[0]) / len(column) if found else None
