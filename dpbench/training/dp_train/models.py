"""The models of the replicas: equal at first, with the mean of their gradients in replica 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """One model per device, all with the parameters and buffers of the first.

    Calls `make_model` once per device.

    Raises:
        TypeError: `make_model` is no function, or does not make modules.
        ValueError: models that share parameters, or differ in names, shapes or dtypes, or have no
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
    _check_same_structure(models)
    for model, device in zip(models, devices, strict=True):
        model.to(device)
    copy_state(models[0], models[1:])
    return models


def state(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order of their names' registration."""
    return [*model.parameters(), *model.buffers()]


def copy_state(source: nn.Module, others: Iterable[nn.Module]) -> None:
    """Overwrite the parameters and buffers of `others`."""
    values = state(source)
    with torch.no_grad():
        for model in others:
            for target, value in zip(state(model), values, strict=True):
                target.copy_(value)


def _check_same_structure(models: Sequence[nn.Module]) -> None:
    if not any(parameter.requires_grad for parameter in models[0].parameters()):
        raise ValueError("the model has no parameters to train")
    owners: dict[int, int] = {}
    first = _structure(models[0])
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            owner = owners.setdefault(id(parameter), index)
            if owner != index:
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


def _structure(model: nn.Module) -> dict[str, Any]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named}


def take_gradients(model: nn.Module) -> list[Tensor | None]:
    """The gradients of all parameters in order, None for those without; clears them."""
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def set_mean(model: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Set the gradients of `model` to Σ of the replicas' gradients, in their order, ÷ their number.

    A replica without a gradient counts as zero; if no replica has one, the parameter gets none.
    """
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        found = [gradient.to(parameter.device) for gradient in column if gradient is not None]
        if found:
            parameter.grad = sum(found[1:], found[0]) / len(column)
