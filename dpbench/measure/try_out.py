"""Tries an architecture, a dataset or a step of the user's on two samples in this process, so that
their errors are known before any rank starts.

Everything runs on the CPU and leaves no trace, not even in torch's random state. Errors are
UsageErrors of one line.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dpbench import architecture as architectures
from dpbench.architecture import Architecture, load_function
from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architecture.user_errors import user_errors_in
from dpbench.architecture.user_models import described
from dpbench.data.batch import call, sample_count
from dpbench.data.datasets import Dataset
from dpbench.data.items import collated, load_items
from dpbench.errors import DataError, UsageError
from dpbench.measure.implementations import Plain
from dpbench.measure.own_step import OwnTrainer, expect_gradients

SAMPLES = 2


def load_tried(text: str) -> Architecture:
    """The architecture of a name, tried out if dpbench assembled it from the user's parts.

    A shipped architecture, or one that somebody wrote as a whole, is only loaded: its model may be
    large. Raises UsageError.
    """
    architecture = architectures.load(text)
    if isinstance(architecture, GeneratedArchitecture):
        title = f"architecture {text!r}"
        with torch.random.fork_rng(devices=[]):
            _try_pass(architecture, *_synthetic(architecture), title)
    return architecture


def try_step(text: str, architecture: Architecture) -> None:
    """Take one step with the user's code. Raises UsageError if it cannot be loaded, raises, or is
    incomplete."""
    own, title = load_function(text, "step"), f"step {text!r}"
    with torch.random.fork_rng(devices=[]):
        with user_errors_in(f"architecture {architecture.name!r}", "building the model"):
            module = architecture.build_model().train()
        inputs, targets = _synthetic(architecture)
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
    """Take one step with the first and the last item of the user's dataset.

    Raises UsageError for items that raise, are not (input, target) or do not collate, and for a
    model or a loss that does not accept them.
    """
    title = f"dataset {name!r}"
    items = load_items(name, seed=seed)
    last = len(items) - 1
    with torch.random.fork_rng(devices=[]):
        pairs = []
        for index in (0, last):
            with user_errors_in(title, f"item {index}"):
                item = items[index]
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise UsageError(
                    f"{title}: item {index} is {described(item)}; expected (input, target)"
                )
            pairs.append(item)
        with user_errors_in(title, f"collating the items 0 and {last}"):
            inputs, targets = collated(pairs)
        _check_samples(inputs, targets, f"{title}: a batch of {SAMPLES} items")
        title = f"{title} with architecture {architecture.name!r}"
        _try_pass(architecture, inputs, targets, title)


def _synthetic(architecture: Architecture) -> tuple[Any, Any]:
    """A small synthetic batch."""
    title = f"architecture {architecture.name!r}"
    with user_errors_in(title, f"batch({SAMPLES})"):
        inputs, targets = architecture.synthetic_batch(SAMPLES, torch.Generator().manual_seed(0))
    _check_samples(inputs, targets, f"{title}: batch({SAMPLES})")
    return inputs, targets


def _check_samples(inputs: Any, targets: Any, title: str) -> None:
    """Raise UsageError unless these are SAMPLES samples."""
    try:
        count = sample_count(inputs=inputs, targets=targets)
    except DataError as error:
        raise UsageError(f"{title}: {error}") from None
    if count != SAMPLES:
        raise UsageError(f"{title} returned {count} samples")


def _try_pass(architecture: Architecture, inputs: Any, targets: Any, title: str) -> None:
    """Make one forward and backward pass."""
    with user_errors_in(title, "building the model"):
        module = architecture.build_model()
    if not isinstance(module, nn.Module):
        raise UsageError(f"{title}: the model is a {type(module).__name__}, expected a Module")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{title}: the model has no parameters to train")
    with user_errors_in(title, f"the model with {SAMPLES} samples"):
        outputs = call(module.train(), inputs)
    with user_errors_in(title, "the loss"):
        loss = architecture.loss(outputs, targets)
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise UsageError(
            f"{title}: the loss is {described(loss)}, expected a scalar tensor: the mean over the "
            "samples"
        )
    if not loss.requires_grad:
        raise UsageError(
            f"{title}: the loss has no gradient; is it computed from the outputs, and are they not "
            "detached?"
        )
    with user_errors_in(title, "the backward pass"):
        loss.backward()  # type: ignore[no-untyped-call]
