"""The place of this process among the nodes of a sweep: what is typed, and what a launcher says."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dpbench.errors import UsageError
from dpbench.launch.signed_store import OPTION, VARIABLE, given_token, new_token
from dpbench.launch.where import NodeRequest, Where
from dpbench.messages import printable
from dpbench.options.bridge import option_name, read_value
from dpbench.options.shared import NodeOptions
from dpbench.options.types import Count, Number
from dpbench.rendezvous.launch_variables import LARGEST_PORT

MOST_NODES = 1024


def parse_nodes(options: NodeOptions, placed: Where | None, notes: list[str]) -> NodeRequest | None:
    """This node's place from the options and, for what they leave out, from the launcher.

    None for a sweep on this host alone. Raises UsageError for what is missing or contradictory.
    """
    count = None if options.nnodes is None else _node_count(options.nnodes)
    rank = None
    if options.node_rank is not None:
        rank = read_value("--node-rank", Number, options.node_rank)
    for option, typed, found in (
        ("--nnodes", count, placed and placed.nodes),
        ("--node-rank", rank, placed and placed.node),
    ):
        if placed and typed is not None and found is not None and typed != found:
            raise UsageError(f"{option} {typed}: {placed.launcher} says {found}; leave it out")
    if count is None and placed:
        count = placed.nodes
    if count is None:
        for name in NodeOptions.model_fields:
            if getattr(options, name) is not None:
                option = option_name(NodeOptions, name)
                raise UsageError(
                    f"{option} is for several nodes; add --nnodes, or leave {option} out",
                    about=(name,),
                )
        return None
    rank = placed.node if rank is None and placed else rank
    if count == 1 and not rank:
        if options.nnodes is not None:
            notes.append("--nnodes 1: this node alone; nobody is waited for")
        return None
    if rank is None:
        raise UsageError(
            f"--nnodes {count} needs --node-rank: 0 on the node that records, another on every "
            "other node"
        )
    if rank >= count:
        raise UsageError(
            f"--node-rank {rank}: expected {f'from 0 to {count - 1}' if count > 1 else 0}, as "
            f"--nnodes is {count}"
        )
    if options.rdzv_endpoint is not None:
        host, port = parse_endpoint("--rdzv-endpoint", options.rdzv_endpoint)
    elif placed and placed.address:
        host, port = placed.address, placed.port
    else:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503" + (f"; {placed.launcher} passes MASTER_ADDR on instead" if placed else "")
        )
    token = given_token(options.token_file, os.environ)
    if token is None and (rank > 0 or placed):
        raise UsageError(
            f"{count} nodes need a token that they share; expected {VARIABLE} in the environment "
            f"of all of them, or the same {OPTION}"
            + (
                f"; {placed.launcher} passes a variable on: export {VARIABLE}=$(openssl rand -hex "
                "16)"
                if placed
                else ", as node 0 prints it"
            )
        )
    return NodeRequest(
        node_count=count,
        node_rank=rank,
        host=host,
        port=port,
        token=token or new_token(),
        token_is_new=token is None,
        launcher=placed.launcher if placed else None,
        has_store=bool(placed and placed.has_store and options.rdzv_endpoint is None),
    )


def require_one_architecture(architectures: Sequence[str]) -> None:
    """Raise UsageError for several: other nodes prepare the data of one."""
    if len(architectures) > 1:
        raise UsageError(
            f"--nnodes with --arch {','.join(architectures)}: a sweep over several nodes measures "
            "one architecture; expected one name, or a sweep for each",
            about=("arch", "nnodes"),
        )


def _quoted(text: str) -> str:
    return printable(repr(text), 60)


def parse_endpoint(option: str, text: str) -> tuple[str, int]:
    """Read "host0:29503" or "[::1]:29503"; raises UsageError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    expected = "expected HOST:PORT, as in host0:29503 or [fe80::1]:29503"
    if not colon or port.endswith("]"):
        raise UsageError(f"{option} {_quoted(text)}: no port; {expected}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{option} {_quoted(text)}: an IPv6 address needs brackets; {expected}")
    if not host or not host.isprintable() or {*host} & {*" []/"}:
        raise UsageError(f"{option} {_quoted(text)}: {_quoted(host)} is not a host; {expected}")
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(LARGEST_PORT))):
        raise UsageError(f"{option} {_quoted(text)}: {_quoted(port)} is not a port; {expected}")
    if not 1 <= int(port) <= LARGEST_PORT:
        raise UsageError(
            f"{option} {_quoted(text)}: port {int(port)}; expected one from 1 to {LARGEST_PORT}"
        )
    return host, int(port)


def _node_count(text: str) -> int:
    smallest, colon, largest = text.partition(":")
    if colon and smallest.isdecimal() and largest.isdecimal():
        raise UsageError(
            f"--nnodes {_quoted(text)}: a range is for jobs that may change their size; a sweep "
            f"measures given sizes: expected one number, as in --nnodes {largest}"
        )
    count: int = read_value("--nnodes", Count, text)
    if count > MOST_NODES:
        raise UsageError(f"--nnodes {count}: expected at most {MOST_NODES}")
    return count
