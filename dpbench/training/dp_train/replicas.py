"""The replicas of `dp_train`: models that start equal and get the mean of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import OwnStream
from dpbench.parallel.tree import move
from dpbench.training.dp_train.arguments import Task


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """Call `make_model` once per device; all models get the parameters and buffers of the first.

    Raises TypeError or ValueError: `make_model` is no function, or does not make modules that have
    parameters of their own with the same names and shapes.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function that makes a new model, e.g. "
            "lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    owners: dict[Tensor, int] = {}
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("the model has no parameters to train")
        for name, parameter in model.named_parameters():
            if (owner := owners.setdefault(parameter, index)) != index:
                raise ValueError(
                    f"replicas {owner} and {index} share the parameter {name!r}; make_model must "
                    "make a new model in each call"
                )
        try:
            model.to(devices[index]).load_state_dict(models[0].state_dict())
        except RuntimeError as error:
            raise ValueError(f"replica {index} is another model than replica 0: {error}") from None
    copy_state(models[0], models[1:])  # also buffers that are in no state dict
    return models


def backward(
    task: Task,
    iteration: int,
    replica: int,
    model: nn.Module,
    samples: Sequence[int],
    generator: torch.Generator,
) -> float:
    """Add the gradient of the mean loss of the samples to one model; returns that loss.

    Random numbers on the CPU come from `generator`.

    Raises TypeError or ValueError, with iteration, replica and sample, for a loss that is no scalar
    tensor with a gradient.
    """
    device, total = task.devices[replica], 0.0
    for index in samples:
        with OwnStream(generator) if device.type == "cpu" else nullcontext():
            sample = move(task.data[index], device)
            loss = model(sample) if task.forward_fn is None else task.forward_fn(model, sample)
            if task.loss_fn is not None:
                target = sample if task.target_fn is None else task.target_fn(sample)
                loss = task.loss_fn(loss, target)
        where = f"in iteration {iteration}, replica {replica}, sample {index}"
        if not isinstance(loss, Tensor):
            raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; pass loss_fn?")
        if loss.numel() != 1:
            raise ValueError(f"got a loss of shape {tuple(loss.shape)} {where}, expected a scalar")
        if not loss.requires_grad:
            raise ValueError(f"got a loss without a gradient {where}")
        (loss / len(samples)).backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total / len(samples)


def state(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def copy_state(source: nn.Module, others: Sequence[nn.Module]) -> None:
    """Overwrite the parameters and buffers of `others`."""
    for model in others:
        for target, value in zip(state(model), state(source), strict=True):
            target.copy_(value)


def average(models: Sequence[nn.Module], replicas: int, *, over_ranks: bool) -> None:
    """Give the first model the mean gradient of all replicas, and clear the others'.

    A replica without a gradient counts as zero; the mean is None if no replica has one.
    """
    for alike in zip(*(model.parameters() for model in models), strict=True):
        first = alike[0]
        found = [
            parameter.grad.to(first.device) for parameter in alike if parameter.grad is not None
        ]
        for parameter in alike:
            parameter.grad = None
        total = sum(found[1:], found[0]) if found else None
        if over_ranks:
            present = torch.tensor(len(found))
            dist.all_reduce(present)
            total = torch.zeros_like(first, device="cpu") if total is None else total.cpu()
            dist.all_reduce(total)
            total = total.to(first.device) if present else None
        first.grad = None if total is None else total / replicas
