"""A node runs what its own command asked for, not any code that node 0 may name.

An architecture, a dataset or a step can be any "package.module:function", which is imported and
called: whoever speaks as node 0 must not choose it.
"""

from __future__ import annotations

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.launch.nodes.node import Node
from dpbench.specs import WorkloadSpec


def not_asked_for(workload: WorkloadSpec, me: Node) -> str | None:
    """Why this node does not run a trial of that workload; None if its command asked for it."""
    typed, asked = _typed(me), _architecture(me)
    if workload.architecture != asked:
        return _refusal("--arch", workload.architecture, asked)
    if refused := dataset_not_asked_for(workload.dataset, me):
        return refused
    if workload.step != (step := typed.get("--step")):
        return _refusal("--step", str(workload.step), step)
    return None


def dataset_not_asked_for(dataset: str, me: Node) -> str | None:
    """Why this node does not load that dataset, which may be code of somebody's."""
    data, asked = _typed(me).get("--data"), _architecture(me)
    try:
        if data is None and asked is not None:
            data = architecture.load(asked).default_dataset
    except UsageError as error:
        return str(error)
    return None if dataset == data else _refusal("--data", dataset, data)


def _typed(me: Node) -> dict[str, str]:
    return {option: value.strip() for option, value in me.options}


def _architecture(me: Node) -> str | None:
    typed = _typed(me)
    asked = typed.get("--arch")
    if asked is not None and "--input-shape" in typed:
        return architecture.with_input_shape(asked, typed["--input-shape"])
    return asked


def _refusal(option: str, got: str, asked: str | None) -> str:
    return (
        f"node 0 asked for {option} {got}, the command of this node for {asked or 'none'}; "
        "expected the same command on all nodes"
    )
