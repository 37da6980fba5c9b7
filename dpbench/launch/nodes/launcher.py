"""Trials on one host or several: a launcher.Launcher over the team of node 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic

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
from dpbench.launch.launcher import Outcome
from dpbench.launch.meeting_point import serve_store
from dpbench.launch.nodes.attempt import Attempt
from dpbench.launch.nodes.messages import Result
from dpbench.launch.nodes.node import Node
from dpbench.launch.nodes.parts import part_of
from dpbench.launch.nodes.team import Team
from dpbench.launch.outcome import judge
from dpbench.launch.sparse import sparse_reason
from dpbench.measure.trial import RankReport
from dpbench.printable import printable
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

STOP_SECONDS = 30.0
"""How long the other hosts may take to end their ranks and say so."""
LONGEST_REASON = 300
"""Characters that another node may use to say why it cannot run a trial."""


class NodesLauncher:
    """Runs trials of one host on node 0, as `here` does, and others on the first nodes.

    `trial.nodes` says how many replicas are on each: the first number on node 0, and so on.
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
            return f"shm goes through the memory of one host; these replicas are on {hosts}"
        reasons = (self._cannot(node, trial) for node in self._nodes(trial))
        return sparse_reason(trial) or next(filter(None, reasons), None)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        if len(trial.nodes) < 2:
            return self._here.run(trial, time_limit_seconds)
        me = self._team.nodes[0]
        store = serve_store(me.address)
        try:
            with (
                scratch_folder(self._here.logs, trial.trial_id) as scratch,
                self._team.attempt(trial, time_limit_seconds, me.address, store.port) as attempt,
            ):
                started = monotonic()
                own = self._run_here(attempt, scratch)
                if not own.failed:
                    limit = time_limit_seconds + KILL_GRACE_SECONDS + STOP_SECONDS
                    attempt.wait(started + limit - monotonic())
                reports = self._settle(attempt, own)
        except RanksFailed as failed:
            return failed.outcome
        return judge(trial, reports)

    def _cannot(self, node: Node, trial: TrialSpec) -> str | None:
        if lost := self._team.lost_reason(node.number):
            return lost
        first, count = sum(trial.nodes[: node.number]), trial.nodes[node.number]
        devices = trial.devices[first : first + count]
        reason = node.machine.unusable_backend_reason(trial.backend, devices)
        return reason and f"{node.name}: {printable(reason, LONGEST_REASON)}"

    def _nodes(self, trial: TrialSpec) -> tuple[Node, ...]:
        return self._team.nodes[: len(trial.nodes)]

    def _run_here(self, attempt: Attempt, scratch: Path) -> Result:
        order = attempt.order
        part = part_of(order, self._team.nodes[0], self._team.request)
        work = self._here.work(order.trial)
        try:
            reports = run_part(work, part, scratch, order.limit_seconds, stop=attempt.stop)
        except PartFailed as failed:
            return Result(number=order.number, traces=failed.traces)
        return Result(number=order.number, reports=tuple(reports))

    def _settle(self, attempt: Attempt, own: Result) -> list[RankReport]:
        """All reports, by rank; raises RanksFailed when every part has ended."""
        if attempt.missing:
            self._team.abort(attempt)
            attempt.wait_for_rest(STOP_SECONDS)
            for number in attempt.awaited:
                self._team.roster.give_up(number, self._silence(number))
        results = {0: own, **attempt.results}
        if not (attempt.missing or any(result.failed for result in results.values())):
            return [report for number in sorted(results) for report in results[number].reports]
        trial = attempt.order.trial
        traces = [trace for result in results.values() for trace in result.traces]
        outside = [self._team.lost_reason(number) for number in sorted(attempt.missing)]
        outside += [
            f"{self._team.nodes[number].name} could not start its ranks: {result.error}"
            for number, result in sorted(results.items())
            if result.error
        ]
        raise RanksFailed(
            explain(
                traces,
                attempt.order.limit_seconds,
                name=partial(_rank_and_host, trial, self._nodes(trial)),
                outside=next(filter(None, outside), None),
            )
        )

    def _silence(self, number: int) -> str:
        return (
            f"{self._team.nodes[number].name} was lost: it did not end its ranks within "
            f"{units.seconds(STOP_SECONDS)}"
        )


def _rank_and_host(trial: TrialSpec, nodes: Sequence[Node], rank: int) -> str:
    """As in "rank 1 on host1"; where hosts have the same name, "rank 1 on node 1 (host1)"."""
    node = nodes[trial.hosts[rank]]
    alike = [other for other in nodes if other.hostname == node.hostname]
    return f"rank {rank} on {node.hostname if len(alike) == 1 else node.name}"
