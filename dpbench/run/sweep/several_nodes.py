"""This host as a node of a sweep over several: what it lends; it leads and records, or follows."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpbench import units
from dpbench.analysis.configuration import by_configuration
from dpbench.data.registry import prepare as prepare_data
from dpbench.data.user_code import files_sha256, named_files, short_hash
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.follower import follow
from dpbench.launch.nodes.handshake import OPTION, VARIABLE
from dpbench.launch.nodes.node import Node, NodeRequest, this_node
from dpbench.launch.nodes.team import Team, lead
from dpbench.messages import printable, say, warn
from dpbench.options.bridge import as_typed, option_name, options_of
from dpbench.options.sweep import SweepOptions
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.preparation import (
    PreparedSweep,
    find_place,
    how_to_finish,
    prepare,
)
from dpbench.run.sweep.spec import devices_lent
from dpbench.run.this_machine import environment_here, machine_here
from dpbench.specs import WorkloadSpec
from dpbench.store import LOGS_FOLDER, TRACES_FOLDER, StoredSweep, check_name
from dpbench.temporary import temporary_folder

LONGEST_DIFFERENCES = 1000
"""Characters that another node's environment may fill."""


def lead_sweep(options: SweepOptions, nodes: NodeRequest) -> StoredSweep:
    """Measures the sweep with all nodes."""
    place = find_place(options)
    me, listener = _this_node(options, nodes, place.machine)
    if nodes.token_is_new:
        _tell_how_to_join(["sweep", *options.words()], nodes)
    with as_exceptions(), lead(nodes, me, say=listener) as team:
        _tell_differences(team)
        stored = prepare(options, place, team=team).measure()
    _tell_left_over(options, team, stored)
    return stored


def prepare_for_nodes(options: SweepOptions, nodes: NodeRequest) -> PreparedSweep:
    """Prepares the sweep for its plan alone: no other node is waited for."""
    place = find_place(options)
    me, _ = _this_node(options, nodes, place.machine)
    team = _Alike(nodes, me)
    return prepare(options, place, team=team)


def _tell_how_to_join(command: Sequence[str], node: NodeRequest) -> None:
    """The command for the other nodes, with the token where other users of a host cannot see it."""
    where = "on node 1" if node.node_count == 2 else "on each other node, with its --node-rank"
    say(f"{where}: {VARIABLE}={node.token} {_as_node_1(command)}")
    with suppress(OSError, ValueError):  # no such stream
        found = os.fstat(sys.stderr.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o044:
            warn(
                "that line has the token of the sweep and is in a file that other users can read; "
                f"{OPTION} keeps it out of there"
            )


def _as_node_1(command: Sequence[str]) -> str:
    words: list[str] = []
    for word in command:
        if words and words[-1] == "--node-rank":
            words.append("1")
        else:
            words.append("--node-rank=1" if word.startswith("--node-rank=") else word)
    return f"dpbench {shlex.join(words)}"


class _Alike(Team):
    """A team for a plan, which waits for nobody: every node is taken to lend what this one does."""

    def __init__(self, node: NodeRequest, me: Node) -> None:
        super().__init__(node, me, say)
        self._alike = tuple(replace(me, number=number) for number in range(node.node_count))
        lent = units.counted(len(me.devices), "replica")
        say(f"the plan assumes that every node lends {lent}, as this one does")

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._alike

    def prepare(self, dataset: str) -> None:
        """Nothing will be trained."""


def _tell_differences(team: Team) -> None:
    """Print the differences that may make one node slower than another."""
    first = team.nodes[0]
    for node in team.nodes[1:]:
        differences = node.environment.differences_from(first.environment)
        if differences:
            shown = printable("; ".join(differences), LONGEST_DIFFERENCES)
            warn(f"{node.name} differs from {first.name}: {shown}")


def _tell_left_over(options: SweepOptions, team: Team, stored: StoredSweep) -> None:
    """Says how to measure what a lost node left over."""
    final = [record for group in by_configuration(stored.records).values() for record in group]
    left_over = [record for record in final if record.lost_host is not None]
    if not left_over:
        return
    reasons = dict.fromkeys(record.reason for record in left_over if record.reason)
    say(
        f"{units.counted(len(left_over), 'trial')} left over: {'; '.join(reasons)}; to finish: "
        f"{how_to_finish(options, stored.folder, team)}"
    )


def follow_sweep(options: SweepOptions, nodes: NodeRequest) -> int:
    """Takes part until node 0 has no more to run, and returns the exit status."""
    if options.dry_run:
        raise UsageError("--dry-run: the plan is made by node 0; expected --node-rank 0")
    folder = _folder(options, nodes)
    machine = machine_here()
    me, listener = _this_node(options, nodes, machine)
    with temporary_folder() as cache, as_exceptions():

        def prepare_here(dataset: str) -> Path | None:
            prepared = prepare_data(
                dataset,
                data_dir=options.data_dir,
                cache=cache,
                architecture=options.arch[0],
            )
            say(*prepared.notes)
            return prepared.folder

        try:
            farewell = follow(
                nodes,
                me,
                prepare=prepare_here,
                logs=folder_inside(folder, LOGS_FOLDER),
                traces=folder_inside(folder, TRACES_FOLDER),
                say=listener,
            )
        finally:
            with suppress(OSError):  # it stays if something was left in it
                folder.rmdir()
    listener(farewell)
    return 0


def _folder(options: SweepOptions, request: NodeRequest) -> Path:
    """The folder for the output of failed ranks and for traces; records are on node 0."""
    name = options.name or f"dpbench-node{request.node_rank}"
    check_name(name)
    return options.results_dir / name


def _this_node(
    options: SweepOptions, nodes: NodeRequest, machine: Machine
) -> tuple[Node, Callable[[str], None]]:
    """This host as a node, and who hears what happens among the nodes: nobody if it is quiet.

    Says the notes that the user must see; raises UsageError for what this host cannot lend.
    """
    notes: list[str] = []
    devices = devices_lent(options, machine, notes)
    say(*notes)
    listener: Callable[[str], None] = (lambda _: None) if options.quiet else say
    me = this_node(
        nodes,
        environment=environment_here(machine),
        machine=machine,
        devices=devices,
        options=(*_options(options), *_files(options)),
        say=listener,
    )
    return me, listener


def _files(options: SweepOptions) -> tuple[tuple[str, ...], ...]:
    """The content of the user's files, which all nodes must have alike too."""
    (architecture,) = options.arch
    dataset = options.data or ""
    workload = WorkloadSpec(architecture=architecture, dataset=dataset, step=options.step)
    found = files_sha256(workload, options.data_dir)
    return () if found is None else ((f"SHA-256 of {named_files(workload)}", short_hash(found)),)


def _options(options: SweepOptions) -> tuple[tuple[str, ...], ...]:
    """The options that all nodes must be given alike, as they would be typed."""
    alike = [
        (option_name(SweepOptions, name), as_typed(value))
        for name, value in options.dump(all_values=True).items()
        if options_of(SweepOptions)[name].scope == "work" and value not in (None, False, [])
    ]
    return tuple(alike)
