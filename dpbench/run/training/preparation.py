"""A training before it runs: its specification, its run folder and its samples.

The command line and `dpbench.train` both go through here.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dpbench import architecture, units
from dpbench.architecture.naming import with_files
from dpbench.codec import differing_fields
from dpbench.data.datasets import synthetic_samples
from dpbench.data.digits import download_mnist
from dpbench.data.registry import note_unread, prepare_dataset
from dpbench.data.sharding import EpochPlan
from dpbench.errors import UsageError
from dpbench.files import folder_name, require_free
from dpbench.launch.machine import Machine, inspect_machine
from dpbench.launch.preflight import preflight
from dpbench.messages import option_words, say
from dpbench.options.train import DEFAULT_LENGTH, DIGITS_LENGTH, TrainOptions
from dpbench.records.environment import usable_cores
from dpbench.rendezvous.backends import missing_backends
from dpbench.rendezvous.placement import Placement, find_placement, local_gpu_index
from dpbench.report.answer import Answer
from dpbench.report.progress.training import size_line
from dpbench.run.results_folders import results_folder
from dpbench.run.this_machine import devices_for, threads_for
from dpbench.specs import WorkloadSpec
from dpbench.specs.training import RESUME_LATEST, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS, SINGLE, usual_backend
from dpbench.specs.workload import WORKLOAD_FIELDS
from dpbench.temporary import temporary_folder
from dpbench.training.rank import refuse_unusable
from dpbench.training.run_folder import OTHERWISE, RUN_FILE, TrainingJob, read_manifest


class RankDescription(NamedTuple):
    """The report of a rank on itself."""

    device: str
    host: str
    cores: int
    """Cores of its host."""


def describe_training(options: TrainOptions) -> Answer:
    """The size of a step of the training that would run here. Raises what the training would."""
    if "RANK" in os.environ or find_placement(os.environ):
        raise UsageError("--dry-run trains nothing; run it without the launcher")
    spec = spec_here(options, inspect_machine())
    job = place_training(options, spec)
    made = architecture.load_architecture(spec.workload.architecture)
    with prepare_samples(options, spec) as (_, steps):
        size = size_line(job, steps, made.item, architecture.items_per_sample(made))
    data = {
        "batch_size": spec.batch_size,
        "group_size": spec.group_size,
        "accumulate": spec.accumulate,
        "samples_per_step": spec.effective_batch_size,
        "steps_per_epoch": steps,
        "epochs": spec.epochs,
        "max_steps": job.run.max_steps,
    }
    return Answer(paragraphs=(size,), data=data)


def spec_here(options: TrainOptions, machine: Machine) -> TrainingSpec:
    """The training on this host: without CUDA with one replica unless the user asks for more.

    Raises UsageError for what it cannot do.
    """
    is_single = options.implementation == SINGLE
    alone = options.gpus is None and (not machine.gpus or is_single)
    sizes = (1,) if alone else None
    devices = devices_for(machine, options.gpus, sizes, oversubscribe=options.oversubscribe)
    threads = threads_for(
        options.threads, machine.cores, len(devices), oversubscribe=options.oversubscribe
    )
    if alone and not is_single:
        say(
            "no CUDA device here: one replica on the CPU; "
            f"{option_words('gpus', 2)} splits the cores between two"
        )
    spec = build_spec(options, devices, threads)
    if reason := machine.unusable_reason(spec):
        implementation = option_words("implementation", spec.implementation)
        raise UsageError(f"{implementation} {option_words('backend', spec.backend)}: {reason}")
    return spec


def describe_rank(placement: Placement) -> RankDescription:
    """Report of this rank on itself: its GPU by LOCAL_RANK, if there is any.

    Raises ValueError for variables that name no GPU, UsageError for one that is not here.
    """
    index = local_gpu_index(placement.rank, placement.world_size, os.environ)
    gpus = torch.cuda.device_count()
    if gpus and index >= gpus:
        raise UsageError(
            f"rank {placement.rank}: there is no GPU {index}, but {gpus}; start fewer processes a "
            "host"
        )
    return RankDescription(
        device=f"cuda:{index}" if gpus else "cpu",
        host=f"{os.environ.get('GROUP_RANK', '')} {platform.node()}".strip(),
        cores=usable_cores(),
    )


def spec_of_world(options: TrainOptions, ranks: Sequence[RankDescription]) -> TrainingSpec:
    """The training with a replica on each rank. Raises UsageError."""
    size = len(ranks)
    leave_out = ", or run dpbench train without a launcher"
    if options.gpus is not None:
        raise UsageError(
            f"{option_words('gpus', options.gpus)}: the launcher has started {size} "
            f"{'process' if size == 1 else 'processes'} and says which device each takes; leave "
            f"it out{leave_out}"
        )
    if size > 1 and IMPLEMENTATIONS[options.implementation].one_process:
        raise UsageError(
            f"{option_words('implementation', options.implementation)}: one process drives all its "
            f"replicas, but the launcher has started {size}; take ddp{leave_out}"
        )
    counts = Counter(rank.host for rank in ranks)
    tightest = min(ranks, key=lambda rank: rank.cores / counts[rank.host])
    threads = threads_for(
        options.threads, tightest.cores, counts[tightest.host], oversubscribe=options.oversubscribe
    )
    spec = build_spec(options, [rank.device for rank in ranks], threads)
    reason = missing_backends().get(spec.backend)
    if spec.backend == "shm" and len(counts) > 1:
        reason = f"it is for the ranks of one host, and these are on {len(counts)}"
    if reason:
        raise UsageError(f"{option_words('backend', spec.backend)}: {reason}")
    return spec


def build_spec(options: TrainOptions, devices: Sequence[str], threads: int) -> TrainingSpec:
    """The training with a replica on each of `devices`. Raises UsageError."""
    architecture.make_importable(options.arch)
    tried = preflight(options.arch, dataset=options.data, seed=options.seed)
    dataset = tried.dataset
    say(*tried.notes)
    note_unread(options.data_dir, (dataset,))
    length = DIGITS_LENGTH if dataset == "digits" else DEFAULT_LENGTH
    workload = WorkloadSpec(
        architecture=options.arch,
        dataset=dataset,
        **options.model_dump(include={*WORKLOAD_FIELDS}),
    )
    exchange = IMPLEMENTATIONS[options.implementation].exchange
    backend = usual_backend(devices[0]) if exchange == "ranks" else exchange
    settings: dict[str, Any] = {
        "backend": backend,
        **length,
        **options.model_dump(
            include={field.name for field in fields(TrainingSpec)}, exclude_none=True
        ),
        "threads": threads,
    }
    spec = TrainingSpec(
        workload=with_files(workload),
        group_size=len(devices),
        devices=tuple(devices),
        train_samples=options.limit_train,
        **settings,
    )
    rule = workload.lr_scaling
    try:
        rate = spec.scaled_lr
    except ValueError as error:
        raise UsageError(f"{option_words('lr_scaling', rule)}: {error}") from None
    if rule != "none":
        say(
            f"{option_words('lr_scaling', rule)}: the learning rate is {rate:.3g}, for "
            f"{spec.effective_batch_size:,} samples a step instead of {spec.batch_size:,}"
        )
    refuse_unusable(spec, options.run)
    return spec


def place_training(options: TrainOptions, spec: TrainingSpec) -> TrainingJob:
    """The training with its run folder, which is not made: new, or the one that --resume names.

    Raises UsageError for another training than the one to go on with, FileError for a folder that
    is there already.
    """
    named = folder_name(spec.workload.architecture)
    folder = results_folder(options.runs_dir, options.name, otherwise=named)
    job = TrainingJob(spec=spec, run=options.run, folder=folder, prepared=None)
    resume = None if options.resume is None else str(options.resume)
    resume_option = option_words("resume", resume)
    if resume == RESUME_LATEST:
        if options.name is None:
            raise UsageError(f"{resume_option} needs {option_words('name')}: the run to go on with")
        if os.path.lexists(folder / RUN_FILE):
            return _going_on(job)
        say(f"{resume_option}: no {folder} yet; starts a new run")
    elif resume is not None:
        places = (Path(resume), options.runs_dir / resume)
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise UsageError(
                f"{resume_option}: no run or checkpoint of that name, here or in "
                f"{options.runs_dir}; expected a run folder, a checkpoint, or auto"
            )
        if found.is_dir():
            if options.name is not None:
                raise UsageError(
                    f"{resume_option} goes on in that folder; leave {option_words('name')} out, or "
                    "give a checkpoint file to begin another run from"
                )
            return _going_on(replace(job, folder=found))
        job = replace(job, resume=str(found.absolute()))
    require_free(folder, OTHERWISE)
    return job


def _going_on(job: TrainingJob) -> TrainingJob:
    """The job as the resumption of the run in its folder; raises UsageError if that is another
    training: only the number of epochs may have grown."""
    run = read_manifest(job.folder)
    theirs = run.spec
    theirs = replace(theirs, epochs=max(job.spec.epochs, theirs.epochs)).with_files_of(job.spec)
    if differences := differing_fields(job.spec, theirs):
        raise UsageError(
            f"{option_words('resume')}: {job.folder} holds another training "
            f"({'; '.join(differences)}); it was started with: {run.starts[0].command.text}"
        )
    return replace(job, resume=RESUME_LATEST)


@contextmanager
def prepare_samples(options: TrainOptions, spec: TrainingSpec) -> Iterator[tuple[Path, int]]:
    """A context in which the ranks of this host may read the prepared samples: their folder, as in
    TrainingJob.prepared, and the steps of an epoch.

    With --download, the files that MNIST lacks are downloaded first.

    Raises UsageError, also if there are too few.
    """
    dataset, count = spec.workload.dataset, spec.train_samples
    with temporary_folder() as cache:
        if options.download and options.data_dir is not None:
            download_mnist(options.data_dir, say)
        available = prepare_dataset(dataset, data_dir=options.data_dir, cache=cache)
        if count is None:
            count = available or synthetic_samples(
                architecture.load_architecture(spec.workload.architecture)
            )
        elif available is not None and count > available:
            raise UsageError(
                f"{option_words('limit_train', count)}: {dataset} has {available:,} training "
                f"samples; take as many or fewer, or {option_words('data', 'synthetic')}, which "
                "makes as many as asked for"
            )
        if spec.global_batch_size > count:
            replicas = units.counted(spec.group_size, "replica")
            raise UsageError(
                f"{option_words('batch_size', spec.batch_size)} × {replicas} = "
                f"{spec.global_batch_size:,} samples a micro-step, more than the {count:,} "
                f"training samples of {dataset}; take a smaller batch or fewer replicas"
            )
        yield cache, EpochPlan(spec, count).steps_per_epoch
