"""A sweep on several nodes, and the place of this process among them. Node 0 measures, records and
reports; the others run their ranks of each trial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dpbench.codec import content_hash
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.folders import LOGS_FOLDER, Sweep, load_sweep
from dpbench.launch.cluster import ClusterRunner, Node, NodeLost, open_cluster
from dpbench.launch.machine import inspect_machine
from dpbench.launch.signed_store import TOKEN_REMEDY, TOKEN_VARIABLE, given_token
from dpbench.messages import as_typed, escaped, option_words
from dpbench.options.model import options_of
from dpbench.options.sweep import SweepOptions
from dpbench.rendezvous.placement import MAX_PORT, Placement, parse_endpoint
from dpbench.run.interrupts import as_exceptions
from dpbench.run.results_folders import results_folder
from dpbench.run.sweep.measuring import SweepRun
from dpbench.run.sweep.plan import prepared_datasets, resumed, sweep_folder
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import devices_for

MAY_DIFFER = (
    *("gpus", "data_dir", "name", "results_dir", "resume", "preset", "debug"),
    *("charts", "nnodes", "node_rank", "rdzv_endpoint"),
)
"""Options whose values may differ between the nodes of a sweep, as may what each one prints."""


@contextmanager
def sweep_on_nodes(
    options: SweepOptions, placement: Placement, token: str
) -> Iterator[SweepRun | None]:
    """Join the nodes of a sweep, whose messages `token` signs. On node 0 the sweep is measured
    inside; another node has run its ranks of the trials that node 0 orders before, and has None.

    Raises what `plan_sweep` and `open_cluster` raise, and NodeLost, which says how to finish.
    """
    here = _this_node(options, placement.node)
    with as_exceptions(), open_cluster(placement, token, here) as cluster:
        folder = options.results_dir / here.folder
        results = folder.with_name(cluster.nodes[0].folder)
        stored = load_sweep(results) if options.resume and here.number == 0 else None
        spec = build_sweep_spec(options, cluster.nodes)
        command = options.command("sweep")
        if options.node_rank is not None:  # every node has its own
            command = command.again(node_rank="N")
        new = Sweep(folder=results, command=command, spec=spec)
        sweep = resumed(stored, spec) if stored else new
        try:
            with prepared_datasets(spec, options.data_dir) as prepared:
                logs = folder_inside(folder, LOGS_FOLDER)
                runner = ClusterRunner(cluster, spec.trials, logs, prepared)
                cluster.agree_on_plan(content_hash(spec.trials))
                if here.number == 0:
                    yield SweepRun(sweep, runner, resumes=options.resume)
                else:
                    runner.follow(spec.time_limit_seconds)
                    yield None
        except NodeLost as lost:
            raise NodeLost(lost.reason, f"; to finish, {sweep.to_finish}") from None
        finally:
            if here.number:
                with suppress(OSError):  # it stays if logs of failed trials are in it
                    folder.rmdir()


def _this_node(options: SweepOptions, number: int) -> Node:
    """The node of this process, with the devices that it offers and its folder, which has but logs
    of failed trials on all nodes but the first.

    Raises UsageError for devices that it does not have, FileError for a new folder that exists.
    """
    if number == 0:
        folder = sweep_folder(options)
    else:
        name = options.name or f"dpbench-node{number}"
        folder = results_folder(options.results_dir, name, otherwise="logs")
    machine = inspect_machine()
    devices = devices_for(machine, options.gpus, None, oversubscribe=options.oversubscribe)
    values = options.model_dump(mode="json", exclude_unset=True)
    common = {
        info.name: as_typed(values[name])
        for name, info in options_of(SweepOptions).items()
        if name in values and not info.printed and name not in MAY_DIFFER
    }
    common |= {name: machine.environment.versions[name] for name in ("dpbench", "torch")}
    common["devices"] = devices[0].partition(":")[0]
    return Node(number=number, machine=machine, devices=devices, common=common, folder=folder.name)


def node_placement(options: SweepOptions, placed: Placement | None) -> Placement | None:
    """This process's place among the nodes of a sweep, each of which runs one dpbench, from the
    options and, for what they leave out, from the launcher.

    None for a sweep on this node alone. Raises UsageError for what is missing, the token included.
    """
    count, rank = options.nnodes, options.node_rank
    if placed is not None:
        count = placed.node_count if count is None else count
        rank = placed.node if rank is None else rank
    if count is None:
        for name in ("node_rank", "rdzv_endpoint"):
            if getattr(options, name) is not None:
                raise UsageError(f"{option_words(name)} is for several nodes; add --nnodes")
    if count is None or (count == 1 and not rank):
        return None
    if options.script is not None:
        raise UsageError(
            f"{options.script} on {count} nodes: a training script is measured on one node; start "
            "dpbench on one alone, without --nnodes"
        )
    rank = _checked_rank(rank, count)
    address, port = _endpoint_of_node_0(options.rdzv_endpoint, placed, count)
    if given_token(os.environ) is None:
        raise UsageError(
            f"{count} nodes need a token that they share; expected the same {TOKEN_VARIABLE} in "
            f"the environment of all of them; {TOKEN_REMEDY}"
        )
    return Placement(
        rank=rank,
        world_size=count,
        node=rank,
        node_count=count,
        address=address,
        port=port,
        has_store=bool(placed and placed.has_store and options.rdzv_endpoint is None),
    )


def _checked_rank(rank: int | None, count: int) -> int:
    """The rank of this node among so many; raises UsageError if it is missing or too large."""
    if rank is None:
        raise UsageError(
            f"--nnodes {count} needs --node-rank: 0 on the node that records, another on every "
            "other node"
        )
    if rank >= count:
        raise UsageError(
            f"--node-rank {rank}: expected from 0 to {count - 1}, as --nnodes is {count}"
        )
    return rank


def _endpoint_of_node_0(typed: str | None, placed: Placement | None, count: int) -> tuple[str, int]:
    """The address and the port of node 0, as typed or from the launcher; raises UsageError if
    neither tells."""
    if typed is not None:
        endpoint = parse_endpoint(typed)
        if endpoint is None:
            raise UsageError(
                f"--rdzv-endpoint {escaped(repr(typed), 60)}: expected HOST:PORT "
                f"with a port from 1 to {MAX_PORT}, as in host0:29503 or [fe80::1]:29503"
            )
        return endpoint
    if placed is None or not placed.address:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503, or MASTER_ADDR from a launcher"
        )
    return placed.address, placed.port
