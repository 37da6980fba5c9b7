"""From options that are right in themselves to the training on this machine and these data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench import architecture, units
from dpbench.data.identity import with_files
from dpbench.data.registry import DATASETS, check_fits
from dpbench.errors import UsageError
from dpbench.measure.try_out import load_tried
from dpbench.run.devices import DeviceRequest, Resources, devices_for, no_gpu, threads_for
from dpbench.run.training.options import TrainOptions
from dpbench.settings import AUTO, Auto
from dpbench.specs.training import TrainingSpec
from dpbench.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS
from dpbench.values import known_name

DEFAULTS = (5, 0.7)
"""Epochs and gamma, as the MNIST example of torch has them."""
DEFAULTS_OF = {"digits": (10, 0.85)}
"""For data so small that two replicas take too few steps in five epochs to reach 97 %."""


def build(
    options: TrainOptions, machine: Resources, devices: Sequence[str], threads: int
) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The training with a replica on each of `devices`, and the notes that the user must see.

    Raises UsageError.
    """
    notes: list[str] = []
    dataset = _dataset(options, notes)
    epochs, gamma = _length(options, dataset, notes)
    spec = TrainingSpec(
        workload=with_files(options.workload(dataset), options.data_dir),
        implementation=options.implementation,
        backend=_backend(options, machine),
        group_size=len(devices),
        batch_size=options.batch_size,
        devices=tuple(devices),
        threads_per_replica=threads,
        epochs=epochs,
        gamma=gamma,
        warmup_steps=options.lr_warmup,
        accumulation_steps=options.accumulate,
        last_window=options.last_window,
        max_norm=options.max_norm,
        **_own_settings(options),
        balance=options.balance,
        shares=options.shares or (),
        train_samples=options.limit_train,
    )
    _check_learning_rate(spec, notes)
    return spec, tuple(notes)


def _own_settings(options: TrainOptions) -> dict[str, Any]:
    """Those that only some implementations have, where they are not left at their defaults."""
    values = {name: getattr(options, name, None) for name in OPTIONAL_SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def devices_here(
    options: TrainOptions, machine: Resources, notes: list[str]
) -> tuple[tuple[str, ...], int]:
    """A device for each replica that was asked for on this host, and the threads of each."""
    request = device_request(options, machine, notes)
    devices = devices_for(request, machine, notes)
    return devices, threads_for(request, machine, len(devices))


def device_request(
    options: TrainOptions, machine: Resources, notes: list[str] | None = None
) -> DeviceRequest:
    sizes: tuple[int, ...] | Auto = AUTO
    if options.gpus is AUTO and (not machine.has_cuda or options.implementation == "single"):
        sizes = (1,)  # how many replicas there are decides the numbers: no guess from the cores
        if notes is not None and options.implementation != "single":
            notes.append(
                f"{no_gpu(machine)} here: one replica on the CPU; --gpus 2 trains two, a core each"
            )
    return DeviceRequest(
        gpus=options.gpus,
        sizes=sizes,
        threads=options.threads,
        oversubscribe=options.oversubscribe,
    )


def check_samples(spec: TrainingSpec, train_samples: int) -> None:
    """Raises UsageError if the samples do not fill one micro-step."""
    if spec.global_batch_size > train_samples:
        raise UsageError(
            f"--batch-size {spec.batch_size} × {units.counted(spec.group_size, 'replica')} = "
            f"{spec.global_batch_size:,} samples a micro-step, more than the {train_samples:,} "
            f"training samples of {spec.workload.dataset}; take a smaller batch or fewer replicas"
        )


def _backend(options: TrainOptions, machine: Resources) -> str:
    if only := IMPLEMENTATIONS[options.implementation].backend:
        return only
    asked = options.process_backend
    return ("nccl" if machine.has_cuda else "gloo") if asked is AUTO else asked


def _dataset(options: TrainOptions, notes: list[str]) -> str:
    """The dataset; loads the architecture in any case, so that it fails here if it fails."""
    loaded = load_tried(options.architecture)
    notes += architecture.notes(loaded)
    dataset = options.data
    if dataset is AUTO:
        dataset = known_name("--data", loaded.default_dataset, DATASETS)
        notes.append(f"--data {dataset}, the default of {options.architecture}")
    check_fits(dataset, loaded, named=options.architecture)
    return dataset


def _length(options: TrainOptions, dataset: str, notes: list[str]) -> tuple[int, float]:
    """The epochs, and the factor of the learning rate after each."""
    epochs, gamma = DEFAULTS_OF.get(dataset, DEFAULTS)
    left_out = [
        f"{option} {default}"
        for option, given, default in (
            ("--epochs", options.epochs, epochs),
            ("--gamma", options.gamma, gamma),
        )
        if given is AUTO
    ]
    if left_out and dataset in DEFAULTS_OF:
        name = "default" if len(left_out) == 1 else "defaults"
        notes.append(f"{', '.join(left_out)}, the {name} of {dataset}")
    return (
        epochs if options.epochs is AUTO else options.epochs,
        gamma if options.gamma is AUTO else options.gamma,
    )


def _check_learning_rate(spec: TrainingSpec, notes: list[str]) -> None:
    rule = spec.workload.learning_rate_rule
    try:
        rate = spec.learning_rate
    except ValueError as error:
        raise UsageError(f"--lr-scaling {rule}: {error}") from None
    if rule != "none":
        notes.append(
            f"--lr-scaling {rule}: the learning rate is {rate:.3g}, for "
            f"{spec.effective_batch_size:,} samples a step instead of {spec.batch_size:,}"
        )
    if rule == "linear" and spec.workload.optimizer != "sgd":
        notes.append(
            f"--lr-scaling linear is a rule for sgd; for {spec.workload.optimizer} sqrt is usual"
        )
