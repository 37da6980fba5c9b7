"""Prepares a training from checked options: its specification, run folder and samples.

The command line and `dpbench.train` both go through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench import architecture, units
from dpbench.architecture import load
from dpbench.data import mnist
from dpbench.data.datasets import synthetic_samples
from dpbench.data.registry import DATASETS, check_fits, prepare_splits, unread_notes
from dpbench.data.sharding import EpochPlan
from dpbench.data.user_code import with_files
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.launch.unusable import (
    has_sparse_gradients,
    missing_package_reason,
    optimizer_reason,
    sparse_reason,
)
from dpbench.measure.try_out import load_tried
from dpbench.messages import say
from dpbench.run.interrupts import end_at_once
from dpbench.run.this_machine import DeviceRequest, Resources, devices_for, no_gpu, threads_for
from dpbench.run.training.arguments import TrainRequest
from dpbench.run.training.options import TrainOptions
from dpbench.run.training.place import RunPlace, choose_run_folder
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.training import RESUME_LATEST, TrainingRun, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS
from dpbench.temporary import temporary_folder
from dpbench.training.events import Finished
from dpbench.training.job import refuse_unusable
from dpbench.training.run_folder import RunStatus
from dpbench.values import known_name

DEFAULTS = (5, 0.7)
"""Epochs and gamma, as the MNIST example of torch has them."""
DEFAULTS_OF = {"digits": (10, 0.85)}
"""Defaults for data so small that two replicas take too few steps in five epochs to reach 97 %."""


def build_training_spec(
    options: TrainOptions, machine: Resources, devices: Sequence[str], threads: int
) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The training with a replica on each of `devices`, and the notes that the user must see.

    Raises UsageError.
    """
    notes: list[str] = []
    dataset = _dataset(options, notes)
    notes += unread_notes(options.data_dir, (dataset,))
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
    """Settings that only some implementations have, where they are not at their defaults."""
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


MOST_SYNTHETIC_SAMPLES = 10**8


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPlan:
    """The planned training and its place; nothing is created yet."""

    request: TrainRequest
    spec: TrainingSpec
    place: RunPlace

    @property
    def run(self) -> TrainingRun:
        return self.request.options.run

    def completed(self) -> Finished | None:
        """The end of the run to resume, if it has nothing left to train."""
        existing = self.place.existing
        if existing is None or existing.header.status is not RunStatus.COMPLETED:
            return None
        if self.place.resume != RESUME_LATEST or self.spec.epochs > existing.header.spec.epochs:
            return None
        ended = [event for event in existing.events() if isinstance(event, Finished)]
        return ended[-1] if ended else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """The samples of a training on this host."""

    folder: Path | None
    """See TrainingJob.prepared."""
    count: int
    """Number of the samples that are trained on."""
    steps_per_epoch: int


def plan_here(request: TrainRequest, machine: Machine) -> TrainPlan:
    """The training on this host; raises UsageError for what it cannot do, StoreError."""
    notes: list[str] = []
    devices, threads = devices_here(request.options, machine, notes)
    say(*notes)
    spec = build_spec(request, machine, devices, threads)
    if reason := machine.unusable_reason(spec):
        raise UsageError(f"{_what(spec)}: {reason}")
    return plan_training(request, spec)


def build_spec(
    request: TrainRequest, machine: Resources, devices: Sequence[str], threads: int
) -> TrainingSpec:
    """The training with a replica on each of `devices`; says the notes. Raises UsageError."""
    spec, notes = build_training_spec(request.options, machine, devices, threads)
    say(*request.notes, *notes)
    refuse_unusable(spec, request.options.run)
    _refuse_sparse(spec)
    return spec


def _refuse_sparse(spec: TrainingSpec) -> None:
    """Raises UsageError where gradients are sparse and something takes dense ones only."""
    workload = spec.workload
    if reason := optimizer_reason(workload.architecture, workload.optimizer):
        raise UsageError(f"--optimizer {workload.optimizer}: {reason}")
    if reason := sparse_reason(spec):
        raise UsageError(f"--implementation {spec.implementation}: {reason}")
    if spec.max_norm is not None and has_sparse_gradients(workload.architecture):
        raise UsageError(
            f"--max-norm {spec.max_norm:g}: torch takes the norm of dense gradients only, and the "
            "architecture has sparse ones; leave it out"
        )


def plan_training(request: TrainRequest, spec: TrainingSpec) -> TrainPlan:
    place = choose_run_folder(
        spec, name=request.name, runs_dir=request.runs_dir, resume=request.resume
    )
    return TrainPlan(request=request, spec=spec, place=place)


def samples_of(plan: TrainPlan) -> AbstractContextManager[Samples]:
    """The prepared samples of a training that this process has planned."""
    options, embedded = plan.request.options, plan.request.embedded
    return prepared_samples(
        plan.spec, options.data_dir, embedded=embedded, download=options.download
    )


@contextmanager
def prepared_samples(
    spec: TrainingSpec, data_dir: str | None, *, embedded: bool, download: bool
) -> Iterator[Samples]:
    """Prepares the samples for the ranks of this host, which may read them inside.

    With `download`, fetches first what MNIST lacks.

    Raises DataError, or UsageError where there are too few.
    """
    with temporary_folder() as cache:
        if not embedded:
            end_at_once()
        folder = None if data_dir is None else Path(data_dir)
        if download and folder is not None:
            mnist.fetch(folder, say, os.environ)
        prepared = prepare_splits(
            spec.workload.dataset,
            data_dir=folder,
            cache=cache,
            architecture=spec.workload.architecture,
        )
        say(*prepared.notes)
        count = _train_samples(spec, prepared.samples)
        check_samples(spec, count)
        steps = EpochPlan(spec, count, shares=spec.shares or None).steps
        yield Samples(folder=prepared.folder, count=count, steps_per_epoch=steps)


def _train_samples(spec: TrainingSpec, there_are: int | None) -> int:
    """How many are trained on, of those that there are; None where they are generated."""
    asked = spec.train_samples
    if there_are is None and asked is not None and asked > MOST_SYNTHETIC_SAMPLES:
        raise UsageError(
            f"--limit-train {asked}: more samples than memory holds; expected at most "
            f"{MOST_SYNTHETIC_SAMPLES:,}"
        )
    if there_are is None:
        architecture = load(spec.workload.architecture)
        return synthetic_samples(architecture) if asked is None else asked
    if asked is not None and asked > there_are:
        raise UsageError(
            f"--limit-train {asked}: {spec.workload.dataset} has {there_are:,} training samples; "
            "take as many or fewer, or --data synthetic, which makes as many as asked for"
        )
    return there_are if asked is None else asked


def _what(spec: TrainingSpec) -> str:
    if spec.implementation == "torch-dp" or missing_package_reason(spec.implementation):
        return f"--implementation {spec.implementation}"
    return f"--backend {spec.backend}"
