"""A node runs what its own command asked for, not any code that node 0 may name.

An architecture can be any "package.module:factory", which is imported and called: whoever speaks
as node 0 must not choose it.
"""

from __future__ import annotations

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.launch.nodes.node import Node
from dpbench.specs import WorkloadSpec


def not_asked_for(workload: WorkloadSpec, me: Node) -> str | None:
    """Why this node does not run a trial of that workload; None if its command asked for it."""
    typed = {option: value.strip() for option, value in me.options}
    asked = typed.get("--arch")
    if asked is not None and "--input-shape" in typed:
        asked = architecture.with_input_shape(asked, typed["--input-shape"])
    if workload.architecture != asked:
        return _refusal("--arch", workload.architecture, asked)
    try:
        data = typed.get("--data") or architecture.load(asked).default_dataset
    except UsageError as error:
        return str(error)
    if workload.dataset != data:
        return _refusal("--data", workload.dataset, data)
    return None


def _refusal(option: str, got: str, asked: str | None) -> str:
    return (
        f"node 0 asked for {option} {got}, the command of this node for {asked or 'none'}; "
        "expected the same command on all nodes"
    )
