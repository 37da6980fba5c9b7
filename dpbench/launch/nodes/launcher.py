"""Trials on one host or several: a launcher.Launcher over the team of node 0."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from dpbench import units
from dpbench.launch.agent import (
    KILL_GRACE_SECONDS,
    ElasticLauncher,
    PartFailed,
    RanksFailed,
    run_part,
    scratch_folder,
)
from dpbench.launch.causes import explain
from dpbench.launch.launcher import TrialOutcome, judge_trial
from dpbench.launch.nodes.messages import Result, Run
from dpbench.launch.nodes.node import Node, NodeRequest, interface_variables
from dpbench.launch.nodes.team import Attempt, Failed, Lost, Team
from dpbench.launch.rank import Part, SeveralHosts
from dpbench.launch.unusable import sparse_reason
from dpbench.measure.trial import RankReport
from dpbench.messages import printable
from dpbench.rendezvous.store import STORE_PREFIX, serve_store
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS


def part_of(order: Run, node: Node, request: NodeRequest) -> Part:
    """The ranks of the trial that are on this node."""
    nodes = order.trial.nodes
    return Part(
        first=sum(nodes[: node.number]),
        count=nodes[node.number],
        meeting=SeveralHosts(
            address=order.address,
            port=order.port,
            size=order.trial.process_count,
            host=node.number,
            hosts=len(nodes),
            variables=((STORE_PREFIX, order.store_prefix), *interface_variables(request, node)),
        ),
    )


def run_order(
    order: Run,
    node: Node,
    request: NodeRequest,
    work: Callable[[int], RankReport],
    scratch: Path,
    stop: threading.Event,
) -> list[RankReport]:
    """Run the ranks of the trial that are on this node; raises PartFailed."""
    return run_part(
        work,
        part_of(order, node, request),
        scratch,
        order.limit_seconds,
        stop=stop,
        keep_memory=order.trial.keeps_memory,
    )


STOP_SECONDS = 30.0
"""Seconds that the other hosts may take to end their ranks and report it."""
LONGEST_REASON = 300
"""Most characters of another node's reason why it cannot run a trial."""


class NodesLauncher:
    """Runs trials of one host on node 0, as `here` does, and others on the first nodes.

    `trial.nodes` is the number of replicas on each node, starting with node 0.
    """

    def __init__(self, team: Team, here: ElasticLauncher) -> None:
        self._team = team
        self._here = here

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        if len(trial.nodes) < 2:
            return self._here.unusable_reason(trial)
        hosts = f"{len(trial.nodes)} hosts"
        if len(trial.nodes) > len(self._team.nodes):
            return f"needs {hosts}; this sweep has {len(self._team.nodes)}: --nnodes"
        if IMPLEMENTATIONS[trial.implementation].one_process:
            return f"{trial.implementation} drives its replicas from one process, not on {hosts}"
        if trial.backend == "shm":
            return (
                f"shm goes through the memory of one host, and these replicas are on {hosts}; "
                "--comm-hook hierarchical uses it inside each host"
            )
        reasons = (self._cannot(node, trial) for node in self._nodes(trial))
        return sparse_reason(trial) or next(filter(None, reasons), None)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
        if len(trial.nodes) < 2:
            return self._here.run(trial, time_limit_seconds)
        me = self._team.nodes[0]
        store = serve_store(me.address)
        try:
            with (
                scratch_folder(self._here.logs, trial.trial_id) as scratch,
                self._team.attempt(trial, time_limit_seconds, me.address, store.port) as attempt,
            ):
                return judge_trial(trial, self._reports(attempt, scratch))
        except RanksFailed as failed:
            return failed.outcome

    def _reports(self, attempt: Attempt, scratch: Path) -> list[RankReport]:
        """All reports, by rank; raises RanksFailed once every part has ended."""
        stop = threading.Event()
        for answer in attempt.answers.values():
            answer.add_done_callback(partial(_stop_if_failed, stop))
        started = monotonic()
        own = self._run_here(attempt.order, scratch, stop)
        if not own.failed:
            limit = attempt.order.limit_seconds + KILL_GRACE_SECONDS + STOP_SECONDS
            wait(attempt.answers.values(), started + limit - monotonic(), FIRST_EXCEPTION)
        self._stop_the_rest(attempt)
        others = {number: answer.exception() for number, answer in attempt.answers.items()}
        if own.failed or any(others.values()):
            raise RanksFailed(self._explain(attempt.order, own, others))
        results = [own, *(answer.result() for answer in attempt.answers.values())]
        return [report for result in results for report in result.reports]

    def _cannot(self, node: Node, trial: TrialSpec) -> str | None:
        if lost := self._team.lost_reason(node.number):
            return lost
        first, count = sum(trial.nodes[: node.number]), trial.nodes[node.number]
        devices = trial.devices[first : first + count]
        reason = node.machine.unusable_backend_reason(trial.backend, devices)
        return reason and f"{node.name}: {printable(reason, LONGEST_REASON)}"

    def _nodes(self, trial: TrialSpec) -> tuple[Node, ...]:
        return self._team.nodes[: len(trial.nodes)]

    def _run_here(self, order: Run, scratch: Path, stop: threading.Event) -> Result:
        me, request, work = self._team.nodes[0], self._team.request, self._here.work(order.trial)
        try:
            reports = run_order(order, me, request, work, scratch, stop)
        except PartFailed as failed:
            return Result(number=order.number, traces=failed.traces, error=failed.outside)
        return Result(number=order.number, reports=tuple(reports))

    def _stop_the_rest(self, attempt: Attempt) -> None:
        """Stop the remaining parts; afterwards every part has ended, or its node is lost."""
        self._team.abort(attempt)
        wait(attempt.answers.values(), STOP_SECONDS)
        for number in attempt.awaited:
            reason = f"it did not end its ranks within {units.seconds(STOP_SECONDS)}"
            self._team.give_up(number, f"{self._team.nodes[number].name} was lost: {reason}")

    def _explain(
        self, order: Run, own: Result, others: Mapping[int, BaseException | None]
    ) -> TrialOutcome:
        """The first cause, from the traces of the ranks on all nodes."""
        traces, outside = [*own.traces], [own.error] if own.error else []
        for number, error in others.items():
            if isinstance(error, Lost):
                outside.append(str(error))
            elif isinstance(error, Failed) and isinstance(error.answer, Result):
                traces += error.answer.traces
                if error.answer.error:
                    name = self._team.nodes[number].name
                    outside.append(f"{name} could not run its ranks: {error.answer.error}")
        return explain(
            traces,
            order.limit_seconds,
            name=partial(_rank_and_host, order.trial, self._nodes(order.trial)),
            outside=next(iter(outside), None),
        )


def _stop_if_failed(stop: threading.Event, answer: Future[Any]) -> None:
    if answer.exception():
        stop.set()


def _rank_and_host(trial: TrialSpec, nodes: Sequence[Node], rank: int) -> str:
    """Name of a rank, as in "rank 1 on host1"; if hosts have the same name, "rank 1 on node 1
    (host1)"."""
    node = nodes[trial.hosts[rank]]
    alike = [other for other in nodes if other.hostname == node.hostname]
    return f"rank {rank} on {node.hostname if len(alike) == 1 else node.name}"
