"""This host as a node of a sweep: what it lends, and what it was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from dpbench.cli import messages
from dpbench.cli.nodes import Nodes
from dpbench.cli.sweep_options import ParsedOptions
from dpbench.cli.sweep_spec import devices_lent
from dpbench.cli.this_machine import here
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.addresses import this_node
from dpbench.launch.nodes.node import Node

OF_ONE_NODE = ("gpus",)
"""Options that may differ from node to node."""


def node_here(
    parsed: ParsedOptions,
    nodes: Nodes,
    machine: Machine,
    *,
    synthetic: bool,
    say: Callable[[str], None],
) -> Node:
    """Says the notes that the user must see; raises UsageError for what this host cannot lend."""
    notes: list[str] = []
    devices = devices_lent(parsed, machine, notes)
    for note in notes:
        messages.say(note)
    return this_node(
        nodes.request,
        environment=here(machine, synthetic=synthetic),
        machine=machine,
        devices=devices,
        options=_options(parsed, nodes, synthetic=synthetic),
        say=say,
    )


def said_unless(*, quiet: bool) -> Callable[[str], None]:
    """What happens among the nodes is progress."""
    return (lambda _: None) if quiet else messages.say


def _options(
    parsed: ParsedOptions, nodes: Nodes, *, synthetic: bool
) -> tuple[tuple[str, ...], ...]:
    """Those that all nodes must be given alike, as they were typed; not those left out."""
    typed = {
        **asdict(parsed.options),
        "placement": nodes.placement,
        "synthetic_launcher": synthetic,
    }
    return tuple(
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in typed.items()
        if name not in OF_ONE_NODE and value not in (None, False)
    )
