"""Nodes of a sweep in one process, with a store that they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch.distributed import HashStore  # type: ignore[attr-defined]

from dpbench.codec import decode
from dpbench.launch.exchange import Exchange
from dpbench.launch.machine import Machine
from dpbench.launch.nodes import Node, PartResult, Team, follow
from dpbench.launch.trials import HostLauncher
from dpbench.launch.where import NodeRequest
from dpbench.records.environment import capture
from dpbench.specs import TrialSpec
from tests.analysis.builders import trial

CPUS = Machine(cores=2, gpus=(), cuda=None, missing_backends=())
TOKEN = "a-token-of-the-tests"
LIMIT_SECONDS = 20.0


def sleeps(_: int) -> None:
    time.sleep(2 * LIMIT_SECONDS)


class Sleeping(HostLauncher):
    """Starts ranks that take longer than their trial may."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs

    def work(self, trial: TrialSpec) -> Callable[[int], Any]:
        return sleeps


def teams() -> list[Team]:
    store = HashStore()
    nodes = tuple(
        Node(number=number, environment=capture(), machine=CPUS, devices=("cpu",))
        for number in range(2)
    )
    found = []
    for number in range(2):
        exchange = Exchange(store, TOKEN, "node", member=number, members=2)
        exchange.launch = "launch"
        request = NodeRequest(
            node_count=2, node_rank=number, host="127.0.0.1", port=29503, token=TOKEN
        )
        found.append(Team(request, nodes, exchange))
    return found


def test_a_node_ends_its_ranks_when_node_0_stops_the_trial(tmp_path: Path) -> None:
    lead, other = teams()
    across = trial(group_size=2, nodes=(1, 1))
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(
            follow, other, Sleeping(tmp_path), lambda _: across, LIMIT_SECONDS, lambda _: None
        )
        order = lead.order({"trial": 0})
        while not [*tmp_path.glob("*/rank1.stack")]:
            time.sleep(0.05)
        lead.put(f"stop {order}", {})
        result = decode(PartResult, lead.wait(f"result {order} 1", 1))
        lead.leave(None)
        assert "has no more to run" in following.result()
        other.leave(None)
    (trace,) = result.traces
    assert (trace.rank, trace.aborted, trace.overdue) == (1, True, False)
