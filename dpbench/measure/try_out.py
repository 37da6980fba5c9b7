"""Trains an architecture on two samples in this process, with the user's own step if there is one,
so that their errors are known before any rank is started."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dpbench import architecture as architectures
from dpbench.architecture import Architecture, load_function
from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architecture.user_errors import user_errors_in
from dpbench.architecture.user_models import described
from dpbench.data.batch import call, sample_count
from dpbench.data.datasets import Dataset
from dpbench.data.items import Items, collated, load_items
from dpbench.errors import DataError, UsageError
from dpbench.measure.implementations import Plain
from dpbench.measure.own_step import OwnTrainer, expect_gradients
from dpbench.parallel.tree import tensors

SAMPLES = 2


def load_tried(text: str) -> Architecture:
    """The architecture of a name, tried out if dpbench assembled it from the user's parts.

    A shipped architecture, or one that somebody wrote as a whole, is only loaded: its model may be
    large, and only its ranks run its code. Raises UsageError.
    """
    architecture = architectures.load(text)
    if isinstance(architecture, GeneratedArchitecture):
        try_out(architecture)
    return architecture


def try_out(architecture: Architecture) -> None:
    """Make one forward and backward pass on the CPU; it leaves everything unchanged, even torch's
    random state.

    Raises UsageError, one line, for code that raises (with the line of the file), a model without
    parameters or with some on a device, samples of different sizes, a loss that is no scalar, and
    outputs without a gradient.
    """
    title = f"architecture {architecture.name!r}"
    with torch.random.fork_rng(devices=[]):
        inputs, targets = _batch(architecture, title)
        _pass(architecture, inputs, targets, title)


def _pass(architecture: Architecture, inputs: Any, targets: Any, title: str) -> None:
    """Forward and backward."""
    with user_errors_in(title, "building the model"):
        module = architecture.build_model()
    _check_model(module, title)
    with user_errors_in(title, f"the model with {SAMPLES} samples"):
        outputs = call(module.train(), inputs)
    with user_errors_in(title, "the loss"):
        loss = architecture.loss(outputs, targets)
    _check_loss(loss, outputs, title)
    with user_errors_in(title, "the backward pass"):
        loss.backward()  # type: ignore[no-untyped-call]


def try_step(text: str, architecture: Architecture) -> None:
    """Make one step with the user's code on the CPU, at group size 1; it leaves everything
    unchanged.

    Raises UsageError, one line, for a step that cannot be loaded, raises, or is incomplete.
    """
    own = load_function(text, "step")
    title = f"step {text!r}"
    with torch.random.fork_rng(devices=[]):
        with user_errors_in(f"architecture {architecture.name!r}", "building the model"):
            module = architecture.build_model().train()
        inputs, targets = _batch(architecture, f"architecture {architecture.name!r}")
        trainer = OwnTrainer(
            title,
            own,
            Plain(module),
            torch.optim.SGD(module.parameters()),
            architecture,
            Dataset(inputs=inputs, targets=targets),
            accumulation_steps=1,
        )
        with user_errors_in(title, f"a step on {SAMPLES} samples"):
            trainer.step([torch.arange(SAMPLES)])
    expect_gradients(module, title)


def try_dataset(name: str, architecture: Architecture, *, seed: int) -> None:
    """Load the first and the last item of the user's dataset, and make a step with both on the CPU.

    Raises UsageError, one line, for items that raise, are not (input, target), or do not collate,
    and for a model or a loss that does not accept them.
    """
    title = f"dataset {name!r}"
    items = load_items(name, seed=seed)
    ends = (0, len(items) - 1)
    with torch.random.fork_rng(devices=[]):
        pairs = [_item(items, index, title) for index in ends]
        with user_errors_in(title, f"collating the items {ends[0]} and {ends[1]}"):
            inputs, targets = collated(pairs)
        try:
            sample_count(inputs=inputs, targets=targets)
        except DataError as error:
            raise UsageError(f"{title}: a batch of {SAMPLES} items: {error}") from None
        title = f"{title} with architecture {architecture.name!r}"
        _pass(architecture, inputs, targets, title)


def _item(items: Items, index: int, title: str) -> Any:
    with user_errors_in(title, f"item {index}"):
        item = items[index]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UsageError(f"{title}: item {index} is {described(item)}; expected (input, target)")
    return item


def _check_model(module: Any, title: str) -> None:
    if not isinstance(module, nn.Module):
        raise UsageError(f"{title}: the model is a {type(module).__name__}, expected a Module")
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        if is_lazy(tensor):
            raise UsageError(
                f"{title}: {name} has no shape yet, as its module is lazy (LazyLinear, …); "
                "expected a model that the factory has run once on a batch"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{title}: the model has no parameters to train")
    for name, tensor in named:
        if tensor.device.type != "cpu":
            raise UsageError(
                f"{title}: {name} is on {tensor.device}, expected cpu; dpbench moves the model to "
                "the device of each rank"
            )


def _batch(architecture: Architecture, title: str) -> tuple[Any, Any]:
    with user_errors_in(title, f"batch({SAMPLES})"):
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
