"""From options to a sweep that can run: its folder, its specification and its datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpbench import folders, units
from dpbench.architecture.naming import named_files
from dpbench.codec import differing_fields
from dpbench.data.registry import is_function, prepare_dataset
from dpbench.errors import FileError, UsageError
from dpbench.files import MAX_FOLDER_NAME, folder_inside, folder_name
from dpbench.folders import LOGS_FOLDER, Sweep
from dpbench.launch.cluster import Node
from dpbench.launch.machine import inspect_machine
from dpbench.launch.preflight import run_user_code
from dpbench.launch.trial_runner import TrialRunner
from dpbench.messages import option_words, say, warn
from dpbench.options.sweep import SweepOptions
from dpbench.run.results_folders import results_folder
from dpbench.run.sweep.measuring import SweepRun
from dpbench.run.sweep.spec import build_sweep_spec, measured_names
from dpbench.run.this_machine import device_notes, devices_for
from dpbench.specs import SweepSpec
from dpbench.specs.command_line import CommandLine
from dpbench.temporary import temporary_folder


@contextmanager
def plan_sweep(
    options: SweepOptions, command: CommandLine | None = None, *, only_speeds: bool = False
) -> Iterator[SweepRun]:
    """The sweep of these options on this node alone, to be measured inside; see `specified_sweep`.
    With --dry-run, it may have more replicas than this machine has devices.

    Raises UsageError if the sweep cannot run, such as for too small a dataset, or is not the one to
    resume, and FileError for a new folder that already exists or a missing one to resume.
    """
    folder = sweep_folder(options)
    machine = inspect_machine()
    sizes = tuple(size for size in options.group_sizes or () if isinstance(size, int))
    counts = sizes if sizes == options.group_sizes else None
    devices = devices_for(
        machine,
        options.gpus,
        counts,
        oversubscribe=options.oversubscribe,
        may_lack=options.dry_run,
    )
    here = Node(number=0, machine=machine, devices=devices, folder=folder.name)
    sweep, notes = specified_sweep(options, here, [here], command, only_speeds=only_speeds)
    logs = folder_inside(folder, LOGS_FOLDER)
    with prepared_datasets(sweep.spec, options.data_dir, may_lack=options.dry_run) as prepared:
        runner = TrialRunner(machine, logs, prepared)
        run = SweepRun(sweep, runner, resumes=options.resume)
        say(*notes)
        yield run


def sweep_folder(options: SweepOptions) -> Path:
    """The folder of the results; raises FileError for a new one that exists."""
    otherwise = "-".join(map(folder_name, measured_names(options)))[:MAX_FOLDER_NAME]
    is_new = not options.resume
    return results_folder(options.results_dir, options.name, otherwise=otherwise, is_new=is_new)


def specified_sweep(
    options: SweepOptions,
    here: Node,
    nodes: Sequence[Node],
    command: CommandLine | None = None,
    *,
    only_speeds: bool = False,
) -> tuple[Sweep, list[str]]:
    """The sweep of these options on the nodes, new or, on the first one, as it is stored if it is
    resumed; and notes for the user of the node that is `here`.

    The folder names the `command`, or else that of `dpbench sweep` with these options. With
    `only_speeds`, what speedups and explanations need is left out: `single` unless it is asked for,
    steps without synchronization and the phases of a step.

    Raises UsageError for what the nodes cannot run, or if another sweep is stored, and FileError if
    none is.
    """
    folder = options.results_dir / nodes[0].folder
    earlier = folders.load_sweep(folder) if options.resume and here.number == 0 else None
    warn(*earlier.warnings if earlier else ())
    spec, notes = build_sweep_spec(options, nodes)
    notes = [*device_notes(here.machine, options.gpus, here.devices), *notes]
    if earlier is not None:
        limit = spec.time_limit_seconds  # what timed out may have more of it now
        _require_resumable(
            earlier, replace(spec, time_limit_seconds=earlier.spec.time_limit_seconds)
        )
        return replace(earlier, spec=replace(earlier.spec, time_limit_seconds=limit)), notes
    if only_speeds:
        asked = options.measured_implementations
        spec = replace(spec, is_instrumented=False, implementations=asked)
    command = command or options.command("sweep")
    if options.node_rank is not None:  # every node has its own
        command = command.again(node_rank="N")
    return Sweep(folder=folder, command=command, spec=spec), notes


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
        for configuration in spec.configurations if datasets else ():
            dataset = configuration.workload.dataset
            size = sizes[dataset]
            taken = configuration.global_batch_size
            if size is not None and taken > size:
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


def _require_resumable(sweep: Sweep, spec: SweepSpec) -> None:
    """Raise UsageError if a stored sweep is not the one of the specification, and FileError if
    another command measured it."""
    if sweep.to_finish is None:
        raise FileError(
            f"{sweep.folder}: only dpbench sweep can be resumed, and another command made it; "
            f"choose another {option_words('name')}"
        )
    for before, now in zip(sweep.spec.workloads, spec.workloads, strict=False):
        if before != now == replace(before, files_sha256=now.files_sha256):
            raise UsageError(
                f"{option_words('resume')}: {named_files(now)} has changed since {sweep.folder} "
                "was begun; its trials would be of two things; expected the files as they were, or "
                f"a new {option_words('name')}"
            )
    if spec != sweep.spec:
        lines = (line.removeprefix("axes: ") for line in differing_fields(spec, sweep.spec))
        raise UsageError(
            f"{option_words('resume')}: {sweep.folder} holds another sweep, with other "
            f"{', '.join(line.split()[0].rstrip(':') for line in lines)}; to finish it: "
            f"{sweep.to_finish}"
        )
