"""Trials whose ranks run on several nodes, which share one TCPStore.

Every node computes the same plan from its own options and from what all nodes say of themselves.
Node 0 orders trials by their numbers in that plan, so nothing that arrives names code, files or
settings. Each node runs its ranks and leaves their results in the store. A counter that every node
keeps raising shows that it is there.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from time import monotonic, sleep
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import units
from dpbench.codec import decode, encode
from dpbench.errors import DataError, Interrupted, LaunchError, StoreError, UsageError
from dpbench.launch.causes import RankTrace, explain
from dpbench.launch.exchange import Exchange
from dpbench.launch.launcher import Launcher, TrialOutcome, judge_trial
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import Part, PartFailed, run_part, scratch_folder
from dpbench.launch.trials import HostLauncher
from dpbench.launch.unusable import sparse_reason
from dpbench.launch.where import NodeRequest
from dpbench.measure.trial import RankReport
from dpbench.messages import Say
from dpbench.records.environment import Environment
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE
from dpbench.rendezvous.store import STORE_PREFIX, reach_store, serve_store
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

JOIN_SECONDS = 300.0
"""Seconds that nodes wait for each other at the start."""
POLL_SECONDS = 0.1
BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
"""Seconds without a sign of life after which a node counts as lost."""
STOP_SECONDS = 30.0
"""Seconds that other nodes may take to end their ranks and to say so."""
FAREWELL_SECONDS = 2.0
"""Seconds that node 0, which holds the store, waits for the others to read the end."""
EQUAL_VERSIONS = ("dpbench", "torch")
"""Packages whose versions must be equal on all nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a sweep, as it describes itself."""

    number: int
    environment: Environment
    machine: Machine
    devices: tuple[str, ...]
    """Devices for the sweep, in the order in which replicas take them."""
    options: tuple[tuple[str, str], ...] = ()
    """The command's options, as (name, value), that must be equal on all nodes."""
    interface: str | None = None
    """The network interface towards the other nodes; None leaves the choice to gloo and NCCL."""
    folder: str = ""
    """Name of the results folder; only node 0 has one."""

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.environment.hostname})"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    """The result of one node's ranks in a trial: a report of each, or traces of a failure."""

    reports: tuple[RankReport, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    error: str | None = None
    """Reason why the node could not run its ranks, or why it is lost."""


class NodeLost(LaunchError):
    """A node that this one waits for is gone; the text says since when or why."""


@contextmanager
def meet(request: NodeRequest, me: Node, say: Say) -> Iterator[Team]:
    """Wait for all nodes, and leave them at the end of the context.

    If node 0 leaves, the others end with the same error or signal. Raises UsageError for nodes that
    were told different things, and LaunchError, with the missing nodes, when the time to join is
    over.
    """
    timeout = timedelta(seconds=JOIN_SECONDS)
    try:
        if request.node_rank == 0 and not request.has_store:
            store = serve_store(request.port, at_loopback=False, timeout=timeout)
        else:
            holder = "the launcher" if request.has_store else "node 0"
            compare = "--rdzv-endpoint of all nodes"
            store = reach_store(request.host, request.port, holder, timeout, compare=compare)
        exchange = Exchange(
            PrefixStore("dpbench sweep", store),
            request.token,
            "node",
            member=request.node_rank,
            members=request.node_count,
        )
        described = exchange.meet(
            encode(me),
            JOIN_SECONDS,
            lambda names: say(f"waiting for {names} at {request.endpoint}"),
        )
        nodes = tuple(decode(Node, one) for one in described)
    except OSError as error:
        raise UsageError(
            f"cannot listen at port {request.port} for the other nodes: {error.strerror}; expected "
            "a free port, the same on all nodes"
        ) from None
    except StoreError as error:
        raise UsageError(
            f"a node has another version of dpbench ({error}); expected the same on all"
        ) from None
    except RuntimeError as error:  # of torch
        raise LaunchError(f"the store at {request.endpoint} cannot be used: {error}") from None
    team = Team(request, nodes, exchange)
    try:
        _require_alike(nodes)
        yield team
    except BaseException as error:
        team.leave(error)
        raise
    else:
        team.leave(None)
    finally:
        if exchange.rejected:
            say(
                f"ignored {units.counted(exchange.rejected, 'value')} in the store of the nodes "
                "that this sweep has not signed"
            )


def _require_alike(nodes: Sequence[Node]) -> None:
    """Raise UsageError, on every node, for what differs between nodes and must not."""

    def properties(node: Node) -> dict[str, str]:
        versions = {name: version for name, version, *_ in node.environment.versions}
        return {name: versions.get(name, "") for name in EQUAL_VERSIONS} | dict(node.options)

    first = properties(nodes[0])
    differences = []
    for node in nodes[1:]:
        there = properties(node)
        differences += [
            f"{name} {there.get(name) or 'left out'} on {node.name} and "
            f"{first.get(name) or 'left out'} on {nodes[0].name}"
            for name in dict.fromkeys((*first, *there))
            if there.get(name) != first.get(name)
        ]
    if differences:
        raise UsageError(
            f"the nodes were told different things: {'; '.join(differences)}; expected the same on "
            "all nodes"
        )


class Team:
    """The nodes of a sweep, and what they know of each other while it runs.

    One thread uses the store, and nobody else does: over a cut link its calls would wait for ever.
    """

    def __init__(self, request: NodeRequest, nodes: tuple[Node, ...], exchange: Exchange) -> None:
        self.request = request
        self.nodes = nodes
        self.launch = exchange.launch
        self._exchange = exchange
        self._orders = count()
        self._lost: dict[int, str] = {}
        now = monotonic()
        # The others watch node 0, which they need, and node 0 watches all.
        self._seen = {n: now for n in range(len(nodes)) if (n == 0) != (request.node_rank == 0)}
        self._ends: dict[int, str] = {}
        """How other nodes have left; empty for those that had nothing more to do."""
        self._error: str | None = None
        self._outgoing: deque[tuple[str, bytes | None]] = deque()
        self._asked: dict[str, float] = {}
        """Keys that somebody waits for, with the time of the last look."""
        self._found: dict[str, Any] = {}
        self._end: str | None = None
        """How this node has left."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nodes", daemon=True)
        self._thread.start()

    @property
    def me(self) -> Node:
        return self.nodes[self.request.node_rank]

    def lost_reason(self, number: int) -> str | None:
        """Reason why that node is lost; None while it is not. It never waits."""
        if number in self._seen and number not in self._lost:
            if monotonic() - self._seen[number] > LOST_SECONDS:
                self.lose(number, f"no sign of life for {units.seconds(LOST_SECONDS)}")
            elif reason := self._ends.get(number) or self._error:
                self.lose(number, reason)
        return self._lost.get(number)

    def lose(self, number: int, reason: str) -> None:
        """Count that node as lost; the first reason stays."""
        self._lost.setdefault(number, f"{self.nodes[number].name} was lost: {reason}")

    def put(self, key: str, value: object) -> None:
        """Leave a value for the other nodes, or delete it if it is None; does not wait for that.

        Raises LaunchError for a value that the store cannot take.
        """
        signed = None if value is None else self._exchange.signed(key, value)
        self._outgoing.append((key, signed))
        self._wake.set()

    def get(self, key: str) -> Any:
        """The value of the key, if the thread has found it since the last look; else None."""
        self._asked[key] = monotonic()
        self._wake.set()
        return self._found.pop(key, None)

    def wait(self, key: str, number: int) -> Any:
        """The value of the key, once node `number` has put it there; raises NodeLost."""
        while (found := self.get(key)) is None:
            if reason := self.lost_reason(number):
                raise NodeLost(reason)
            sleep(POLL_SECONDS)
        return found

    def ready(self, plan: str, error: str | None = None) -> None:
        """Say that this node has its data and has planned `plan`, or why it cannot take part."""
        self.put(f"ready {self.me.number}", {"plan": plan, "error": error})

    def wait_for_others(self, plan: str) -> None:
        """Node 0 waits until the others are ready; raises DataError, LaunchError or UsageError."""
        for node in self.nodes[1:]:
            found = self.wait(f"ready {node.number}", node.number)
            if found["error"]:
                raise DataError(f"{node.name}: {found['error']}")
            if found["plan"] != plan:
                raise UsageError(
                    f"{node.name} has planned other trials than {self.nodes[0].name}; expected the "
                    "same options, files and environment variables on all nodes"
                )

    def order(self, content: dict[str, Any]) -> int:
        """Node 0 orders a trial, or says that there is none; returns the order's number."""
        order = next(self._orders)
        self.put(f"order {order}", content)
        return order

    def leave(self, error: BaseException | None) -> None:
        """Say goodbye: node 0 tells the others how it ends, and another node that it does."""
        interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
        if self.me.number:
            reason = "it was interrupted" if interrupted else f"it failed: {error}"
            self._end = "" if error is None else reason
        else:
            end: dict[str, Any] = {"end": None if error is None else str(error) or repr(error)}
            if interrupted:
                end["signal"] = getattr(error, "signal_number", signal.SIGINT)
            self.order(end)
            deadline = monotonic() + FAREWELL_SECONDS
            while {*self._seen} - {*self._lost, *self._ends} and monotonic() < deadline:
                sleep(POLL_SECONDS)
            self._end = ""
        self._wake.set()
        self._thread.join(BEAT_SECONDS)  # a thread in torch's code must not outlive Python's

    def _serve(self) -> None:
        """Send and find values, raise this node's counter, and look at those of the others."""
        exchange, beats, next_beat = self._exchange, count(), 0.0
        counts = dict.fromkeys(self._seen, -1)
        try:
            while True:
                leaving = self._end is not None
                while self._outgoing:
                    exchange.set(*self._outgoing.popleft())
                if leaving or monotonic() >= next_beat:
                    next_beat = monotonic() + BEAT_SECONDS
                    exchange.put(f"beat {self.me.number}", {"end": self._end}, next(beats))
                    for number in counts:
                        beat, state = exchange.counted(f"beat {number}")
                        if beat > counts[number]:
                            counts[number], self._seen[number] = beat, monotonic()
                            if state["end"] is not None:
                                self._ends[number] = str(state["end"])
                if leaving:
                    return
                for key, asked in [*self._asked.items()]:
                    if asked < monotonic() - BEAT_SECONDS:
                        del self._asked[key]
                        self._found.pop(key, None)
                    elif (value := exchange.get(key)) is not None:
                        self._found[key] = value
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()
        except RuntimeError:  # of torch: the connection broke
            self._error = "its store was closed"


def run_own_part(
    team: Team,
    here: HostLauncher,
    trial: TrialSpec,
    order: int,
    limit_seconds: float,
    stop: Callable[[], bool],
) -> PartResult:
    """Run the ranks of the trial that are on this node."""
    me, nodes = team.me, trial.nodes
    variables = {
        STORE_PREFIX: f"{team.launch} {order}",
        "MASTER_ADDR": team.request.host,
        "MASTER_PORT": str(team.request.port),
    }
    if me.interface is not None:
        variables |= {GLOO_INTERFACE: me.interface, "NCCL_SOCKET_IFNAME": f"={me.interface}"}
    part = Part(
        first=sum(nodes[: me.number]),
        count=nodes[me.number],
        size=trial.process_count,
        host=me.number,
        hosts=len(nodes),
        variables=variables,
    )
    try:
        with scratch_folder(here.logs, trial.trial_id) as scratch:
            reports = run_part(here.work(trial), part, scratch, limit_seconds, stop=stop)
    except PartFailed as failed:
        return PartResult(traces=failed.traces, error=failed.outside)
    except (LaunchError, OSError) as error:
        return PartResult(error=f"{me.name} could not run its ranks: {error}")
    return PartResult(reports=tuple(reports))


class NodesLauncher:
    """Node 0's launcher: trials of one node run here as `here` runs them, others on the first
    nodes of the team.

    `trial.nodes` is the number of replicas on each node, beginning with node 0.
    """

    def __init__(
        self, team: Team, here: HostLauncher, number_of: Callable[[TrialSpec], int]
    ) -> None:
        """`number_of` gives a trial's number in the plan that all nodes have."""
        self._team = team
        self._here = here
        self._number_of = number_of

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        if len(trial.nodes) < 2:
            return self._here.unusable_reason(trial)
        hosts, team = f"{len(trial.nodes)} hosts", self._team
        if len(trial.nodes) > len(team.nodes):
            return f"needs {hosts}; this sweep has {len(team.nodes)}: --nnodes"
        if IMPLEMENTATIONS[trial.implementation].one_process:
            return f"{trial.implementation} drives its replicas from one process, not on {hosts}"
        if trial.backend == "shm":
            return (
                f"shm goes through the memory of one host, and these replicas are on {hosts}; "
                "--comm-hook hierarchical uses it inside each host"
            )
        for node in team.nodes[: len(trial.nodes)]:
            if lost := team.lost_reason(node.number):
                return lost
            first = sum(trial.nodes[: node.number])
            devices = trial.devices[first : first + trial.nodes[node.number]]
            if reason := node.machine.unusable_backend_reason(trial.backend, devices):
                return f"{node.name}: {reason}"
        return sparse_reason(trial)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
        if len(trial.nodes) < 2:
            return self._here.run(trial, time_limit_seconds)
        team, parts = self._team, dict[int, PartResult]()
        nodes = team.nodes[: len(trial.nodes)]
        order = team.order({"trial": self._number_of(trial)})

        def some_failed() -> bool:
            """Look for results of other nodes; the first failure stops all ranks."""
            for node in nodes[1:]:
                if node.number in parts:
                    continue
                if (found := team.get(f"result {order} {node.number}")) is not None:
                    parts[node.number] = decode(PartResult, found)
                elif reason := team.lost_reason(node.number):
                    parts[node.number] = PartResult(error=reason)
            return any(not part.reports for part in parts.values())

        own = run_own_part(team, self._here, trial, order, time_limit_seconds, some_failed)
        # Ranks of a completed trial end together, and those of a failed one when they are stopped.
        deadline, stopped = monotonic() + STOP_SECONDS, False
        while (failed := some_failed() or not own.reports) or len(parts) < len(nodes) - 1:
            if failed and not stopped:
                team.put(f"stop {order}", {})
                stopped = True
            if len(parts) == len(nodes) - 1:
                break
            if monotonic() > deadline:
                for node in nodes[1:]:
                    if node.number not in parts:
                        late = f"it did not end its ranks within {units.seconds(STOP_SECONDS)}"
                        team.lose(node.number, late)
            sleep(POLL_SECONDS)
        for node in nodes[1:]:
            team.put(f"result {order} {node.number}", None)  # frees the store's memory
        results = [own, *(parts[node.number] for node in nodes[1:])]
        if all(one.reports for one in results):
            return judge_trial(trial, [report for one in results for report in one.reports])
        return explain(
            [trace for one in results for trace in one.traces],
            time_limit_seconds,
            name=lambda rank: f"rank {rank} on {nodes[trial.hosts[rank]].name}",
            outside=next(filter(None, (one.error for one in results)), None),
        )


def follow(
    team: Team,
    here: Launcher,
    trial_of: Callable[[int], TrialSpec],
    limit_seconds: float,
    say: Say,
) -> str:
    """Run this node's ranks of all trials that node 0 orders; returns the closing message.

    `trial_of` gives the trial with that number in the plan that all nodes have. Raises NodeLost
    where node 0 is lost, LaunchError where it has failed, and Interrupted where it was
    interrupted.
    """
    done, lead = 0, team.nodes[0].name
    for order in count():
        given = team.wait(f"order {order}", 0)
        if "signal" in given:
            raise Interrupted(given["signal"], f"{lead} was interrupted")
        if given.get("end") is not None:
            raise LaunchError(f"{lead} has ended: {given['end']}")
        if "end" in given:
            trials = units.counted(done, "trial")
            return f"{lead} has no more to run; {trials} completed with ranks of this node"
        trial = trial_of(given["trial"])
        if len(trial.nodes) <= team.me.number:
            continue
        assert isinstance(here, HostLauncher)

        def is_over(order: int = order) -> bool:
            """Whether node 0 has stopped the trial, has gone on without it, or is lost."""
            keys = (f"stop {order}", f"order {order + 1}")
            ordered = any(team.get(key) is not None for key in keys)
            return ordered or team.lost_reason(0) is not None

        result = run_own_part(team, here, trial, order, limit_seconds, is_over)
        team.put(f"result {order} {team.me.number}", encode(result))
        done += bool(result.reports)
        if not (result.reports or all(trace.done or trace.aborted for trace in result.traces)):
            say(f"{trial.label} failed; what the ranks here have written is in {here.logs}")
    raise AssertionError("orders have no end")
