"""A sweep over several nodes: node 0 leads, records and reports; the others follow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from dpbench import units
from dpbench.analysis.repetitions import by_configuration
from dpbench.cli.interrupts import as_exceptions
from dpbench.cli.measuring import LOGS_FOLDER, TRACES_FOLDER, here, machine_for
from dpbench.cli.messages import say, warn
from dpbench.cli.nodes import Nodes
from dpbench.cli.sweep_preparation import find_place, how_to_finish, prepare
from dpbench.cli.sweep_run import Job, report, show_planned
from dpbench.cli.sweep_spec import devices_lent
from dpbench.data.registry import prepare as prepare_data
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.addresses import this_node
from dpbench.launch.nodes.follower import follow
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.launch.nodes.team import Team, lead
from dpbench.store import StoredSweep

OF_ONE_NODE = ("gpus",)
"""Options that may differ from node to node."""


def lead_or_follow(job: Job, nodes: Nodes) -> int:
    """Leads or follows, and returns the exit status."""
    if nodes.request.node_rank:
        return _follow(job, nodes)
    place = find_place(job, may_exist=job.dry_run)
    me = _this_node(job, nodes, place.machine)
    if job.dry_run:
        assumed = _Alike(nodes.request, me)
        return show_planned(job, prepare(job, place, team=assumed, placement=nodes.placement))
    with as_exceptions(), lead(nodes.request, me, say=_say(job)) as team:
        _tell_differences(team)
        stored = prepare(job, place, team=team, placement=nodes.placement).measure()
    _tell_left_over(job, team, stored)
    return report(job, stored)


def _follow(job: Job, nodes: Nodes) -> int:
    if job.dry_run:
        raise UsageError("--dry-run: the plan is made by node 0; expected --node-rank 0")
    machine = machine_for(synthetic=job.synthetic)
    me = _this_node(job, nodes, machine)
    folder = job.results_dir / (job.name or f"{nodes.request.job_id}-node{me.number}")
    with tempfile.TemporaryDirectory(prefix="dpbench-") as cache, as_exceptions():

        def prepare_here(dataset: str) -> Path | None:
            prepared = prepare_data(dataset, data_dir=job.data_dir, cache=Path(cache))
            for note in prepared.notes:
                say(note)
            return prepared.folder

        farewell = follow(
            nodes.request,
            me,
            prepare=prepare_here,
            logs=folder / LOGS_FOLDER,
            traces=folder / TRACES_FOLDER,
            say=_say(job),
        )
    say(farewell)
    return 0


def _this_node(job: Job, nodes: Nodes, machine: Machine) -> Node:
    notes: list[str] = []
    devices = devices_lent(job.options, machine, notes)
    for note in notes:
        say(note)
    return this_node(
        nodes.request,
        environment=here(machine, synthetic=job.synthetic),
        machine=machine,
        devices=devices,
        options=_options(job, nodes),
        say=_say(job),
    )


def _options(job: Job, nodes: Nodes) -> tuple[tuple[str, ...], ...]:
    """Those that all nodes must be given alike, as they were typed; not those left out."""
    typed = {
        **asdict(job.options.options),
        "placement": nodes.placement,
        "synthetic_launcher": job.synthetic,
    }
    return tuple(
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in typed.items()
        if name not in OF_ONE_NODE and value not in (None, False)
    )


class _Alike(Team):
    """For a plan, which waits for nobody: every node is taken to lend what this one does."""

    def __init__(self, request: NodeRequest, me: Node) -> None:
        super().__init__(request, me, say)
        self._alike = tuple(replace(me, number=number) for number in range(request.node_count))
        lent = units.counted(len(me.devices), "replica")
        say(f"the plan assumes that every node lends {lent}, as this one does")

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._alike

    def prepare(self, dataset: str) -> None:
        """Nothing will be trained."""


def _tell_differences(team: Team) -> None:
    """What may make one node slower than another."""
    first = team.nodes[0]
    for node in team.nodes[1:]:
        differences = node.environment.differences_from(first.environment)
        if differences:
            warn(f"{node.name} differs from {first.name}: {'; '.join(differences)}")


def _tell_left_over(job: Job, team: Team, stored: StoredSweep) -> None:
    """How to measure what a lost node left over."""
    final = [record for group in by_configuration(stored.records).values() for record in group]
    left_over = [record for record in final if record.lost_host is not None]
    if not left_over:
        return
    reasons = dict.fromkeys(record.reason for record in left_over if record.reason)
    say(
        f"{units.counted(len(left_over), 'trial')} left over: {'; '.join(reasons)}; to finish: "
        f"{how_to_finish(job, stored.folder, team)}"
    )


def _say(job: Job) -> Callable[[str], None]:
    """What happens among the nodes is progress."""
    return (lambda _: None) if job.quiet else say
