"""Trials whose ranks run on several nodes, which share one TCPStore.

Every node computes the same plan from its own options and from what all nodes report about
themselves. Each keeps one value in the store, its state, and a heartbeat. The state of node 0 has
the number of a trial in that plan, so nothing that arrives names code, files or settings. The
others run their ranks of it, and their states have the results. A lost node ends the sweep.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import units
from dpbench.codec import decode, encode
from dpbench.errors import Interrupted, LaunchError, StoreError, UsageError
from dpbench.launch.causes import RankTrace, outcome_of
from dpbench.launch.exchange import JOIN_SECONDS, Exchange
from dpbench.launch.host_launcher import HostLauncher
from dpbench.launch.machine import Machine
from dpbench.launch.outcome import Outcome, judge_trial
from dpbench.launch.placement import NodeRequest, Placement, interface_towards
from dpbench.launch.ranks import (
    POLL_SECONDS,
    RanksFailed,
    run_host_ranks,
    scratch_folder,
)
from dpbench.measure.trial import RankReport
from dpbench.messages import say
from dpbench.records.environment import Environment
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE
from dpbench.rendezvous.store import STORE_PREFIX, reach_store, serve_store
from dpbench.specs import TrialSpec, plain_label
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS

BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
"""Seconds without a heartbeat after which a node counts as lost."""
STOP_SECONDS = 30.0
"""Seconds that other nodes may take to end their ranks and to say so."""
FAREWELL_SECONDS = 2.0
"""Seconds that node 0, which holds the store, waits for the others to read the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a sweep, as it describes itself."""

    number: int
    environment: Environment
    machine: Machine
    devices: tuple[str, ...]
    """Devices for the sweep, in the order in which replicas take them."""
    common: dict[str, str]
    """Options and versions that all nodes must have in common, by name."""
    folder: str = ""
    """Name of the results folder; only node 0 has one."""

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.environment.hostname})"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """The result of one node's ranks in a trial: a report of each, or traces of a failure."""

    reports: tuple[RankReport, ...] = ()
    traces: tuple[RankTrace, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeState:
    """The state of a node, which it writes to the store when it changes."""

    plan: str = ""
    """The plan that it has computed; empty until its data are prepared."""
    order: int = 0
    """How many trials node 0 has ordered; on another node, the last of them that it has ended."""
    trial: int | None = None
    """The trial of the last order, by its number in the plan; None if its ranks are to end."""
    result: NodeResult = NodeResult()
    """On other nodes: the result of the last order."""
    end: str | None = None
    """Reason why it leaves: empty if it had nothing more to do, None while it stays."""


class NodeLost(LaunchError):
    """A node that this one waits for is gone; `reason` says since when or why."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason + remedy)
        self.reason = reason


@contextmanager
def joined_nodes(request: NodeRequest, me: Node) -> Iterator[Team]:
    """Wait for all nodes, and leave them at the end of the context.

    Raises UsageError for a port that is not free or a node with other options, and LaunchError,
    with the missing nodes, when the time to join is over.
    """
    timeout = timedelta(seconds=JOIN_SECONDS)
    try:
        if request.node_rank == 0 and not request.has_store:
            store = serve_store(request.port, at_loopback=False, timeout=timeout)
        else:
            holder = "the launcher" if request.has_store else "node 0"
            store = reach_store(request.host, request.port, holder, timeout)
        place = {"member": request.node_rank, "members": request.node_count}
        exchange = Exchange(PrefixStore("dpbench sweep", store), request.token, "node", **place)
        waiting = "waiting for {} at " + request.endpoint
        described = exchange.join(encode(me), JOIN_SECONDS, lambda who: say(waiting.format(who)))
        nodes = tuple(decode(Node, one) for one in described)
    except StoreError as error:
        raise UsageError(
            f"a node describes itself in another way, so it has another dpbench: {error}; expected "
            "the same version on all nodes"
        ) from None
    except RuntimeError as error:  # of torch
        raise LaunchError(f"the store at {request.endpoint} cannot be used: {error}") from None
    team, end = Team(request, nodes, exchange), ""
    try:
        require_common(nodes, me)
        yield team
    except BaseException as error:
        words = str(error) or type(error).__name__
        if isinstance(error, Interrupted | NodeLost):  # each node has a remedy of its own
            words = error.reason if isinstance(error, NodeLost) else "interrupted"
        end = f"it ended: {words}"
        raise
    finally:
        team.leave(end)


def require_common(nodes: Sequence[Node], me: Node) -> None:
    """Raise UsageError if another node has other options or versions than this one."""
    for node in nodes:
        theirs, ours = node.common, me.common
        differ = [
            f"{name} {theirs.get(name, 'unset')} and {ours.get(name, 'unset')}"
            for name in {**theirs, **ours}
            if theirs.get(name) != ours.get(name)
        ]
        if differ:
            raise UsageError(
                f"{node.name} and {me.name} differ in {'; '.join(differ)}; expected the same "
                "options and versions on all nodes"
            )


@dataclass
class _Other:
    """Another node, as this one last heard from it."""

    beat: int = -1
    seen: float = field(default_factory=monotonic)
    changes: int = 0
    """How many times its state had changed."""
    state: NodeState = NodeState()


class Team:
    """The nodes of a sweep, and what this one knows of the others while it runs.

    One thread uses the store, and nobody else does: over a cut link its calls would never return.
    """

    def __init__(self, request: NodeRequest, nodes: tuple[Node, ...], exchange: Exchange) -> None:
        self.request = request
        self.nodes = nodes
        self.me = nodes[request.node_rank]
        self.launch = exchange.launch
        self._exchange = exchange
        self._state = NodeState()
        # The others watch node 0, which they need, and node 0 watches all.
        watched = range(1, len(nodes)) if self.me.number == 0 else (0,)
        self._others = {number: _Other() for number in watched}
        self._leaving = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nodes", daemon=True)
        self._thread.start()

    def state(self, number: int) -> NodeState:
        """The last state of another node that has arrived; raises NodeLost. It never waits."""
        other = self._others[number]
        reason = other.state.end
        if reason is None and monotonic() - other.seen > LOST_SECONDS:
            reason = f"no sign of life for {units.seconds(LOST_SECONDS)}"
        if reason:
            raise NodeLost(f"{self.nodes[number].name} was lost: {reason}")
        return other.state

    def set_state(self, **changes: Any) -> None:
        """Change the state of this node; does not wait for others to see it."""
        self._state = replace(self._state, **changes)
        self._wake.set()

    def order(self, trial: int) -> int:
        """Order the trial with that number in the plan, as node 0; returns the order's number."""
        self.set_state(order=self._state.order + 1, trial=trial)
        return self._state.order

    def agree(self, plan: str) -> None:
        """Say that this node has prepared its data and has a plan with that hash, and wait until
        node 0, or on node 0 all others, have one.

        Raises NodeLost, and UsageError for a node with another plan.
        """
        self.set_state(plan=plan)
        for number in self._others:
            while not (theirs := self.state(number).plan):
                sleep(POLL_SECONDS)
            if theirs != plan:
                raise UsageError(
                    f"{self.nodes[number].name} and {self.me.name} have different plans: a file "
                    "that they read is not the same; expected the same files on all nodes"
                )

    def leave(self, end: str) -> None:
        """Say why this node ends, and stop; `end` is empty if there is nothing more to do."""
        self.set_state(end=end)
        deadline = monotonic() + FAREWELL_SECONDS
        while self.me.number == 0 and monotonic() < deadline:
            if all(other.state.end is not None for other in self._others.values()):
                break
            sleep(POLL_SECONDS)
        self._leaving = True
        self._wake.set()
        self._thread.join(BEAT_SECONDS)  # a thread in torch's code must not outlive Python's

    def _serve(self) -> None:
        """Write this node's state when it changes and its heartbeat each second, and read those of
        others."""
        me, exchange, beats = self.me.number, self._exchange, count()
        written: NodeState | None = None
        changes, next_beat = 0, 0.0
        with suppress(RuntimeError, StoreError):  # the connection broke, or another version speaks
            while True:
                leaving, state = self._leaving, self._state
                if state is not written:
                    written, changes, next_beat = state, changes + 1, 0.0
                    exchange.put(f"state {me}", encode(state), changes)
                if monotonic() >= next_beat:
                    exchange.put(f"beat {me}", changes, next(beats))
                    next_beat = monotonic() + BEAT_SECONDS
                if leaving:
                    return
                for number, other in self._others.items():
                    beat, there = exchange.get(f"beat {number}")
                    if beat > other.beat:
                        if there != other.changes:
                            other.state = decode(NodeState, exchange.get(f"state {number}")[1])
                        other.beat, other.changes, other.seen = beat, there, monotonic()
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()


def run_own_ranks(
    team: Team,
    here: HostLauncher,
    trial: TrialSpec,
    order: int,
    limit_seconds: float,
    stop: Callable[[], bool],
) -> NodeResult:
    """Run the ranks of the trial that are on this node; raises what `stop` raises."""
    me, counts = team.me.number, trial.nodes
    variables = {STORE_PREFIX: f"{team.launch} {order}"}
    if interface := os.environ.get(GLOO_INTERFACE) or interface_towards(team.request.host):
        usual = {GLOO_INTERFACE: interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
        variables |= {name: os.environ.get(name) or value for name, value in usual.items()}
    first = Placement(
        rank=sum(counts[:me]),
        size=trial.process_count,
        local_size=counts[me],
        node=me,
        address=team.request.host,
        port=team.request.port,
    )
    try:
        with scratch_folder(here.logs, plain_label(trial)) as scratch:
            work = here.work(trial)
            reports = run_host_ranks(work, first, variables, scratch, limit_seconds, stop=stop)
    except RanksFailed as failed:
        return NodeResult(traces=failed.traces)
    return NodeResult(reports=tuple(reports))


class NodesLauncher(HostLauncher):
    """Node 0's launcher: runs trials of several nodes on the first ones of the team.

    `trial.nodes` is the number of replicas on each node, beginning with node 0.
    """

    def __init__(
        self,
        team: Team,
        plan: Sequence[TrialSpec],
        logs: Path,
        prepared: Path | None = None,
    ) -> None:
        """All nodes have the same `plan`."""
        super().__init__(team.me.machine, logs, prepared)
        self._team = team
        self._plan = plan

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        if len(trial.nodes) < 2:
            return super().unusable_reason(trial)
        hosts = f"{len(trial.nodes)} hosts"
        if IMPLEMENTATIONS[trial.implementation].one_process:
            return f"{trial.implementation} drives its replicas from one process, not on {hosts}"
        if BACKENDS[trial.backend].one_host:
            return f"{trial.backend} is for the ranks of one host, and these are on {hosts}"
        for node in self._team.nodes[: len(trial.nodes)]:
            devices = [device for host, device in trial.places if host == node.number]
            if reason := node.machine.unusable_backend_reason(trial.backend, devices):
                return f"{node.name}: {reason}"
        return None

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        """Raises NodeLost."""
        if len(trial.nodes) < 2:
            return super().run(trial, time_limit_seconds)
        team, nodes = self._team, self._team.nodes[: len(trial.nodes)]
        order = team.order(self._plan.index(trial))
        found: dict[int, NodeResult] = {}

        def some_failed() -> bool:
            """Look for results of other nodes; the first failure stops all ranks."""
            states = {node.number: team.state(node.number) for node in nodes[1:]}
            found.update({n: one.result for n, one in states.items() if one.order == order})
            return any(not result.reports for result in found.values())

        found[0] = run_own_ranks(team, self, trial, order, time_limit_seconds, some_failed)
        # Ranks of a completed trial end together, and those of a failed one when they are stopped.
        deadline = monotonic() + STOP_SECONDS
        while len(found) < len(nodes):
            if some_failed():
                team.set_state(trial=None)
            if monotonic() > deadline:
                raise NodeLost(f"a node took over {units.seconds(STOP_SECONDS)} to end its ranks")
            sleep(POLL_SECONDS)
        results = [found[node.number] for node in nodes]
        if all(one.reports for one in results):
            return judge_trial(trial, [report for one in results for report in one.reports])
        return outcome_of(
            [trace for one in results for trace in one.traces],
            time_limit_seconds,
            name=lambda rank: f"rank {rank} on {nodes[trial.host_of_replica[rank]].name}",
        )


def follow_orders(
    team: Team, here: HostLauncher, plan: Sequence[TrialSpec], limit_seconds: float
) -> None:
    """Run this node's ranks of all trials of the plan that node 0 orders, until it has no more.

    Raises NodeLost where node 0 is lost or has failed.
    """
    last = 0
    while (ordered := team.state(0)).end is None:
        if ordered.order == last:
            sleep(POLL_SECONDS)
            continue
        last, result = ordered.order, NodeResult()
        trial = None if ordered.trial is None else plan[ordered.trial]
        if trial is not None and len(trial.nodes) > team.me.number:  # it has not failed already

            def is_over(ordered: NodeState = ordered) -> bool:
                """Whether node 0 has stopped the trial, or has gone on without it."""
                return team.state(0) != ordered

            result = run_own_ranks(team, here, trial, last, limit_seconds, is_over)
            if result.traces:
                label = plain_label(trial)
                say(f"{label} failed; what the ranks here have written is in {here.logs}")
        team.set_state(order=last, result=result)
    say(f"{team.nodes[0].name} has no more to run")
