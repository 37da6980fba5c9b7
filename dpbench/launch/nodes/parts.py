"""One node's part of a trial that spans several."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dpbench.architecture import with_input_shape
from dpbench.data.trusted_code import NamedCode
from dpbench.errors import DpbenchError, LaunchError
from dpbench.launch.agent import PartFailed, run_part, scratch_folder
from dpbench.launch.machine import in_child
from dpbench.launch.nodes.addresses import interface_variables
from dpbench.launch.nodes.messages import Prepared, Result, Run
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.launch.part import Meeting, Part
from dpbench.measure.trial import measure
from dpbench.rendezvous.store import STORE_PREFIX

PrepareData = Callable[[str], Path | None]
"""Prepares the dataset of that name on this host and returns its folder, None if it is synthetic.
If it raises a DpbenchError, node 0 gets the message."""


def part_of(order: Run, node: Node, request: NodeRequest) -> Part:
    """The ranks of the trial that are on this node."""
    nodes = order.trial.nodes
    return Part(
        first=sum(nodes[: node.number]),
        count=nodes[node.number],
        meeting=Meeting(
            address=order.address,
            port=order.port,
            size=order.trial.process_count,
            host=node.number,
            hosts=len(nodes),
            variables=((STORE_PREFIX, order.store_prefix), *interface_variables(request, node)),
        ),
    )


def _named_code(node: Node) -> NamedCode:
    """The node's NamedCode, as its command has it."""
    typed = {option: value.strip() for option, value in node.options}
    arch = typed.get("--arch")
    if arch is not None and "--input-shape" in typed:
        arch = with_input_shape(arch, typed["--input-shape"])
    return NamedCode(architecture=arch, dataset=typed.get("--data"), step=typed.get("--step"))


class Parts:
    """Carries out node 0's orders on this node."""

    def __init__(
        self, request: NodeRequest, me: Node, prepare: PrepareData, logs: Path, traces: Path
    ) -> None:
        self._request = request
        self._me = me
        self._named = _named_code(me)
        self._prepare = prepare
        self.logs = logs
        self._traces = traces
        self._folders: dict[str, Path | None] = {}
        """Folders of the prepared datasets."""

    def prepare(self, number: int, dataset: str) -> Prepared:
        """Prepare the dataset, and start the server that ranks are forked from, so that the first
        trial does not pay for its start."""
        if refused := self._named.refusal(dataset=dataset):
            return Prepared(number=number, error=refused)
        try:
            in_child(os.getpid)
            self._folders[dataset] = self._prepare(dataset)
        except DpbenchError as error:
            return Prepared(number=number, error=str(error))
        return Prepared(number=number)

    def run(self, order: Run, stop: threading.Event) -> Result:
        """Run this node's ranks until they have ended, or `stop` is set."""
        if stop.is_set():
            return Result(number=order.number)
        trial, workload = order.trial, order.trial.workload
        dataset = workload.dataset
        if refused := self._named.refusal(
            architecture=workload.architecture, dataset=dataset, step=workload.step
        ):
            return Result(number=order.number, error=refused)
        if dataset not in self._folders and (error := self.prepare(order.number, dataset).error):
            return Result(number=order.number, error=error)
        part = part_of(order, self._me, self._request)
        work = partial(measure, trial, self._folders[dataset], traces=self._traces)
        try:
            with scratch_folder(self.logs, trial.trial_id) as scratch:
                reports = run_part(
                    work,
                    part,
                    scratch,
                    order.limit_seconds,
                    stop=stop,
                    keep_memory=order.trial.keeps_memory,
                )
        except PartFailed as failed:
            return Result(number=order.number, traces=failed.traces, error=failed.outside)
        except (LaunchError, OSError) as error:
            return Result(number=order.number, error=str(error))
        return Result(number=order.number, reports=tuple(reports))
