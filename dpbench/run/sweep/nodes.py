"""A sweep over several nodes: where this process stands among them, and what it does.

Node 0 plans, measures, records and reports; the others run their ranks of each trial.
"""

from __future__ import annotations

import os
import secrets
import shlex
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from dpbench.errors import UsageError
from dpbench.launch.exchange import TOKEN_REMEDY, VARIABLE, given_token
from dpbench.launch.nodes import Node, NodeLost, follow_orders, joined_nodes
from dpbench.launch.placement import NodeRequest, Placement
from dpbench.messages import printable
from dpbench.options.bridge import as_typed, option_name, options_of
from dpbench.options.shared import NodeOptions
from dpbench.options.sweep import SweepOptions
from dpbench.rendezvous.launch_variables import LARGEST_PORT
from dpbench.report.progress.trials import Reporter
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.grid import numbered_trial, plan_hash
from dpbench.run.sweep.job import Job, find_folder, finishing_command, prepare
from dpbench.run.sweep.measuring import launcher_for, measure
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import devices_for, environment_here, machine_here
from dpbench.store import StoredSweep

OWN_OPTIONS = ("gpus", "data_dir")
"""Options that may differ between nodes."""


def parse_nodes(options: NodeOptions, placed: Placement | None) -> NodeRequest | None:
    """This node's place from the options and, for what they leave out, from the launcher.

    None for a sweep on this host alone. Raises UsageError for what is missing.
    """
    count, rank = options.nnodes, options.node_rank
    if placed is not None:
        count = placed.nodes if count is None else count
        rank = placed.node if rank is None else rank
    if count is None:
        for name in NodeOptions.model_fields:
            if getattr(options, name) is not None:
                raise UsageError(
                    f"{option_name(NodeOptions, name)} is for several nodes; add --nnodes"
                )
        return None
    if count == 1 and not rank:
        return None
    if rank is None:
        raise UsageError(
            f"--nnodes {count} needs --node-rank: 0 on the node that records, another on every "
            "other node"
        )
    if rank >= count:
        raise UsageError(
            f"--node-rank {rank}: expected from 0 to {count - 1}, as --nnodes is {count}"
        )
    if options.rdzv_endpoint is not None:
        host, port = parse_endpoint(options.rdzv_endpoint)
    elif placed and placed.address:
        host, port = placed.address, placed.port
    else:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503, or MASTER_ADDR from a launcher"
        )
    token = given_token(os.environ)
    if token is None and (rank > 0 or placed):
        raise UsageError(
            f"{count} nodes need a token that they share; expected the same {VARIABLE} in the "
            f"environment of all of them; {TOKEN_REMEDY}"
        )
    return NodeRequest(
        node_count=count,
        node_rank=rank,
        host=host,
        port=port,
        token=token or secrets.token_hex(16),
        token_is_new=token is None,
        has_store=bool(placed and placed.has_store and options.rdzv_endpoint is None),
    )


def parse_endpoint(text: str) -> tuple[str, int]:
    """Read "host0:29503" or "[::1]:29503"; raises UsageError for anything else."""
    try:
        url = urlsplit(f"//{text.strip()}")
        if url.hostname and url.port:
            return url.hostname, url.port
    except ValueError:
        pass  # of the port
    raise UsageError(
        f"--rdzv-endpoint {printable(repr(text), 60)}: expected HOST:PORT with a port from 1 to "
        f"{LARGEST_PORT}, as in host0:29503 or [fe80::1]:29503"
    )


def measure_over_nodes(
    options: SweepOptions, nodes: NodeRequest, progress: Reporter
) -> StoredSweep:
    """Measure the sweep as node 0; raises what `joined_nodes` and `measure` do."""
    folder, earlier = find_folder(options)
    me = _describe(options, nodes, progress, folder=folder.name)
    if nodes.token_is_new:
        words = options.words()
        words[words.index("--node-rank") + 1] = "1"
        others = "on node 1" if nodes.node_count == 2 else "on each other node with its --node-rank"
        progress.note(f"{others}: {VARIABLE}={nodes.token} dpbench sweep {shlex.join(words)}")
    with as_exceptions(), joined_nodes(nodes, me) as team:
        job = prepare(options, folder, earlier, progress.note, team)
        stored = measure(job, progress)
        lost = [reason for node in team.nodes if (reason := team.lost_reason(node.number))]
        if lost:
            progress.note(f"{'; '.join(lost)}; to finish, {job.to_finish}")
    return stored


def follow_sweep(options: SweepOptions, nodes: NodeRequest, progress: Reporter) -> int:
    """Take part until node 0 has no more to run, and return the exit status."""
    folder = options.results_dir / (options.name or f"dpbench-node{nodes.node_rank}")
    me = _describe(options, nodes, progress)
    with as_exceptions(), joined_nodes(nodes, me) as team:
        spec, _ = build_sweep_spec(options, me.machine, team.nodes)
        job = Job(
            spec=spec, machine=me.machine, folder=folder, command=(), data_dir=options.data_dir
        )
        try:
            with launcher_for(job) as here:
                team.agree(plan_hash(spec))
                follow_orders(team, here, partial(numbered_trial, spec), spec.time_limit_seconds)
        except NodeLost as lost:
            reason = str(lost).partition("; to finish")[0]  # node 0 would name its own --node-rank
            again = finishing_command(["sweep", *options.words()], spec, team.nodes[0].folder)
            finish = f"on every node, as before: {again}"
            raise NodeLost(f"{reason}; to finish, {finish}") from None
        finally:
            with suppress(OSError):  # it stays if something was left in it
                folder.rmdir()
    return 0


def _describe(
    options: SweepOptions, nodes: NodeRequest, progress: Reporter, folder: str = ""
) -> Node:
    """This host as a node. Raises UsageError for devices that this host does not have."""
    notes: list[str] = []
    machine = machine_here()
    devices = devices_for(machine, options.gpus, None, notes, oversubscribe=options.oversubscribe)
    for note in notes:
        progress.note(note)
    environment = environment_here(machine)
    versions = {name: version for name, version, *_ in environment.versions}
    return Node(
        number=nodes.node_rank,
        environment=environment,
        machine=machine,
        devices=devices,
        common={
            option_name(SweepOptions, name): as_typed(value)
            for name, value in options.model_dump(mode="json", exclude_unset=True).items()
            if options_of(SweepOptions)[name].scope == "work" and name not in OWN_OPTIONS
        }
        | {name: versions[name] for name in ("dpbench", "torch")},
        folder=folder,
    )
