"""From options to a sweep that can run: its folder, its specification and its datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpbench import units
from dpbench.architecture.naming import named_files
from dpbench.codec import differing_fields
from dpbench.data.registry import is_function, prepare_dataset
from dpbench.errors import FileError, UsageError
from dpbench.files import MAX_FOLDER_NAME, folder_inside, folder_name
from dpbench.folders import LOGS_FOLDER, Sweep, load_sweep
from dpbench.launch.cluster import Node
from dpbench.launch.machine import inspect_machine
from dpbench.launch.preflight import run_user_code
from dpbench.launch.trial_runner import TrialRunner
from dpbench.messages import option_words, warn
from dpbench.options.sweep import SweepOptions
from dpbench.run.results_folders import results_folder
from dpbench.run.sweep.measuring import SweepRun
from dpbench.run.sweep.spec import build_sweep_spec, measured_names
from dpbench.run.this_machine import devices_for
from dpbench.specs import SweepSpec
from dpbench.specs.command_line import CommandLine
from dpbench.temporary import temporary_folder


@contextmanager
def plan_sweep(options: SweepOptions, check: CommandLine | None = None) -> Iterator[SweepRun]:
    """The sweep of these options on this node alone, to be measured inside. With --dry-run, it may
    have more replicas than this machine has devices.

    A `check` measures speeds alone, and the folder names its command. Raises UsageError if the
    sweep cannot run, such as for too small a dataset, or is not the one to resume, and FileError
    for a new folder that already exists or a missing one to resume.
    """
    folder = sweep_folder(options)
    stored = load_sweep(folder) if options.resume else None
    machine = inspect_machine()
    devices = devices_for(
        machine,
        options.gpus,
        options.group_sizes,
        oversubscribe=options.oversubscribe,
        may_lack=options.dry_run,
    )
    here = Node(number=0, machine=machine, devices=devices)
    spec = build_sweep_spec(options, (here,), only_speeds=check is not None)
    command = check or options.command("sweep")
    sweep = resumed(stored, spec) if stored else Sweep(folder=folder, command=command, spec=spec)
    logs = folder_inside(folder, LOGS_FOLDER)
    with prepared_datasets(spec, options.data_dir, may_lack=options.dry_run) as prepared:
        yield SweepRun(sweep, TrialRunner(machine, logs, prepared), resumes=options.resume)


def sweep_folder(options: SweepOptions) -> Path:
    """The folder of the results; raises FileError for a new one that exists."""
    named = "-".join(map(folder_name, measured_names(options)))[:MAX_FOLDER_NAME]
    is_new = not options.resume
    return results_folder(options.results_dir, options.name, otherwise=named, is_new=is_new)


def resumed(stored: Sweep, spec: SweepSpec) -> Sweep:
    """A stored sweep that is to be finished by this specification, after warnings of what could not
    be read of it. What timed out may have more time now.

    Raises UsageError if it has another specification, and FileError if another command made it.
    """
    warn(*stored.warnings)
    if stored.to_finish is None:
        raise FileError(
            f"{stored.folder}: only dpbench sweep can be resumed, and another command made it; "
            f"choose another {option_words('name')}"
        )
    for before, now in zip(stored.spec.workloads, spec.workloads, strict=False):
        if before != now == replace(before, files_sha256=now.files_sha256):
            raise UsageError(
                f"{option_words('resume')}: {named_files(now)} has changed since {stored.folder} "
                "was begun; its trials would be of two things; expected the files as they were, or "
                f"a new {option_words('name')}"
            )
    wanted = replace(stored.spec, time_limit_seconds=spec.time_limit_seconds)
    if spec != wanted:
        lines = (line.removeprefix("axes: ") for line in differing_fields(spec, wanted))
        raise UsageError(
            f"{option_words('resume')}: {stored.folder} holds another sweep, with other "
            f"{', '.join(line.split()[0].rstrip(':') for line in lines)}; to finish it: "
            f"{stored.to_finish}"
        )
    return replace(stored, spec=spec)


@contextmanager
def prepared_datasets(
    spec: SweepSpec, data_dir: Path | None, *, may_lack: bool = False
) -> Iterator[Path]:
    """A folder with the datasets of the sweep in a form that ranks load in milliseconds. Raises
    UsageError for one that is smaller than a step of all replicas; a plan `may_lack` samples, which
    is a warning."""
    sizes: dict[str, int | None] = {}
    datasets = dict.fromkeys(workload.dataset for workload in spec.workloads if not workload.script)
    with temporary_folder() as cache:
        for dataset in datasets:
            prepare = partial(prepare_dataset, dataset, data_dir=data_dir, cache=cache)
            if is_function(dataset):
                sizes[dataset] = run_user_code(f"dataset {dataset!r}", prepare)
            else:
                sizes[dataset] = prepare()
        for configuration in spec.configurations:
            dataset = configuration.workload.dataset
            size = sizes.get(dataset)
            if size is not None and (taken := configuration.global_batch_size) > size:
                replicas = units.counted(configuration.group_size, "replica")
                problem = (
                    f"{replicas} take {taken:,} samples in one step, and {dataset} has {size:,}; "
                    "expected fewer replicas, smaller --batch-sizes or another --data"
                )
                if not may_lack:
                    raise UsageError(problem)
                warn(problem)
                break
        yield cache
