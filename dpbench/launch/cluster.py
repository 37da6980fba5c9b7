"""Trials whose ranks run on several nodes, which share one TCPStore.

Every node computes the same plan from its own options and from what all nodes report about
themselves. Each keeps one value in the store, its state, which it writes when it changes and once a
second, as a sign of life. The state of node 0 has the number of a trial in that plan, so nothing
that arrives names code, files or settings. The others run their ranks of it, and their states have
the results. A lost node ends the sweep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import units
from dpbench.codec import decode, encode
from dpbench.errors import DpbenchError, Interrupted, UsageError
from dpbench.launch.failures import RankFailure, RanksFailed
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import run_ranks, scratch_folder
from dpbench.launch.signed_store import ARRIVAL_SECONDS, SignedStore
from dpbench.launch.trial_runner import TrialRunner, record_of_ranks
from dpbench.messages import say
from dpbench.records.trial import RankMeasurement, TrialRecord
from dpbench.rendezvous.barrier import POLL_SECONDS, wait_until
from dpbench.rendezvous.placement import Placement, endpoint_text
from dpbench.rendezvous.store import tcp_store
from dpbench.specs import Configuration, plain_label
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS

BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
"""Seconds without a new state after which a node counts as lost."""
STOP_SECONDS = 30.0
"""Seconds that other nodes may take to end their ranks and to say so."""
FAREWELL_SECONDS = 2.0
"""Seconds that node 0, which holds the store, waits for the others to read the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of a sweep, as it describes itself."""

    number: int
    machine: Machine
    devices: tuple[str, ...]
    """Devices for the sweep, in the order in which replicas take them."""
    common: dict[str, str] = field(default_factory=dict)
    """Options, versions and kind of devices that all nodes must have in common, by name."""
    folder: str = ""
    """Name of its folder for the sweep: node 0's has the results, the others' logs."""

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.machine.environment.hostname})"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeState:
    """The state of a node, as the others read it."""

    beat: int = 0
    """How often it has written its state."""
    plan: str = ""
    """Hash of the plan that it has computed; empty until its data are prepared."""
    order: int = 0
    """Number of the last trial that it has ordered, as node 0, or whose ranks have ended here."""
    trial: int | None = None
    """What node 0 orders, by its number in the plan; None if the ranks are to end."""
    measurements: tuple[RankMeasurement, ...] = ()
    """What another node's ranks of the last order have measured; () if some did not complete."""
    failures: tuple[RankFailure, ...] = ()
    """How they failed."""
    end: str | None = None
    """Reason why it leaves: empty if it had nothing more to do, None while it stays."""


class NodeLost(DpbenchError):
    """A node that this one waits for is gone; `reason` says since when or why."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason + remedy)
        self.reason = reason


@contextmanager
def open_cluster(placement: Placement, token: str, this_node: Node) -> Iterator[Cluster]:
    """Wait for all nodes, and leave them at the end of the context.

    `placement` is this process's among all of dpbench, one a node; `token` signs what they say.
    Raises UsageError for a port that is not free or a node with other options, and DpbenchError,
    with the missing nodes, when the time to join is over.
    """
    timeout = timedelta(seconds=ARRIVAL_SECONDS)
    endpoint = endpoint_text(placement.address, placement.port)
    number, count = placement.node, placement.node_count
    try:
        store = PrefixStore("dpbench sweep", tcp_store(placement, "node 0", timeout))
        signed = SignedStore(store, token, "node", member=number, members=count)
        say(f"waiting for all nodes at {endpoint}")
        descriptions = signed.wait_for_members(encode(this_node), ARRIVAL_SECONDS)
        nodes = tuple(decode(Node, description) for description in descriptions)
    except RuntimeError as error:  # of torch
        raise DpbenchError(f"the store at {endpoint} cannot be used: {error}") from None
    cluster, end = Cluster(placement, nodes, signed), ""
    try:
        require_common(nodes, this_node)
        yield cluster
    except BaseException as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, Interrupted | NodeLost):  # each node has a remedy of its own
            reason = error.reason if isinstance(error, NodeLost) else "interrupted"
        end = f"it ended: {reason}"
        raise
    finally:
        cluster.leave(end)


def require_common(nodes: Sequence[Node], this_node: Node) -> None:
    """Raise UsageError if another node has other options or versions than this one."""
    for node in nodes:
        values = {
            name: [other.common.get(name, "unset") for other in (node, this_node)]
            for name in {**node.common, **this_node.common}
        }
        differ = [f"{name} {a} and {b}" for name, (a, b) in values.items() if a != b]
        if differ:
            raise UsageError(
                f"{node.name} and {this_node.name} differ in {'; '.join(differ)}; expected the "
                "same options and versions on all nodes"
            )


class Cluster:
    """The nodes of a sweep, and the states of those that this one needs.

    One thread uses the store, and nobody else does: over a cut link its calls would never return.
    """

    def __init__(self, placement: Placement, nodes: tuple[Node, ...], store: SignedStore) -> None:
        self.placement = placement
        self.nodes = nodes
        self.this_node = nodes[placement.node]
        self.launch_id = store.launch_id
        self._store = store
        self._state = NodeState()
        # The others watch node 0, which they need, and node 0 watches all.
        watched = range(1, len(nodes)) if self.this_node.number == 0 else (0,)
        self._watched = {number: (NodeState(), monotonic()) for number in watched}
        """The last state of each node that this one watches, and when it arrived."""
        self._leaving = False
        self._trouble = ""
        """Why the store cannot be used, or not for the state of this node."""
        self._thread = threading.Thread(target=self._serve, name="nodes", daemon=True)
        self._thread.start()

    def state(self, number: int) -> NodeState:
        """The last state of another node that has arrived; raises NodeLost. It never waits."""
        state, arrived = self._watched[number]
        is_silent = monotonic() - arrived > LOST_SECONDS
        silence = f"no sign of life for {units.seconds(LOST_SECONDS)}" if is_silent else ""
        if reason := (self._trouble or silence if state.end is None else state.end):
            raise NodeLost(f"{self.nodes[number].name} was lost: {reason}")
        return state

    def set_state(self, **changes: Any) -> None:
        """Change the state of this node; does not wait for others to see it."""
        self._state = replace(self._state, **changes)

    def agree_on_plan(self, plan: str) -> None:
        """Say that this node has prepared its data and has a plan with that hash, and wait until
        node 0, or on node 0 all others, have one.

        Raises NodeLost, and UsageError for a node with another plan.
        """
        self.set_state(plan=plan)
        wait_until(lambda: all(self.state(number).plan for number in self._watched))
        for number in self._watched:
            if self.state(number).plan != plan:
                raise UsageError(
                    f"{self.nodes[number].name} and {self.this_node.name} have different plans: a "
                    "file that they read is not the same; expected the same files on all nodes"
                )

    def leave(self, end: str) -> None:
        """Say why this node ends, and stop; `end` is empty if there is nothing more to do."""
        # The ranks' results may be what is too large to send.
        self.set_state(end=end, measurements=(), failures=())
        if self.this_node.number == 0:
            watched = self._watched.values
            wait_until(lambda: all(s.end is not None for s, _ in watched()), FAREWELL_SECONDS)
        self._leaving = True
        self._thread.join(BEAT_SECONDS)  # a thread in torch's code must not outlive Python's

    def _serve(self) -> None:
        """Write this node's state and read those of others, until the node leaves."""
        next_beat, written, beat, leaving = 0.0, None, 0, False
        while not leaving:
            leaving, state = self._leaving, self._state
            try:
                if state != written or monotonic() >= next_beat:
                    written, beat, next_beat = state, beat + 1, monotonic() + BEAT_SECONDS
                    value = encode(replace(state, beat=beat))
                    self._store.put(f"state {self.this_node.number}", value)
                for number, (last, _) in self._watched.items():
                    value = self._store.get(f"state {number}")
                    found = NodeState() if value is None else decode(NodeState, value)
                    if found.beat > last.beat:
                        self._watched[number] = found, monotonic()
            # The connection broke, the state is too large, or another version speaks.
            except (RuntimeError, DpbenchError) as error:
                self._trouble = str(error).partition("\n")[0]
            sleep(POLL_SECONDS)


class ClusterRunner(TrialRunner):
    """Runs the trials of a plan that all nodes have: node 0 orders those of several nodes, and each
    node runs its ranks of them.

    `replicas_by_node` of a trial is the number of replicas on each node, beginning with node 0.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Sequence[tuple[Configuration, int]],
        logs: Path,
        prepared: Path | None = None,
    ) -> None:
        super().__init__(cluster.this_node.machine, logs, prepared)
        self.machines = tuple(node.machine for node in cluster.nodes)
        self._cluster = cluster
        self._plan = plan
        self._order = 0

    def unusable_reason(self, configuration: Configuration) -> str | None:
        if configuration.node_count == 1:
            return super().unusable_reason(configuration)
        nodes, name = f"{configuration.node_count} nodes", configuration.implementation
        if IMPLEMENTATIONS[name].one_process:
            return f"{name} drives its replicas from one process, not on {nodes}"
        backend = BACKENDS.get(configuration.backend)
        if backend is not None and backend.one_host:
            return f"{configuration.backend} is for the ranks of one node, and these are on {nodes}"
        for node in self._cluster.nodes[: configuration.node_count]:
            devices = tuple(
                device for number, device in configuration.node_devices if number == node.number
            )
            if reason := node.machine.unusable_reason(replace(configuration, devices=devices)):
                return f"{node.name}: {reason}"
        return None

    def run(
        self, configuration: Configuration, repetition: int, time_limit_seconds: float
    ) -> TrialRecord:
        """Run the trial as node 0. Raises NodeLost."""
        if configuration.node_count == 1:
            return super().run(configuration, repetition, time_limit_seconds)
        cluster = self._cluster
        self._order += 1
        # An order names a trial of the plan, so this one must be of it. Over several nodes no
        # trial fills a window, whose repetitions get the number of steps that the first chose.
        number = self._plan.index((configuration, repetition))
        cluster.set_state(order=self._order, trial=number)

        def ended() -> list[NodeState]:
            """The states of the other nodes whose ranks have ended."""
            states = map(cluster.state, range(1, configuration.node_count))
            return [state for state in states if state.order == self._order]

        def some_failed() -> bool:
            return not all(state.measurements for state in ended())

        ranks, failures = self._run_here(number, time_limit_seconds, some_failed)

        def all_ended() -> bool:
            if not ranks or some_failed():
                cluster.set_state(trial=None)  # the first failure stops all
            return len(ended()) == configuration.node_count - 1

        # Ranks of a completed trial end together, and those of a failed one when they are stopped.
        if not wait_until(all_ended, STOP_SECONDS):
            raise NodeLost(f"a node took over {units.seconds(STOP_SECONDS)} to end its ranks")
        for state in ended():
            ranks, failures = ranks + state.measurements, failures + state.failures
        if len(ranks) == configuration.process_count:
            return record_of_ranks(configuration, ranks)
        node_of_rank = [cluster.nodes[number].name for number, _ in configuration.node_devices]
        failed = RanksFailed(
            failures, time_limit_seconds, name=lambda rank: f"rank {rank} on {node_of_rank[rank]}"
        )
        return TrialRecord(configuration=configuration, **failed.outcome)

    def follow(self, time_limit_seconds: float) -> None:
        """Run this node's ranks of all trials that node 0 orders, until it has no more.

        Raises NodeLost where node 0 is lost or has failed.
        """
        cluster, lead = self._cluster, NodeState()

        def has_changed() -> bool:
            """Whether node 0 has ordered another trial, stopped this one, or ended."""
            now = cluster.state(0)
            return (now.order, now.trial, now.end) != (lead.order, lead.trial, lead.end)

        while wait_until(has_changed) and (lead := cluster.state(0)).end is None:
            if lead.order == self._order:  # it was stopped, and its ranks have ended
                continue
            self._order = lead.order
            cluster.set_state(measurements=(), failures=())  # the state is small while ranks run
            if lead.trial is not None:  # else the one that was ordered has failed already
                configuration, _ = self._plan[lead.trial]
                ranks, failures = self._run_here(lead.trial, time_limit_seconds, has_changed)
                cluster.set_state(measurements=ranks, failures=failures)
                if failures:
                    label = plain_label(configuration)
                    say(f"{label} failed; what the ranks here have written is in {self.logs}")
            cluster.set_state(order=self._order)
        say(f"{cluster.nodes[0].name} has no more to run")

    def _run_here(
        self, number: int, time_limit_seconds: float, stop: Callable[[], bool]
    ) -> tuple[tuple[RankMeasurement, ...], tuple[RankFailure, ...]]:
        """What this node's ranks of the ordered trial have measured, or how they failed; both are
        empty where it has none, or all were stopped. Raises what `stop` raises."""
        configuration, repetition = self._plan[number]
        placement, sizes = self._cluster.placement, configuration.replicas_by_node
        if placement.node >= configuration.node_count:
            return (), ()
        first = replace(
            placement,
            rank=sum(sizes[: placement.node]),
            world_size=configuration.process_count,
            local_size=sizes[placement.node],
            node_count=configuration.node_count,
            has_store=True,
            store_prefix=f"{self._cluster.launch_id} {self._order}",
        )
        try:
            with scratch_folder(self.logs, plain_label(configuration)) as scratch:
                measurements = run_ranks(
                    self.rank_function(configuration, repetition),
                    first.local_size,
                    scratch,
                    time_limit_seconds,
                    place=first,
                    stop=stop,
                )
        except RanksFailed as failed:
            return (), failed.failures
        return tuple(measurements), ()
