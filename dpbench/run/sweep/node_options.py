"""The place of this process among the nodes of a sweep: what is typed, and what a launcher says."""

from __future__ import annotations

import os
import secrets
from urllib.parse import urlsplit

from dpbench.errors import UsageError
from dpbench.launch.exchange import TOKEN_REMEDY, VARIABLE, given_token
from dpbench.launch.placement import NodeRequest, Placement
from dpbench.messages import printable
from dpbench.options.bridge import option_name
from dpbench.options.shared import NodeOptions
from dpbench.rendezvous.launch_variables import LARGEST_PORT


def parse_nodes(options: NodeOptions, placed: Placement | None) -> NodeRequest | None:
    """This node's place from the options and, for what they leave out, from the launcher.

    None for a sweep on this host alone. Raises UsageError for what is missing.
    """
    count, rank = options.nnodes, options.node_rank
    if placed is not None:
        count = placed.nodes if count is None else count
        rank = placed.node if rank is None else rank
    if count is None:
        for name, value in options:
            if name in NodeOptions.model_fields and value is not None:
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
