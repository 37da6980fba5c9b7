"""A sweep that is planned for its nodes: its trials, its folder, and what is stored of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dpbench import folders
from dpbench.architecture.naming import named_files
from dpbench.codec import differing_fields
from dpbench.errors import FileError, UsageError
from dpbench.files import MAX_FOLDER_NAME, folder_name
from dpbench.folders import StoredSweep, finishing_command
from dpbench.launch.cluster import Cluster, Node, NodeLost, open_cluster
from dpbench.messages import as_typed, option_words
from dpbench.options.sweep import SweepOptions
from dpbench.rendezvous.placement import Placement
from dpbench.run.interrupts import as_exceptions
from dpbench.run.results import new_folder, results_folder
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import device_notes, devices_for, machine_here
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.specs.sweep import plan_trials

OF_EACH_NODE = ("gpus", "data_dir")
"""Options in which the nodes of a sweep may differ."""


@dataclass(frozen=True, kw_only=True)
class PlannedSweep:
    """A sweep, and how it is to be measured."""

    spec: SweepSpec
    nodes: Sequence[Node]
    """The nodes that measure it, of which the first plans and records; one without a `cluster`."""
    folder: Path
    command: tuple[str, ...]
    """The command line after "dpbench"."""
    data_dir: Path | None = None
    earlier: StoredSweep | None = None
    """What --resume found in the folder; None for a new folder."""
    stop_after_failure: bool = False
    notes: Sequence[str] = ()
    """Notes that the user must see once it is known that the sweep can run."""
    cluster: Cluster | None = None
    """This node's connection to the others."""

    @cached_property
    def trials(self) -> tuple[TrialSpec, ...]:
        """The plan: all trials in their order."""
        return plan_trials(self.spec)

    @property
    def here(self) -> Node:
        """The node of this process."""
        return self.cluster.this_node if self.cluster else self.nodes[0]

    @property
    def to_finish(self) -> str | None:
        """The command that finishes a sweep after an interrupt; other commands have none."""
        if self.command[:1] != ("sweep",):
            return None
        name = self.nodes[0].folder if self.cluster else self.folder.name
        again = finishing_command(self.command, self.spec, name)
        return f"on every node, as before: {again}" if self.cluster else again


@contextmanager
def plan_sweep(
    options: SweepOptions, placement: Placement | None = None, token: str = ""
) -> Iterator[PlannedSweep]:
    """The sweep of these options on this machine or, while the context lasts, on several
    nodes that have joined each other: `placement` is this node's, `token` signs what they say.

    Raises UsageError if the sweep cannot run or is not the one to resume, FileError for a new
    folder that already exists or a missing one to resume, what `open_cluster` raises, and
    NodeLost, which says how to finish.
    """
    earlier = None
    if placement is not None and placement.node:  # for the logs of failed trials
        folder = options.results_dir / (options.name or f"dpbench-node{placement.node}")
    else:
        names = options.arch if options.script is None else (Path(options.script).name,)
        named = "-".join(map(folder_name, names))[:MAX_FOLDER_NAME]
        find = results_folder if options.resume else new_folder
        folder = find(options.results_dir, options.name, otherwise=named)
        earlier = folders.load_sweep(folder) if options.resume else None
    here = this_node(options, placement, folder.name)
    cluster = None
    with ExitStack() as stack:
        if placement is not None:
            if options.dry_run:
                raise UsageError(
                    "--dry-run plans for one node; leave --nnodes out, or the launcher"
                )
            stack.enter_context(as_exceptions())
            cluster = stack.enter_context(open_cluster(placement, token, here))
        nodes = cluster.nodes if cluster else (here,)
        spec, notes = build_sweep_spec(options, nodes)
        warnings = earlier.warnings if earlier else ()
        if earlier is not None:
            _require_resumable(earlier, spec)
        plan = PlannedSweep(
            spec=spec,
            nodes=nodes,
            folder=folder,
            command=("sweep", *options.command_line()),
            data_dir=options.data_dir,
            earlier=earlier,
            stop_after_failure=options.stop_after_failure,
            notes=(
                *(f"warning: {warning}" for warning in warnings),
                *device_notes(here.machine, options.gpus, here.devices),
                *notes,
            ),
            cluster=cluster,
        )
        try:
            yield plan
        except NodeLost as lost:
            raise NodeLost(lost.reason, f"; to finish, {plan.to_finish}") from None


def this_node(options: SweepOptions, placement: Placement | None = None, folder: str = "") -> Node:
    """The node of this process, alone or among several, with the devices that it offers; raises
    UsageError for those that it does not have."""
    machine = machine_here()
    sizes = tuple(size for size in options.group_sizes or () if isinstance(size, int))
    counts = sizes if placement is None and sizes == options.group_sizes else None
    devices = devices_for(machine, options.gpus, counts, oversubscribe=options.oversubscribe)
    values = options.model_dump(mode="json", exclude_unset=True)
    common = {
        info.name: as_typed(values[name])
        for name, info in options.given.items()
        if info.scope == "measured" and name not in OF_EACH_NODE
    }
    common |= {name: machine.environment.versions[name] for name in ("dpbench", "torch")}
    common["devices"] = devices[0].partition(":")[0]
    return Node(
        number=placement.node if placement else 0,
        machine=machine,
        devices=devices,
        common=common,
        folder=folder,
    )


def _require_resumable(earlier: StoredSweep, spec: SweepSpec) -> None:
    """Raise UsageError if the stored sweep is not the one to be finished, and FileError if another
    command measured it."""
    if earlier.command[:1] != ("sweep",):
        raise FileError(
            f"{earlier.folder}: only dpbench sweep can be resumed, and another command made it; "
            f"choose another {option_words('name')}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=False):
        if before != now == replace(before, files_sha256=now.files_sha256):
            raise UsageError(
                f"{option_words('resume')}: {named_files(now)} has changed since {earlier.folder} "
                "was begun; its trials would be of two things; expected the files as they were, or "
                f"a new {option_words('name')}"
            )
    if spec != earlier.spec:
        lines = (line.removeprefix("axes: ") for line in differing_fields(spec, earlier.spec))
        raise UsageError(
            f"{option_words('resume')}: {earlier.folder} holds another sweep, with other "
            f"{', '.join(line.split()[0].rstrip(':') for line in lines)}; to finish it: "
            f"{finishing_command(earlier.command, earlier.spec, earlier.folder.name)}"
        )
