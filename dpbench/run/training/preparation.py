"""From the right options of a training to what ranks can be started with: spec, folder, samples.

The command line and `dpbench.train` both go through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpbench.architecture import load
from dpbench.data import mnist_download
from dpbench.data.datasets import synthetic_samples
from dpbench.data.epochs import EpochPlan
from dpbench.data.registry import prepare_splits
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.launch.requirements import (
    has_sparse_gradients,
    missing_package_reason,
    optimizer_reason,
    sparse_reason,
)
from dpbench.messages import say
from dpbench.run.devices import Resources
from dpbench.run.interrupts import end_at_once
from dpbench.run.training import place as train_place
from dpbench.run.training.place import RunPlace
from dpbench.run.training.request import AUTO, TrainRequest
from dpbench.run.training.spec import build, check_samples, devices_here
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.temporary import temporary_folder
from dpbench.training.events import Finished
from dpbench.training.job import refuse_unusable
from dpbench.training.run_folder import RunStatus

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
        """How it ended, if the run to go on with has nothing left to train."""
        existing = self.place.existing
        if existing is None or existing.header.status is not RunStatus.COMPLETED:
            return None
        if self.place.resume != AUTO or self.spec.epochs > existing.header.spec.epochs:
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
    for note in notes:
        say(note)
    spec = build_spec(request, machine, devices, threads)
    if reason := machine.unusable_reason(spec):
        raise UsageError(f"{_what(spec)}: {reason}")
    return plan(request, spec)


def build_spec(
    request: TrainRequest, machine: Resources, devices: Sequence[str], threads: int
) -> TrainingSpec:
    """The training with a replica on each of `devices`; says the notes. Raises UsageError."""
    spec, notes = build(request.options, machine, devices, threads)
    for note in (*request.notes, *notes):
        say(note)
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


def plan(request: TrainRequest, spec: TrainingSpec) -> TrainPlan:
    place = train_place.choose(
        spec, name=request.name, runs_dir=request.runs_dir, resume=request.resume
    )
    return TrainPlan(request=request, spec=spec, place=place)


def samples_of(plan: TrainPlan) -> AbstractContextManager[Samples]:
    """Those of a training that this process has planned; see `samples`."""
    options, embedded = plan.request.options, plan.request.embedded
    return samples(plan.spec, options.data_dir, embedded=embedded, download=options.download)


@contextmanager
def samples(
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
            mnist_download.fetch(folder, say, os.environ)
        prepared = prepare_splits(
            spec.workload.dataset,
            data_dir=folder,
            cache=cache,
            architecture=spec.workload.architecture,
        )
        for note in prepared.notes:
            say(note)
        count = _train_samples(spec, prepared.train_samples)
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
