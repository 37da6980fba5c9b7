"""A sweep over several nodes: what this node tells the others, and what it does.

Node 0 plans, measures, records and reports; the others run their ranks of each trial.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path

from dpbench.launch.exchange import VARIABLE
from dpbench.launch.nodes import Node, NodeLost, follow_orders, joined_nodes
from dpbench.launch.placement import NodeRequest
from dpbench.messages import say
from dpbench.options.bridge import as_typed, option_name
from dpbench.options.sweep import SweepOptions
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.grid import numbered_trial, plan_hash
from dpbench.run.sweep.measuring import Measurement, launcher_for
from dpbench.run.sweep.preparation import find_folder, how_to_finish, prepare
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import devices_for, environment_here, machine_here
from dpbench.store import StoredSweep

OWN_OPTIONS = ("gpus", "data_dir")
"""Options that may differ between nodes."""


def measure_over_nodes(options: SweepOptions, nodes: NodeRequest) -> StoredSweep:
    """Measure the sweep as node 0; raises what `joined_nodes` raises."""
    folder, earlier = find_folder(options)
    me = _describe(options, nodes, folder=folder.name)
    if nodes.token_is_new:
        words = options.words()
        words[words.index("--node-rank") + 1] = "1"
        others = "on node 1" if nodes.node_count == 2 else "on each other node with its --node-rank"
        say(f"{others}: {VARIABLE}={nodes.token} dpbench sweep {shlex.join(words)}")
    with as_exceptions(), joined_nodes(nodes, me) as team:
        stored = prepare(options, folder, earlier, team=team).measure()
        lost = [reason for node in team.nodes if (reason := team.lost_reason(node.number))]
        if lost:
            say(f"{'; '.join(lost)}; to finish, {how_to_finish(options, stored.folder, team)}")
    return stored


def follow_sweep(options: SweepOptions, nodes: NodeRequest) -> int:
    """Take part until node 0 has no more to run, and return the exit status."""
    folder = options.results_dir / (options.name or f"dpbench-node{nodes.node_rank}")
    me = _describe(options, nodes)
    with as_exceptions(), joined_nodes(nodes, me) as team:
        spec, _ = build_sweep_spec(options, me.machine, team.nodes)
        measurement = Measurement(
            spec=spec, folder=folder, command=(), data_dir=options.data_dir, embedded=True
        )
        try:
            with launcher_for(measurement, me.machine) as here:
                team.agree(plan_hash(spec))
                follow_orders(team, here, partial(numbered_trial, spec), spec.time_limit_seconds)
        except NodeLost as lost:
            reason = str(lost).partition("; to finish")[0]  # node 0 would name its own --node-rank
            finish = how_to_finish(options, Path(team.nodes[0].folder), team)
            raise NodeLost(f"{reason}; to finish, {finish}") from None
        finally:
            with suppress(OSError):  # it stays if something was left in it
                folder.rmdir()
    return 0


def _describe(options: SweepOptions, nodes: NodeRequest, folder: str = "") -> Node:
    """This host as a node; prints the notes that the user must see.

    Raises UsageError for devices that this host does not have.
    """
    notes: list[str] = []
    machine = machine_here()
    devices = devices_for(machine, options.gpus, None, notes, oversubscribe=options.oversubscribe)
    say(*notes)
    environment = environment_here(machine)
    versions = {name: version for name, version, *_ in environment.versions}
    return Node(
        number=nodes.node_rank,
        environment=environment,
        machine=machine,
        devices=devices,
        common={
            option_name(SweepOptions, name): as_typed(value)
            for name, value in options.dump().items()
            if value is not None and name not in OWN_OPTIONS
        }
        | {name: versions[name] for name in ("dpbench", "torch")},
        folder=folder,
    )
