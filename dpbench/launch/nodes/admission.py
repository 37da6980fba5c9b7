"""Whether a node may take part: settings that must be equal on all nodes."""

from __future__ import annotations

from collections.abc import Mapping

from dpbench.launch.nodes.messages import PROTOCOL, Hello
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.messages import printable

EQUAL_VERSIONS = ("dpbench", "torch")
"""Packages whose versions must be equal: other versions may have another protocol, or measure
otherwise."""
DIFFERENCES_SHOWN = 8
LONGEST_SHOWN = 300
"""Most characters shown of another node's value."""


def hello(request: NodeRequest, node: Node) -> Hello:
    """This node's description of itself."""
    return Hello(protocol=PROTOCOL, job_id=request.job_id, node_count=request.node_count, node=node)


def refusal(comer: Hello, lead: Hello, taken: Mapping[int, str]) -> str | None:
    """Why node 0, which is `lead`, refuses the comer, in words that make sense on both sides; None
    if it admits it.

    `taken` has the holder of each number in use, including node 0's.
    """
    who, leader = comer.node.name, lead.node.name
    if comer.job_id != lead.job_id:
        return (
            f"{who} has --rdzv-id {_cut(comer.job_id)}, but at this endpoint {leader} leads "
            f"--rdzv-id {lead.job_id}; expected the same, or another port of --rdzv-endpoint"
        )
    if comer.node_count != lead.node_count:
        return (
            f"{who} has --nnodes {comer.node_count}, {leader} --nnodes {lead.node_count}; "
            "expected the same on all nodes"
        )
    if comer.node.number in taken:
        return f"{who} at {comer.node.address} cannot join: {taken[comer.node.number]}"
    if not 0 < comer.node.number < lead.node_count:
        return f"{who}: no such --node-rank; expected 1 to {lead.node_count - 1}"
    if differences := _differences(comer.node, lead.node):
        shown = ", ".join(differences[:DIFFERENCES_SHOWN])
        more = len(differences) - DIFFERENCES_SHOWN
        return (
            f"{who} differs from {leader}: {shown}{f' and {more} more' if more > 0 else ''}; "
            "expected the same on all nodes"
        )
    return None


def _differences(comer: Node, lead: Node) -> list[str]:
    """Differences in what must be equal, such as "torch 2.6.0 instead of 2.13.0"."""
    theirs, ours = _by_name(comer.environment.versions), _by_name(lead.environment.versions)
    pairs = [(name, theirs.get(name), ours.get(name)) for name in EQUAL_VERSIONS]
    options, own = _by_name(comer.options), _by_name(lead.options)
    pairs += [(name, options.get(name), own.get(name)) for name in {**own, **options}]
    return [
        f"{_cut(name)} {_cut(there or 'left out')} instead of {_cut(here or 'left out')}"
        for name, there, here in pairs
        if there != here
    ]


def _by_name(pairs: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """The pairs as a dict. They come from the network: a wrong number of words must not end node
    0."""
    return {pair[0]: " ".join(pair[1:]) for pair in pairs if pair}


def _cut(text: str) -> str:
    return printable(text, LONGEST_SHOWN)
