"""Prepare a training from checked options: its specification, run folder and samples.

The command line and `dpbench.train` both go through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpbench import units
from dpbench.architecture import load
from dpbench.data import mnist
from dpbench.data.datasets import synthetic_samples
from dpbench.data.registry import prepare_splits, unread_notes
from dpbench.data.sharding import EpochPlan
from dpbench.data.user_code import with_files
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.launch.preflight import preflight
from dpbench.launch.unusable import (
    has_sparse_gradients,
    missing_package_reason,
    optimizer_reason,
    sparse_reason,
)
from dpbench.messages import say
from dpbench.run.interrupts import end_at_once
from dpbench.run.this_machine import devices_for, threads_for
from dpbench.run.training.arguments import TrainRequest
from dpbench.run.training.resume import RunPlace, choose_run_folder
from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS
from dpbench.temporary import temporary_folder
from dpbench.training.job import refuse_unusable

DEFAULT_LENGTH = (5, 0.7)
"""Epochs and gamma, as the MNIST example of torch has them."""
DIGITS_LENGTH = (10, 0.85)
"""The same for digits, of which two replicas would take too few steps in five epochs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPlan:
    """The planned training and its place; nothing is created yet."""

    request: TrainRequest
    spec: TrainingSpec
    place: RunPlace

    @property
    def run(self) -> TrainingRun:
        return self.request.options.run


def plan_here(request: TrainRequest, machine: Machine) -> TrainPlan:
    """The training on this host: without CUDA with one replica unless the user asks for more.

    Raises UsageError for what it cannot do, StoreError.
    """
    notes: list[str] = []
    options, oversubscribe = request.options, request.options.oversubscribe
    alone = options.gpus is None and (not machine.has_cuda or options.implementation == "single")
    if alone and options.implementation != "single":
        notes.append(
            "no CUDA device here: one replica on the CPU; --gpus 2 splits the cores between two"
        )
    sizes = (1,) if alone else None
    devices = devices_for(machine, options.gpus, sizes, notes, oversubscribe=oversubscribe)
    threads = threads_for(options.threads, machine.cores, len(devices), oversubscribe=oversubscribe)
    say(*notes)
    spec = build_spec(request, devices, threads)
    if reason := machine.unusable_reason(spec):
        name = spec.implementation
        about_it = name == "torch-dp" or missing_package_reason(name)
        what = f"--implementation {name}" if about_it else f"--backend {spec.backend}"
        raise UsageError(f"{what}: {reason}")
    return plan_training(request, spec)


def build_spec(request: TrainRequest, devices: Sequence[str], threads: int) -> TrainingSpec:
    """The training with a replica on each of `devices`; prints notes. Raises UsageError."""
    options = request.options
    tried = preflight(options.arch, dataset=options.data, step=None, seed=options.seed)
    dataset, notes = tried.dataset, [*tried.notes]
    notes += unread_notes(options.data_dir, (dataset,))
    epochs, gamma = DIGITS_LENGTH if dataset == "digits" else DEFAULT_LENGTH
    left_out = [f"--epochs {epochs}"] * (options.epochs is None)
    left_out += [f"--gamma {gamma}"] * (options.gamma is None)
    if dataset == "digits" and left_out:
        notes.append(f"{', '.join(left_out)}, the default of digits")
    own_settings = {name: getattr(options, name, None) for name in OPTIONAL_SETTINGS}
    process_backend = options.backend or ("gloo" if devices[0] == "cpu" else "nccl")
    workload = WorkloadSpec(
        architecture=options.arch,
        dataset=dataset,
        optimizer=options.optimizer,
        dtype=options.dtype,
        compile=options.compile,
        learning_rate=options.lr,
        learning_rate_rule=options.lr_scaling,
        seed=options.seed,
    )
    spec = TrainingSpec(
        workload=with_files(workload),
        implementation=options.implementation,
        backend=IMPLEMENTATIONS[options.implementation].backend or process_backend,
        group_size=len(devices),
        batch_size=options.batch_size,
        devices=tuple(devices),
        threads_per_replica=threads,
        epochs=options.epochs or epochs,
        gamma=options.gamma or gamma,
        warmup_steps=options.lr_warmup,
        accumulation_steps=options.accumulate,
        last_window=options.last_window,
        max_norm=options.max_norm,
        **{name: value for name, value in own_settings.items() if value is not None},
        balance=options.balance,
        train_samples=options.limit_train,
    )
    rule = workload.learning_rate_rule
    try:
        rate = spec.learning_rate
    except ValueError as error:
        raise UsageError(f"--lr-scaling {rule}: {error}") from None
    if rule != "none":
        notes.append(
            f"--lr-scaling {rule}: the learning rate is {rate:.3g}, for "
            f"{spec.effective_batch_size:,} samples a step instead of {spec.batch_size:,}"
        )
    say(*notes)
    refuse_unusable(spec, options.run)
    if reason := optimizer_reason(workload.architecture, workload.optimizer):
        raise UsageError(f"--optimizer {workload.optimizer}: {reason}")
    if reason := sparse_reason(spec):
        raise UsageError(f"--implementation {spec.implementation}: {reason}")
    if spec.max_norm is not None and has_sparse_gradients(workload.architecture):
        raise UsageError(
            f"--max-norm {spec.max_norm:g}: torch takes the norm of dense gradients only, and the "
            "architecture has sparse ones; leave it out"
        )
    return spec


def plan_training(request: TrainRequest, spec: TrainingSpec) -> TrainPlan:
    """The training with its run folder."""
    options = request.options
    place = choose_run_folder(
        spec, name=options.name, runs_dir=options.runs_dir, resume=options.resume
    )
    return TrainPlan(request=request, spec=spec, place=place)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """The samples of a training on this host."""

    folder: Path | None
    """See TrainingJob.prepared."""
    count: int
    """Number of training samples."""
    steps_per_epoch: int


def samples_of(plan: TrainPlan) -> AbstractContextManager[Samples]:
    """The prepared samples of a training that this process has planned."""
    options, embedded = plan.request.options, plan.request.embedded
    return prepared_samples(
        plan.spec, options.data_dir, embedded=embedded, download=options.download
    )


@contextmanager
def prepared_samples(
    spec: TrainingSpec, data_dir: str | Path | None, *, embedded: bool, download: bool
) -> Iterator[Samples]:
    """A context in which the ranks of this host may read the prepared samples.

    With `download`, the files that MNIST lacks are downloaded first.

    Raises DataError, or UsageError if there are too few.
    """
    dataset, count = spec.workload.dataset, spec.train_samples
    with temporary_folder() as cache:
        if not embedded:
            end_at_once()
        folder = None if data_dir is None else Path(data_dir)
        if download and folder is not None:
            mnist.fetch(folder, say)
        prepared = prepare_splits(dataset, data_dir=folder, cache=cache)
        available = prepared.samples
        if count is None:
            count = available or synthetic_samples(load(spec.workload.architecture))
        elif available is not None and count > available:
            raise UsageError(
                f"--limit-train {count}: {dataset} has {available:,} training samples; take as "
                "many or fewer, or --data synthetic, which makes as many as asked for"
            )
        if spec.global_batch_size > count:
            replicas = units.counted(spec.group_size, "replica")
            raise UsageError(
                f"--batch-size {spec.batch_size} × {replicas} = {spec.global_batch_size:,} samples "
                f"a micro-step, more than the {count:,} training samples of {dataset}; take a "
                "smaller batch or fewer replicas"
            )
        steps = EpochPlan(spec, count).steps
        yield Samples(folder=prepared.folder, count=count, steps_per_epoch=steps)
