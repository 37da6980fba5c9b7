"""Tries the user's architecture and dataset on two samples, so that their errors are known before
a trial starts.

Everything runs on the CPU of this process and leaves no trace in torch's random state. The threads
that the user's code starts live on, so `launch.preflight` calls it in a process of its own. Errors
are UsageErrors of one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.architecture import Architecture, architecture_notes, is_user_code, load_architecture
from dpbench.architecture.built import TorchvisionClassifier, UserArchitecture
from dpbench.architecture.user_errors import code_place, described, seeded, user_errors_in
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset, check_fits, collate, load_user_dataset, synthetic_dataset
from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError, unknown_name
from dpbench.measure.unused import without_gradient

SAMPLES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TryOutResult:
    """A workload whose first step has succeeded."""

    dataset: str
    """The dataset of the trials: the one that was asked for, or the architecture's default."""
    notes: tuple[str, ...]
    """Messages that the user must see."""


def try_out(arch: str, *, dataset: str | None, seed: int) -> TryOutResult:
    """Load the architecture and the user's dataset, and take a step with each of them.

    Args:
        arch: the name of the architecture.
        dataset: a name or the user's function; None means the architecture's default.
        seed: seed of the dataset.

    Raises UsageError.
    """
    loaded = try_architecture(arch)
    notes = architecture_notes(loaded)
    if dataset is None:
        dataset = loaded.default_dataset
        if dataset not in DATASETS:
            raise unknown_name(f"default dataset of {arch}", dataset, DATASETS)
        default = dataset == "synthetic" and is_user_code(arch)
        whose = f": samples are made by {arch}" if default else f", the default of {arch}"
        notes = (*notes, f"--data {dataset}{whose}")
    if is_function(dataset):
        try_dataset(dataset, loaded, seed=seed)
    else:
        check_fits(dataset, loaded, named=arch)
    return TryOutResult(dataset=dataset, notes=notes)


def try_architecture(text: str) -> Architecture:
    """The architecture of a name, tried out if dpbench assembled it from the user's parts.

    It gets a warning of parameters without a gradient. A shipped architecture, or one that somebody
    wrote as a whole, is only loaded: its model may be large.
    Raises UsageError.
    """
    architecture = load_architecture(text)
    if isinstance(architecture, UserArchitecture | TorchvisionClassifier):
        title = f"architecture {text!r}"
        code = getattr(architecture, "batch", architecture.synthetic_batch)
        with torch.random.fork_rng(devices=[]):
            with user_errors_in(title, f"batch({SAMPLES})", code):
                samples = synthetic_dataset(architecture, seed=0, samples=SAMPLES)
            module = _take_step(architecture, samples, title)
            trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            if unused := [name for name, p in trained if p.grad is None]:
                warning = (
                    f"warning: {architecture.name}: DistributedDataParallel fails on "
                    f"{without_gradient(unused)}{code_place(_factory(architecture))}"
                )
                architecture.notes = (*architecture.notes, warning)
    return architecture


def try_dataset(name: str, architecture: Architecture, *, seed: int) -> None:
    """Take one step with the first and the last item of the user's dataset.

    Raises UsageError for items that raise, are not (input, target) or do not collate, and for a
    model or a loss that does not accept them.
    """
    title = f"dataset {name!r}"
    items = load_user_dataset(name, seed=seed).items
    last, pairs = len(items) - 1, []
    with seeded(0):
        for index in (0, last):
            with user_errors_in(title, f"item {index}"):
                item = items[index]
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise UsageError(
                    f"{title}: item {index} is {described(item)}; expected (input, target)"
                )
            pairs.append(item)
        with user_errors_in(title, f"collating the items 0 and {last}"):
            inputs, targets = collate(pairs)
            samples = Dataset(inputs=inputs, targets=targets)
        _take_step(architecture, samples, f"{title} with architecture {architecture.name!r}")


def _factory(architecture: Architecture) -> Callable[..., Any]:
    """The user's function that builds the model."""
    return getattr(architecture, "factory", architecture.build_model)


def _take_step(architecture: Architecture, samples: Dataset, title: str) -> torch.nn.Module:
    """Take a step with a new model, and return the model. Errors begin with `title`."""
    factory = _factory(architecture)
    with user_errors_in(title, "building the model", factory):
        module = architecture.build_model().train()
    with user_errors_in(title, f"a step on {SAMPLES} samples", factory):
        outputs = call(module, samples.inputs)
        with user_errors_in(title, f"the loss of {described(outputs)}", factory):
            loss: Any = architecture.loss(outputs, samples.targets)
        detached = isinstance(loss, torch.Tensor) and not loss.requires_grad
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or detached:
            raise UsageError(
                f"{title}: the loss is {described(loss)}{' without a gradient' if detached else ''}"
                "; expected the mean over the samples, a scalar that depends on the model's "
                f"parameters{code_place(architecture.loss)}"
            )
        loss.backward()  # type: ignore[no-untyped-call]
    return module
