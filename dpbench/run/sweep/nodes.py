"""The nodes of a sweep, and where this process stands among them. Node 0 plans, measures, records
and reports; the others run their ranks of each trial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dpbench.errors import UsageError
from dpbench.launch.cluster import Cluster, follow_orders, open_cluster
from dpbench.launch.signed_store import TOKEN_REMEDY, TOKEN_VARIABLE, given_token
from dpbench.messages import escaped, option_words, say
from dpbench.options.sweep import SweepOptions
from dpbench.rendezvous.placement import MAX_PORT, Placement, parse_endpoint
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.plan import SweepPlan, this_node
from dpbench.specs.sweep import plan_trials


@contextmanager
def joined_nodes(
    options: SweepOptions, placement: Placement | None, token: str
) -> Iterator[Cluster | None]:
    """The nodes of a sweep, which have joined each other while the context lasts; None without a
    placement, for this node alone. `token` signs what they say.

    Raises UsageError for a plan without a run, and what `this_node` and `open_cluster` raise.
    """
    if placement is None:
        yield None
        return
    if options.dry_run:
        raise UsageError("--dry-run plans for one node; leave --nnodes out, or the launcher")
    node = this_node(options, placement)
    with as_exceptions(), open_cluster(placement, token, node) as cluster:
        yield cluster


def follow(plan: SweepPlan, cluster: Cluster) -> None:
    """Run this node's ranks of the trials that node 0 orders, until it has no more. Raises
    NodeLost."""
    say(*plan.notes)
    spec = plan.sweep.spec
    try:
        follow_orders(cluster, plan.runner, plan_trials(spec), spec.time_limit_seconds)
    finally:
        with suppress(OSError):  # it stays if something was left in it
            plan.sweep.folder.rmdir()


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
    if options.script_and_arguments:
        raise UsageError(
            f"{options.script} on {count} nodes: a training script is measured on one node; start "
            "dpbench on one alone, without --nnodes"
        )
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
        if (parsed := parse_endpoint(options.rdzv_endpoint)) is None:
            raise UsageError(
                f"--rdzv-endpoint {escaped(repr(options.rdzv_endpoint), 60)}: expected HOST:PORT "
                f"with a port from 1 to {MAX_PORT}, as in host0:29503 or [fe80::1]:29503"
            )
        address, port = parsed
    elif placed and placed.address:
        address, port = placed.address, placed.port
    else:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503, or MASTER_ADDR from a launcher"
        )
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
