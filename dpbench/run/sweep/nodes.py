"""Which nodes a sweep runs on: --nnodes, --node-rank, --rdzv-endpoint and what belongs to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from dpbench.errors import UsageError
from dpbench.launch.nodes.handshake import OPTION, VARIABLE, given_token, new_token
from dpbench.launch.nodes.node import (
    DEFAULT_JOB_ID,
    JOIN_TIMEOUT_SECONDS,
    LOST_SECONDS,
    NodeRequest,
)
from dpbench.run.shared_options import NodeOptions
from dpbench.specs.parts import PLACEMENTS, Placement
from dpbench.values import duration_seconds, integer, known_name, shorten

MOST_NODES = 1024
LARGEST_PORT = 65_535
LONGEST_ID = 100
LONGEST_INTERFACE = 15
"""The limit of Linux: IFNAMSIZ is 16 with the zero at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """A sweep over several nodes, this one among them."""

    request: NodeRequest
    placement: Placement


def parse_nodes(options: NodeOptions, notes: list[str]) -> Nodes | None:
    """None for a sweep on this host alone; raises UsageError for what cannot be."""
    if options.nnodes is None:
        _refuse_without_nnodes(options)
        return None
    count = _node_count(options.nnodes)
    rank = _node_rank(options.node_rank, count)
    if count == 1:
        notes.append("--nnodes 1: this node alone; nobody is waited for")
        return None
    if options.rdzv_endpoint is None:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503"
        )
    host, port = parse_endpoint("--rdzv-endpoint", options.rdzv_endpoint)
    token = given_token(options.token_file, os.environ)
    if token is None and rank > 0:
        raise UsageError(
            f"--node-rank {rank} needs the token of the sweep; expected {VARIABLE} as node 0 "
            f"prints it, or {OPTION} with the same token as there"
        )
    request = NodeRequest(
        node_count=count,
        node_rank=rank,
        host=host,
        port=port,
        token=token or new_token(),
        token_is_new=token is None,
        job_id=_job_id(options.rdzv_id),
        address=_word("--local-addr", options.local_addr, "an address of this node"),
        interface=_interface(options.interface),
        join_timeout_seconds=_seconds("--join-timeout", options.join_timeout, JOIN_TIMEOUT_SECONDS),
        lost_seconds=_seconds("--lost-after", options.lost_after, LOST_SECONDS),
    )
    spread = known_name("--placement", options.placement or "pack", PLACEMENTS) == "spread"
    placement: Placement = "spread" if spread else "pack"
    return Nodes(request=request, placement=placement)


def require_one_architecture(architectures: Sequence[str]) -> None:
    """Raises UsageError for several: other nodes prepare the data of one."""
    if len(architectures) > 1:
        raise UsageError(
            f"--nnodes with --arch {','.join(architectures)}: a sweep over several nodes is of one "
            "architecture; expected one name, or a sweep for each",
            about=("arch", "nnodes", "include"),
        )


def parse_endpoint(option: str, text: str) -> tuple[str, int]:
    """Reads "host0:29503" or "[::1]:29503"; raises UsageError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    expected = "expected HOST:PORT, as in host0:29503 or [fe80::1]:29503"
    if not colon or port.endswith("]"):
        raise UsageError(f"{option} {shorten(text)}: no port; {expected}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{option} {shorten(text)}: an IPv6 address needs brackets; {expected}")
    if not host or not host.isprintable() or {*host} & {*" []/"}:
        raise UsageError(f"{option} {shorten(text)}: {shorten(host)} is no host; {expected}")
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(LARGEST_PORT))):
        raise UsageError(f"{option} {shorten(text)}: {shorten(port)} is no port; {expected}")
    if not 1 <= int(port) <= LARGEST_PORT:
        raise UsageError(
            f"{option} {shorten(text)}: port {int(port)}; expected one from 1 to {LARGEST_PORT}"
        )
    return host, int(port)


def _node_count(text: str) -> int:
    smallest, colon, largest = text.partition(":")
    if colon and smallest.isdecimal() and largest.isdecimal():
        raise UsageError(
            f"--nnodes {shorten(text)}: a range is for jobs that may change their size; a sweep "
            f"measures given sizes: expected one number, as in --nnodes {largest}"
        )
    count = integer("--nnodes", text, least=1)
    if count > MOST_NODES:
        raise UsageError(f"--nnodes {count}: expected at most {MOST_NODES}")
    return count


def _node_rank(text: str | None, count: int) -> int:
    if text is None:
        raise UsageError(
            f"--nnodes {count} needs --node-rank: 0 on the node that records, another on every "
            "other node"
        )
    rank = integer("--node-rank", text, least=0)
    if rank >= count:
        last = f"from 0 to {count - 1}" if count > 1 else "0"
        raise UsageError(f"--node-rank {rank}: expected {last}, as --nnodes is {count}")
    return rank


def _refuse_without_nnodes(options: NodeOptions) -> None:
    for field in fields(NodeOptions):
        if getattr(options, field.name) is not None:
            option = f"--{field.name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for several nodes; add --nnodes, or leave {option} out", (field.name,)
            )


def _seconds(option: str, text: str | None, default: float) -> float:
    return default if text is None else duration_seconds(option, text)


def _job_id(text: str | None) -> str:
    found = _word("--rdzv-id", text, "a word")
    if found is not None and len(found) > LONGEST_ID:
        raise UsageError(f"--rdzv-id {shorten(found)}: expected at most {LONGEST_ID} characters")
    return DEFAULT_JOB_ID if found is None else found


def _interface(text: str | None) -> str | None:
    found = _word("--interface", text, "a network interface")
    if found is not None and (len(found) > LONGEST_INTERFACE or "/" in found):
        raise UsageError(
            f"--interface {shorten(found)}: expected the name of a network interface, as in eth0"
        )
    return found


def _word(option: str, text: str | None, expected: str) -> str | None:
    if text is not None and (not text or not text.isprintable() or " " in text):
        raise UsageError(f"{option}: expected {expected}, got {shorten(text)}")
    return text
