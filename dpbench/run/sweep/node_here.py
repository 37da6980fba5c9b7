"""This host as a node of a sweep: what it lends, and what it was told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpbench import messages
from dpbench.data.identity import files_sha256, named_files, shown
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.addresses import this_node
from dpbench.launch.nodes.node import Node
from dpbench.run.shared_options import NODES, OUTPUT
from dpbench.run.sweep.checks import ParsedOptions
from dpbench.run.sweep.nodes import Nodes
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.sweep.spec import devices_lent
from dpbench.run.this_machine import here
from dpbench.settings import AUTO, as_typed, settings_of
from dpbench.specs import WorkloadSpec

OF_ONE_NODE = ("gpus", "config", "preset", "data_dir", "stop_after_failure", "synthetic")
PANELS_OF_ONE_NODE = (NODES, OUTPUT)
"""Options that may differ from node to node, or that node 0 alone follows."""


def node_here(
    parsed: ParsedOptions,
    nodes: Nodes,
    machine: Machine,
    *,
    data_dir: Path | None,
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
        options=(*_options(parsed, nodes, synthetic=synthetic), *_files(parsed, data_dir)),
        say=say,
    )


def said_unless(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints messages about the nodes as progress, unless quiet."""
    return (lambda _: None) if quiet else messages.say


def _files(parsed: ParsedOptions, data_dir: Path | None) -> tuple[tuple[str, ...], ...]:
    """The content of the user's files, which all nodes must have alike too."""
    options = parsed.options
    dataset = "" if options.data is AUTO else options.data
    workload = WorkloadSpec(architecture=options.arch, dataset=dataset, step=options.step)
    found = files_sha256(workload, data_dir)
    return () if found is None else ((f"SHA-256 of {named_files(workload)}", shown(found)),)


def _options(
    parsed: ParsedOptions, nodes: Nodes, *, synthetic: bool
) -> tuple[tuple[str, ...], ...]:
    """Those that all nodes must be given alike, as they would be typed; not those left out."""
    options = parsed.options
    alike = [
        (setting.option, as_typed(value))
        for name, setting in settings_of(SweepOptions).items()
        if (value := getattr(options, name)) not in (None, AUTO, False)
        and setting.panel not in PANELS_OF_ONE_NODE
        and name not in OF_ONE_NODE
    ]
    alike.append(("--placement", nodes.placement))
    return (*alike, *([("--synthetic-launcher", "yes")] if synthetic else []))
