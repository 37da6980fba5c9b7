"""From options that are right in themselves to the training on this machine and these data."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench import architecture, units
from dpbench.cli.devices import DeviceRequest, Resources, devices_for, threads_for
from dpbench.cli.train_options import TrainSettings
from dpbench.data.identity import with_files
from dpbench.data.registry import DATASETS, check_fits
from dpbench.errors import UsageError
from dpbench.measure.try_out import load_tried
from dpbench.settings import AUTO, Auto
from dpbench.training_spec import TrainingSpec
from dpbench.traits import IMPLEMENTATIONS
from dpbench.values import known_name

DEFAULTS = (5, 0.7)
"""Epochs and gamma, as the MNIST example of torch has them."""
DEFAULTS_OF = {"digits": (10, 0.85)}
"""Of data so small that two replicas take too few steps in five epochs to reach 97 %."""


def build(
    settings: TrainSettings, machine: Resources, devices: Sequence[str], threads: int
) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The training with a replica on each of `devices`, and the notes that the user must see.

    Raises UsageError.
    """
    notes = list(settings.notes)
    dataset = _dataset(settings, notes)
    epochs, gamma = _length(settings, dataset, notes)
    spec = TrainingSpec(
        workload=with_files(settings.workload(dataset), settings.data_dir),
        implementation=settings.implementation,
        backend=_backend(settings, machine),
        group_size=len(devices),
        batch_size=settings.batch_size,
        devices=tuple(devices),
        threads_per_replica=threads,
        epochs=epochs,
        gamma=gamma,
        warmup_steps=settings.warmup_steps,
        accumulation_steps=settings.accumulation_steps,
        last_window=settings.last_window,
        max_norm=settings.max_norm,
        sync_every=settings.sync_every or 1,
        bucket_cap_mb=settings.bucket_cap_mb,
        balance=settings.balance,
        shares=settings.shares,
        train_samples=settings.limit_train,
    )
    _check_learning_rate(spec, notes)
    return spec, tuple(notes)


def devices_here(
    settings: TrainSettings, machine: Resources, notes: list[str]
) -> tuple[tuple[str, ...], int]:
    """A device for each replica that was asked for on this host, and the threads of each."""
    request = device_request(settings, machine, notes)
    devices = devices_for(request, machine, notes)
    return devices, threads_for(request, machine, len(devices))


def device_request(
    settings: TrainSettings, machine: Resources, notes: list[str] | None = None
) -> DeviceRequest:
    sizes: tuple[int, ...] | Auto = AUTO
    if settings.gpus is AUTO and (not machine.has_cuda or settings.implementation == "single"):
        sizes = (1,)  # how many replicas there are decides the numbers: no guess from the cores
        if notes is not None and settings.implementation != "single":
            notes.append(
                "no CUDA device here: one replica on the CPU; --gpus 2 trains two, a core each"
            )
    return DeviceRequest(
        gpus=settings.gpus,
        sizes=sizes,
        threads=settings.threads,
        oversubscribe=settings.oversubscribe,
    )


def check_samples(spec: TrainingSpec, train_samples: int) -> None:
    """Raises UsageError if the samples do not fill one micro-step."""
    if spec.global_batch_size > train_samples:
        raise UsageError(
            f"--batch-size {spec.batch_size} × {units.counted(spec.group_size, 'replica')} = "
            f"{spec.global_batch_size:,} samples a micro-step, more than the {train_samples:,} "
            f"training samples of {spec.workload.dataset}; take a smaller batch or fewer replicas"
        )


def _backend(settings: TrainSettings, machine: Resources) -> str:
    only = IMPLEMENTATIONS[settings.implementation].backend
    return only or settings.backend or ("nccl" if machine.has_cuda else "gloo")


def _dataset(settings: TrainSettings, notes: list[str]) -> str:
    """The dataset; loads the architecture in any case, so that it fails here if it fails."""
    loaded = load_tried(settings.arch)
    notes += architecture.notes(loaded)
    dataset = settings.data
    if dataset is None:
        dataset = known_name("--data", loaded.default_dataset, DATASETS)
        notes.append(f"--data {dataset}, the default of {settings.arch}")
    check_fits(dataset, loaded, named=settings.arch)
    return dataset


def _length(settings: TrainSettings, dataset: str, notes: list[str]) -> tuple[int, float]:
    """The epochs, and the factor of the learning rate after each."""
    epochs, gamma = DEFAULTS_OF.get(dataset, DEFAULTS)
    left_out = [
        f"{option} {default}"
        for option, given, default in (
            ("--epochs", settings.epochs, epochs),
            ("--gamma", settings.gamma, gamma),
        )
        if given is None
    ]
    if left_out and dataset in DEFAULTS_OF:
        name = "default" if len(left_out) == 1 else "defaults"
        notes.append(f"{', '.join(left_out)}, the {name} of {dataset}")
    return settings.epochs or epochs, settings.gamma or gamma


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
