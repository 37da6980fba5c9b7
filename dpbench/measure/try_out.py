"""Trains an architecture on two samples in this process, so that its errors are known before any
rank is started."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dpbench import architecture as architectures
from dpbench.architecture import Architecture
from dpbench.architecture.assembled import Assembled
from dpbench.architecture.blame import blamed
from dpbench.data.batch import call, sample_count
from dpbench.errors import DataError, UsageError
from dpbench.parallel.tree import tensors

SAMPLES = 2


def load_tried(text: str) -> Architecture:
    """The architecture of a name, tried out if dpbench put it together.

    One that ships, or that somebody wrote as a whole, is only loaded: its model may be large, and
    its code is run by its ranks alone. Raises UsageError.
    """
    architecture = architectures.load(text)
    if isinstance(architecture, Assembled):
        try_out(architecture)
    return architecture


def try_out(architecture: Architecture) -> None:
    """One forward and backward pass on the CPU; nothing of it stays, torch's random state included.

    Raises UsageError, one line, for code that raises (with the line of the file), a model without
    parameters or with some on a device, samples that disagree, a loss that is no scalar, and
    outputs that have no gradient.
    """
    title = f"architecture {architecture.name!r}"
    with torch.random.fork_rng(devices=[]):
        with blamed(title, "building the model"):
            module = architecture.build_model()
        _check_model(module, title)
        inputs, targets = _batch(architecture, title)
        with blamed(title, f"the model with {SAMPLES} samples"):
            outputs = call(module.train(), inputs)
        with blamed(title, "the loss"):
            loss = architecture.loss(outputs, targets)
        _check_loss(loss, outputs, title)
        with blamed(title, "the backward pass"):
            loss.backward()  # type: ignore[no-untyped-call]


def _check_model(module: Any, title: str) -> None:
    if not isinstance(module, nn.Module):
        raise UsageError(f"{title}: the model is a {type(module).__name__}, expected a Module")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{title}: the model has no parameters to train")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise UsageError(
                f"{title}: {name} is on {tensor.device}, expected cpu; dpbench moves the model to "
                "the device of each rank"
            )


def _batch(architecture: Architecture, title: str) -> tuple[Any, Any]:
    with blamed(title, f"batch({SAMPLES})"):
        inputs, targets = architecture.synthetic_batch(SAMPLES, torch.Generator().manual_seed(0))
    try:
        count = sample_count(inputs=inputs, targets=targets)
    except DataError as error:
        raise UsageError(f"{title}: batch({SAMPLES}): {error}") from None
    if count != SAMPLES:
        raise UsageError(f"{title}: batch({SAMPLES}) returned {count} samples")
    for tensor in tensors([inputs, targets]):
        if tensor.device.type != "cpu":
            raise UsageError(
                f"{title}: batch({SAMPLES}) returned a tensor on {tensor.device}, expected cpu; "
                "dpbench moves the samples to the device of each rank"
            )
    return inputs, targets


def _check_loss(loss: Any, outputs: Any, title: str) -> None:
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"{title}: the loss is a {type(loss).__name__}, expected a tensor")
    if loss.dim() != 0:
        raise UsageError(
            f"{title}: the loss is a tensor {tuple(loss.shape)}, expected a scalar: the mean over "
            "the samples"
        )
    if loss.requires_grad:
        return
    found = tensors(outputs)
    if found and not any(output.requires_grad for output in found):
        raise UsageError(
            f"{title}: the outputs of the model have no gradient; is it under torch.no_grad, or "
            "are they detached?"
        )
    raise UsageError(f"{title}: the loss has no gradient; is it computed from the outputs?")
