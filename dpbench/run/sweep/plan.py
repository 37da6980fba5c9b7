"""A sweep before it is measured: its specification, its folder, and the runner of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dpbench import folders, units
from dpbench.architecture.naming import named_files
from dpbench.codec import content_hash, differing_fields
from dpbench.data.registry import is_function, prepare_dataset
from dpbench.errors import FileError, UsageError
from dpbench.files import MAX_FOLDER_NAME, folder_inside, folder_name
from dpbench.folders import LOGS_FOLDER, Header, Sweep
from dpbench.launch.cluster import Cluster, ClusterRunner, Node, NodeLost
from dpbench.launch.machine import inspect_machine
from dpbench.launch.preflight import run_user_code
from dpbench.launch.trial_runner import TrialRunner
from dpbench.messages import as_typed, option_words
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import SCHEMA_VERSION
from dpbench.rendezvous.placement import Placement
from dpbench.run.results import new_folder, results_folder
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import device_notes, devices_for
from dpbench.specs import SweepSpec
from dpbench.specs.sweep import configurations, plan_trials
from dpbench.temporary import temporary_folder

NODE_OPTIONS = ("gpus", "data_dir")
"""Options in which the nodes of a sweep may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """A sweep that can be measured now."""

    sweep: Sweep
    """Its folder and specification, with the records that it has if it is resumed."""
    runner: TrialRunner
    """Runs its trials on the nodes of a cluster, or on this one alone."""
    resumes: bool
    notes: Sequence[str]
    """How it will be measured, for the user."""


@contextmanager
def plan_sweep(options: SweepOptions, cluster: Cluster | None = None) -> Iterator[SweepPlan]:
    """The plan for these options; its runner can be used inside.

    Raises UsageError if the sweep cannot run, such as for too small a dataset, or is not the one to
    resume, FileError for a new folder that already exists or a missing one to resume, and NodeLost,
    which says how to finish.
    """
    here = cluster.this_node if cluster else this_node(options)
    nodes = cluster.nodes if cluster else (here,)
    folder = options.results_dir / here.folder
    # Only the first node has the results.
    earlier = folders.load_sweep(folder) if options.resume and not here.number else None
    spec, notes = build_sweep_spec(options, nodes)
    if earlier is not None:
        _require_resumable(earlier, spec)
    command = options.command("sweep")
    if cluster:  # all nodes name the folder of the first
        command = command.again(name=nodes[0].folder)
    header = Header(schema_version=SCHEMA_VERSION, command=command, spec=spec)
    sweep = earlier or Sweep(folder=folder, header=header)
    try:
        logs = folder_inside(folder, LOGS_FOLDER)
        notes = [*device_notes(here.machine, options.gpus, here.devices), *notes]
        with runner_for(spec, logs, options.data_dir, here, cluster) as runner:
            yield SweepPlan(sweep=sweep, runner=runner, resumes=earlier is not None, notes=notes)
    except NodeLost as lost:
        raise NodeLost(lost.reason, f"; to finish, {sweep.to_finish}") from None


def this_node(options: SweepOptions, placement: Placement | None = None) -> Node:
    """The node of this process, alone or among several, with the devices that it offers and its
    folder, which has but logs of failed trials on all nodes but the first.

    Raises UsageError for devices that it does not have, FileError for a new folder that exists.
    """
    number = placement.node if placement else 0
    names = options.arch if options.script is None else (Path(options.script).name,)
    named = "-".join(map(folder_name, names))[:MAX_FOLDER_NAME]
    find = results_folder if options.resume or number else new_folder
    usual = f"dpbench-node{number}" if number else None
    folder = find(options.results_dir, options.name or usual, otherwise=named)
    machine = inspect_machine()
    sizes = tuple(size for size in options.group_sizes or () if isinstance(size, int))
    counts = sizes if placement is None and sizes == options.group_sizes else None
    devices = devices_for(machine, options.gpus, counts, oversubscribe=options.oversubscribe)
    values = options.model_dump(mode="json", exclude_unset=True)
    common = {
        info.name: as_typed(values[name])
        for name, info in options.given.items()
        if info.scope == "measured" and name not in NODE_OPTIONS
    }
    common |= {name: machine.environment.versions[name] for name in ("dpbench", "torch")}
    common["devices"] = devices[0].partition(":")[0]
    return Node(number=number, machine=machine, devices=devices, common=common, folder=folder.name)


@contextmanager
def runner_for(
    spec: SweepSpec, logs: Path, data_dir: Path | None, here: Node, cluster: Cluster | None = None
) -> Iterator[TrialRunner]:
    """A runner of the sweep's trials, with its datasets prepared; the folder `logs` gets the output
    of failed ones. Raises UsageError for a dataset that is smaller than a step of all replicas."""
    with temporary_folder() as scratch:
        _prepare_datasets(spec, data_dir, scratch)
        trials = plan_trials(spec)
        if cluster is None or here.number:
            runner = TrialRunner(here.machine, logs, scratch)
        else:
            runner = ClusterRunner(cluster, trials, logs, scratch)
        if cluster is not None:
            cluster.agree_on_plan(content_hash([trial.trial_id for trial in trials]))
        yield runner


def _prepare_datasets(spec: SweepSpec, data_dir: Path | None, cache: Path) -> None:
    """Write the datasets in a form that ranks load in milliseconds."""
    counts: dict[str, int | None] = {}
    datasets = dict.fromkeys(each.dataset for each in spec.workloads if not each.script)
    for dataset in datasets:
        work = partial(prepare_dataset, dataset, data_dir=data_dir, cache=cache)
        theirs = is_function(dataset)
        counts[dataset] = run_user_code(f"dataset {dataset!r}", work) if theirs else work()
    for each in configurations(spec) if datasets else ():
        samples = counts[each.workload.dataset]
        if samples is not None and each.global_batch_size > samples:
            raise UsageError(
                f"{units.counted(each.group_size, 'replica')} take {each.global_batch_size:,} "
                f"samples in one step, and {each.workload.dataset} has {samples:,}; expected "
                "fewer --gpus, smaller --batch-sizes or --data synthetic"
            )


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
