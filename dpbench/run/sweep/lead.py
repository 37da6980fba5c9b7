"""Node 0 of a sweep over several: it leads and records."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from dpbench import units
from dpbench.analysis.outcome import by_configuration
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.launch.nodes.team import Team, lead
from dpbench.launch.nodes.token import OPTION, VARIABLE
from dpbench.messages import printable, say, warn
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.node_here import node_here, said_unless
from dpbench.run.sweep.nodes import Nodes
from dpbench.run.sweep.preparation import (
    PreparedSweep,
    SweepPlace,
    SweepRequest,
    find_place,
    how_to_finish,
    prepare,
)
from dpbench.store import StoredSweep

LONGEST_DIFFERENCES = 1000
"""Characters that another node's environment may fill."""


def lead_sweep(request: SweepRequest, nodes: Nodes) -> StoredSweep:
    """Measures the sweep with all nodes."""
    place = find_place(request)
    me, listener = _this_node(request, nodes, place)
    if nodes.request.token_is_new:
        _tell_how_to_join(request.command, nodes.request)
    with as_exceptions(), lead(nodes.request, me, say=listener) as team:
        _tell_differences(team)
        stored = prepare(request, place, team=team, placement=nodes.placement).measure()
    _tell_left_over(request, team, stored)
    return stored


def prepare_for_nodes(request: SweepRequest, nodes: Nodes) -> PreparedSweep:
    """Prepares the sweep for its plan alone: no other node is waited for."""
    place = find_place(request, may_exist=True)
    me, _ = _this_node(request, nodes, place)
    team = _Alike(nodes.request, me)
    return prepare(request, place, team=team, placement=nodes.placement)


def _this_node(
    request: SweepRequest, nodes: Nodes, place: SweepPlace
) -> tuple[Node, Callable[[str], None]]:
    """This host as node 0, and who hears what happens among the nodes."""
    listener = said_unless(quiet=request.options.quiet)
    me = node_here(
        request.parsed,
        nodes,
        place.machine,
        data_dir=request.options.data_dir,
        synthetic=request.options.synthetic,
        say=listener,
    )
    return me, listener


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
    """For a plan, which waits for nobody: every node is taken to lend what this one does."""

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


def _tell_left_over(request: SweepRequest, team: Team, stored: StoredSweep) -> None:
    """How to measure what a lost node left over."""
    final = [record for group in by_configuration(stored.records).values() for record in group]
    left_over = [record for record in final if record.lost_host is not None]
    if not left_over:
        return
    reasons = dict.fromkeys(record.reason for record in left_over if record.reason)
    say(
        f"{units.counted(len(left_over), 'trial')} left over: {'; '.join(reasons)}; to finish: "
        f"{how_to_finish(request, stored.folder, team)}"
    )
