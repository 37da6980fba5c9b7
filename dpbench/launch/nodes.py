"""Trials whose ranks run on several nodes, which share one TCPStore.

Every node computes the same plan from its own options and from what all nodes say of themselves.
Node 0 orders trials by their numbers in that plan, so nothing that arrives names code, files or
settings. Each node runs its ranks and leaves their results in the store. A counter that every node
keeps raising shows that it is there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Any, TypeVar

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import units
from dpbench.codec import decode, encode
from dpbench.errors import DataError, Interrupted, LaunchError, StoreError, UsageError
from dpbench.launch.causes import RankTrace, explain
from dpbench.launch.launcher import Launcher, TrialOutcome, judge_trial
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import (
    KILL_GRACE_SECONDS,
    Part,
    PartFailed,
    run_part,
    scratch_folder,
)
from dpbench.launch.signed_store import OPTION, VARIABLE, SignedStore
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

POLL_SECONDS = 0.1
BEAT_SECONDS = 1.0
STOP_SECONDS = 30.0
"""Seconds that other nodes may take to end their ranks and to say so."""
FAREWELL_SECONDS = 2.0
"""Seconds that node 0, which holds the store, waits for the others to read the end."""
EQUAL_VERSIONS = ("dpbench", "torch")
"""Packages whose versions must be equal on all nodes."""
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"

T = TypeVar("T")


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
    def hostname(self) -> str:
        return self.environment.hostname

    @property
    def cores(self) -> int:
        return self.machine.cores

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.hostname})"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    """The result of one node's ranks in a trial: a report of each, or traces of a failure."""

    reports: tuple[RankReport, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    error: str | None = None
    """Reason why the node could not run its ranks, or why it is lost."""


class NodeLost(LaunchError):
    """Node 0 is gone; the text says since when or why."""


@contextmanager
def meet(request: NodeRequest, me: Node, say: Say) -> Iterator[Team]:
    """Wait for all nodes, and leave them at the end of the context.

    If node 0 leaves, the others end with the same error or signal. Raises UsageError for nodes that
    were told different things, and LaunchError, with the missing nodes, when the time to join is
    over.
    """
    store = _store(request)
    signed = SignedStore(store, request.token, member=request.node_rank, members=request.node_count)
    try:
        nodes = _gather(request, me, signed, say)
    except RuntimeError as error:  # of torch: node 0 has ended
        raise LaunchError(f"lost the store at {request.endpoint}: {error}") from None
    except BaseException:
        with suppress(RuntimeError):
            signed.leave()
        raise
    team = Team(request, nodes, signed)
    team.begin()
    try:
        _require_alike(nodes)
        yield team
    except BaseException as error:
        team.leave(error)
        raise
    else:
        team.leave(None)
    finally:
        if signed.rejected:
            say(
                f"ignored {units.counted(signed.rejected, 'value')} in the store of the nodes that "
                "this sweep has not signed"
            )


def _store(request: NodeRequest) -> PrefixStore:
    """The store, once it is there; raises UsageError and LaunchError."""
    timeout = timedelta(seconds=request.join_timeout_seconds)
    try:
        if request.node_rank == 0 and not request.has_store:
            store = serve_store(request.port, at_loopback=False, timeout=timeout)
        else:
            holder = "the launcher" if request.has_store else "node 0"
            store = reach_store(
                *(request.host, request.port, holder, timeout),
                compare="--rdzv-endpoint of all nodes",
            )
    except OSError as error:
        raise UsageError(
            f"cannot listen at port {request.port} for the other nodes: {error.strerror}; expected "
            "a free port, the same on all nodes"
        ) from None
    except RuntimeError as error:
        raise LaunchError(str(error)) from None
    return PrefixStore("dpbench sweep", store)


def _gather(request: NodeRequest, me: Node, signed: SignedStore, say: Say) -> tuple[Node, ...]:
    """What all nodes say of themselves, when all have come."""
    deadline = monotonic() + request.join_timeout_seconds
    told: list[int] = []
    launch = ""
    while True:
        missing = [] if signed.is_complete() else signed.missing()
        if not missing:
            if signed.launch != launch:
                launch = signed.launch
                signed.put(f"node {me.number}", encode(me))
            found = [signed.get(f"node {number}") for number in range(request.node_count)]
            if "node 0" in signed.other_token:
                raise UsageError(
                    f"node 0 at {request.endpoint} has another token than this node; expected the "
                    f"one that node 0 prints, in {VARIABLE}, or the same {OPTION} as there"
                )
            missing = [number for number, one in enumerate(found) if one is None]
        if not missing:
            try:
                return tuple(decode(Node, one) for one in found)
            except StoreError as error:
                raise UsageError(
                    f"a node has another version of dpbench ({error}); expected the same on all"
                ) from None
        names = " and ".join(f"node {number}" for number in missing)
        if monotonic() > deadline:
            other = " (one came with another token)" if signed.other_token else ""
            raise LaunchError(
                f"{names} did not come to {request.endpoint} within "
                f"{units.seconds(request.join_timeout_seconds)}{other}; start the same command "
                "there with its own --node-rank"
            )
        if missing != told:
            say(f"waiting for {names} at {request.endpoint}")
            told = missing
        sleep(POLL_SECONDS)


def _require_alike(nodes: Sequence[Node]) -> None:
    """Raise UsageError, on every node, for what differs between nodes and must not."""
    first = nodes[0]
    versions = {
        node.number: {name: version for name, version, *_ in node.environment.versions}
        for node in nodes
    }
    options = {node.number: dict(node.options) for node in nodes}
    differences = []
    for node in nodes[1:]:
        for values, names in (
            (versions, EQUAL_VERSIONS),
            (options, dict.fromkeys((*options[0], *options[node.number]))),
        ):
            for name in names:
                there, here = values[node.number].get(name), values[0].get(name)
                if there != here:
                    differences.append(
                        f"{name} {there or 'left out'} on {node.name} and {here or 'left out'} on "
                        f"{first.name}"
                    )
    if differences:
        raise UsageError(
            f"the nodes were told different things: {'; '.join(differences)}; expected the same on "
            "all nodes"
        )


class Team:
    """The nodes of a sweep, and what they know of each other while it runs."""

    def __init__(self, request: NodeRequest, nodes: tuple[Node, ...], signed: SignedStore) -> None:
        self.request = request
        self.nodes = nodes
        self.signed = signed
        self._orders = count()
        self._lost: dict[int, str] = {}
        now = monotonic()
        # The others watch node 0, which they need, and node 0 watches all.
        self._seen = {n: now for n in range(len(nodes)) if (n == 0) != (request.node_rank == 0)}
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="node-beats", daemon=True)
        self._error: str | None = None
        self._watched = self._stopped = -1
        """The order under way on this node, and the last one that node 0 has stopped."""

    @property
    def me(self) -> Node:
        return self.nodes[self.request.node_rank]

    def begin(self) -> None:
        """Show from now on that this node is there."""
        self._beats.start()

    def lost_reason(self, number: int) -> str | None:
        """Reason why that node is lost; None while it is not. It never waits."""
        if number not in self._seen:
            return None
        if number not in self._lost:
            silent = monotonic() - self._seen[number] > self.request.lost_seconds
            reason = self._error
            if silent:
                reason = f"no sign of life for {units.seconds(self.request.lost_seconds)}"
            if reason:
                self.lose(number, reason)
        return self._lost.get(number)

    def lose(self, number: int, reason: str) -> None:
        """Count that node as lost; the first reason stays."""
        self._lost.setdefault(number, f"{self.nodes[number].name} was lost: {reason}")

    def ready(self, plan: str, error: str | None = None) -> None:
        """Say that this node has its data and has planned `plan`, or why it cannot take part."""
        value = {"plan": plan, "error": error}
        self.call(self.signed.put, f"ready {self.me.number}", value)

    def wait_for_others(self, plan: str) -> None:
        """Node 0 waits until the others are ready; raises DataError, LaunchError or UsageError."""
        for node in self.nodes[1:]:
            while (found := self.signed.get(f"ready {node.number}")) is None:
                if reason := self.lost_reason(node.number):
                    raise LaunchError(
                        f"{reason}, before the first trial; start the same command again on all "
                        "nodes"
                    )
                sleep(POLL_SECONDS)
            if found["error"]:
                raise DataError(f"{node.name}: {found['error']}")
            if found["plan"] != plan:
                raise UsageError(
                    f"{node.name} has planned other trials than {self.nodes[0].name}; expected the "
                    "same options, files and environment variables on all nodes"
                )

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what `function` returns, which uses the store.

        Over a cut link that would wait for ever. Raises NodeLost when node 0 is lost meanwhile.
        """
        if self.request.node_rank == 0 and not self.request.has_store:
            return function(*arguments)
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="node-store", daemon=True).start()
        while True:
            try:
                return future.result(timeout=BEAT_SECONDS)
            except TimeoutError:
                if reason := self.lost_reason(0):
                    raise NodeLost(reason) from None
            except RuntimeError:  # of torch: the connection broke
                self._error = "its store was closed"
                raise NodeLost(self.lost_reason(0) or self._error) from None

    def leave(self, error: BaseException | None) -> None:
        """Say goodbye: node 0 tells the others how it ends, and another node that it does."""
        self._over.set()
        self._beats.join(BEAT_SECONDS)  # a thread in torch's code must not outlive Python's
        with suppress(RuntimeError, NodeLost):
            if self.me.number:
                if error is None:
                    self.call(self.signed.put, f"bye {self.me.number}", None)
                elif not isinstance(error, NodeLost):
                    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
                    reason = "it was interrupted" if interrupted else f"it failed: {error}"
                    self.call(self.signed.put, f"left {self.me.number}", reason)
                return
            end: dict[str, Any] = {"end": None if error is None else str(error) or repr(error)}
            if isinstance(error, Interrupted | KeyboardInterrupt):
                end["signal"] = getattr(error, "signal_number", signal.SIGINT)
            self.signed.put(f"order {next(self._orders)}", end)
            others = {node.number for node in self.nodes[1:]} - {*self._lost}
            deadline = monotonic() + FAREWELL_SECONDS
            while others and monotonic() < deadline:
                keys = ("bye", "left")
                others -= {n for n in others for key in keys if self._is_said(f"{key} {n}")}
                sleep(POLL_SECONDS)

    def order(self, number: int) -> int:
        """Node 0 orders the trial with that number in the plan; returns the order's number."""
        order = next(self._orders)
        self.signed.put(f"order {order}", {"trial": number})
        return order

    def await_order(self, order: int) -> dict[str, Any]:
        """The next order of node 0; raises NodeLost."""
        while (found := self.call(self.signed.get, f"order {order}")) is None:
            if reason := self.lost_reason(0):
                raise NodeLost(reason)
            sleep(POLL_SECONDS)
        return dict(found)

    def end_of(self, order: dict[str, Any], done: int) -> str:
        """The closing message of a node whose last order is the end; raises as node 0 ended."""
        lead = self.nodes[0].name
        if "signal" in order:
            raise Interrupted(order["signal"], f"{lead} was interrupted")
        if order["end"] is not None:
            raise LaunchError(f"{lead} has ended: {order['end']}")
        trials = units.counted(done, "trial")
        return f"{lead} has no more to run; {trials} completed with ranks of this node"

    @contextmanager
    def stopping(self, order: int, stop: threading.Event) -> Iterator[None]:
        """Set `stop` inside when node 0 stops the order, or is lost."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(POLL_SECONDS):
                if self._stopped >= order or self.lost_reason(0):
                    stop.set()

        self._watched = order
        threading.Thread(target=watch, name="node-stop", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            self._watched = -1

    def _is_said(self, key: str) -> bool:
        return self.signed.counted(key)[0] >= 0

    def _beat(self) -> None:
        """Raise this node's counter, and look at those of the others."""
        counts = dict.fromkeys(self._seen, -1)
        try:
            for beat in count():
                if beat % round(BEAT_SECONDS / POLL_SECONDS) == 0:
                    self.signed.put(f"beat {self.me.number}", None, beat)
                    for number in counts:
                        seen, _ = self.signed.counted(f"beat {number}")
                        if seen > counts[number]:
                            counts[number], self._seen[number] = seen, monotonic()
                        if (reason := self.signed.get(f"left {number}")) is not None:
                            self.lose(number, str(reason))
                if self._watched >= 0 and self._is_said(f"stop {self._watched}"):
                    self._stopped = self._watched
                if self._over.wait(POLL_SECONDS):
                    return
        except RuntimeError:  # of torch: the connection broke
            self._error = "its store was closed"


def run_own_part(
    team: Team,
    here: HostLauncher,
    trial: TrialSpec,
    order: int,
    limit_seconds: float,
    stop: threading.Event,
) -> PartResult:
    """Run the ranks of the trial that are on this node."""
    me, nodes = team.me, trial.nodes
    variables = {
        STORE_PREFIX: f"{team.signed.launch} {order}",
        "MASTER_ADDR": team.request.host,
        "MASTER_PORT": str(team.request.port),
    }
    if me.interface is not None:
        variables |= {GLOO_INTERFACE: me.interface, NCCL_INTERFACE: f"={me.interface}"}
    part = Part(
        first=sum(nodes[: me.number]),
        count=nodes[me.number],
        size=trial.process_count,
        host=me.number,
        hosts=len(nodes),
        variables=tuple(variables.items()),
    )
    try:
        with scratch_folder(here.logs, trial.trial_id) as scratch:
            reports = run_part(
                *(here.work(trial), part, scratch, limit_seconds),
                stop=stop,
            )
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
        team, stop = self._team, threading.Event()
        others = range(1, len(trial.nodes))
        order = team.order(self._number_of(trial))
        deadline = monotonic() + time_limit_seconds + KILL_GRACE_SECONDS + STOP_SECONDS
        parts: dict[int, PartResult] = {}
        collecting = threading.Thread(
            target=self._collect, args=(order, others, deadline, parts, stop), daemon=True
        )
        collecting.start()
        own = PartResult()
        try:
            own = run_own_part(team, self._here, trial, order, time_limit_seconds, stop)
        finally:
            if not own.reports:
                team.signed.put(f"stop {order}", None)
        collecting.join()
        team.signed.forget(
            f"order {order}", f"stop {order}", *(f"result {order} {number}" for number in others)
        )
        gone = PartResult(error="the store of the nodes is gone")
        results = [own, *(parts.get(number, gone) for number in others)]
        if all(one.reports for one in results):
            return judge_trial(trial, [report for one in results for report in one.reports])
        nodes = team.nodes[: len(trial.nodes)]
        return explain(
            [trace for one in results for trace in one.traces],
            time_limit_seconds,
            name=partial(_rank_and_host, trial, nodes),
            outside=next(filter(None, (one.error for one in results)), None),
        )

    def _collect(
        self,
        order: int,
        others: Sequence[int],
        deadline: float,
        parts: dict[int, PartResult],
        stop: threading.Event,
    ) -> None:
        """Fill `parts` with the results of the other nodes; the first failure stops all ranks."""
        team = self._team
        stopped = False
        while len(parts) < len(others):
            for number in {*others} - {*parts}:
                if (found := team.signed.get(f"result {order} {number}")) is not None:
                    parts[number] = _decoded(found, team.nodes[number])
                elif monotonic() > deadline:
                    team.lose(
                        number, f"it did not end its ranks within {units.seconds(STOP_SECONDS)}"
                    )
                if number not in parts and (reason := team.lost_reason(number)):
                    parts[number] = PartResult(error=reason)
            if not stopped and any(not part.reports for part in parts.values()):
                stopped = True
                stop.set()
                team.signed.put(f"stop {order}", None)
                deadline = min(deadline, monotonic() + STOP_SECONDS)
            sleep(POLL_SECONDS)


def _decoded(found: Any, node: Node) -> PartResult:
    try:
        return decode(PartResult, found)
    except StoreError as error:
        return PartResult(error=f"{node.name} sent what is no result: {error}")


def _rank_and_host(trial: TrialSpec, nodes: Sequence[Node], rank: int) -> str:
    """Name of a rank, as in "rank 1 on host1"; if hosts have the same name, "rank 1 on node 1
    (host1)"."""
    node = nodes[trial.hosts[rank]]
    alike = [other for other in nodes if other.hostname == node.hostname]
    return f"rank {rank} on {node.hostname if len(alike) == 1 else node.name}"


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
    done = 0
    for order in count():
        given = team.await_order(order)
        if "end" in given:
            return team.end_of(given, done)
        trial = trial_of(given["trial"])
        if len(trial.nodes) <= team.me.number:
            continue
        assert isinstance(here, HostLauncher)
        stop = threading.Event()
        with team.stopping(order, stop):
            result = run_own_part(team, here, trial, order, limit_seconds, stop)
        team.call(team.signed.put, f"result {order} {team.me.number}", encode(result))
        done += bool(result.reports)
        if not (result.reports or all(trace.done or trace.aborted for trace in result.traces)):
            say(f"{trial.label} failed; what the ranks here have written is in {here.logs}")
    raise AssertionError("orders have no end")
