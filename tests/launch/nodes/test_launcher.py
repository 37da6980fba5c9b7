"""Real trials over two nodes, which are processes of this host: results, first causes, losses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.launcher import NodesLauncher
from dpbench.launch.nodes.node import Node
from dpbench.launch.nodes.team import Team
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec
from tests.builders import WORKLOAD, trial_spec
from tests.launch.nodes.builders import MACHINE, meeting, node
from tests.multi_node.hosts import ROOT

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 60.0


def across(*nodes: int, kind: str = "Healthy", **changes: Any) -> TrialSpec:
    workload = replace(WORKLOAD, architecture=f"tests.launch.faulty:{kind}", dataset="synthetic")
    return trial_spec(workload=workload, group_size=sum(nodes), nodes=nodes, **changes)


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Team, subprocess.Popen[str]]]:
    """This process leads; the other one follows, and leaves what it wrote in `follower.log`."""
    started: list[subprocess.Popen[str]] = []

    def follow(port: int) -> None:
        program = (sys.executable, "-m", "tests.launch.nodes.follower_program")
        with (folder / "follower.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [*program, str(port), str(folder / "host1")],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            )

    try:
        with meeting(follow, join_timeout_seconds=60.0) as team:
            yield team, started[0]
        started[0].wait(timeout=20)
    finally:
        for process in started:
            process.kill()
            process.wait()


def kill_when_ranks_run(process: subprocess.Popen[str], logs: Path) -> Thread:
    def kill() -> None:
        while not any(logs.rglob("rank1.pid")):
            time.sleep(0.05)
        time.sleep(0.5)
        process.kill()

    thread = Thread(target=kill)
    thread.start()
    return thread


def test_trials_over_two_nodes_complete_fail_for_their_first_cause_and_survive_a_loss(
    tmp_path: Path,
) -> None:
    here = ElasticLauncher(MACHINE, prepared=None, logs=tmp_path / "logs")
    with two_nodes(tmp_path) as (team, follower):
        team.prepare("synthetic")
        launcher = NodesLauncher(team, here)

        outcome = launcher.run(across(1, 2), LIMIT_SECONDS)
        assert outcome.status is Status.COMPLETED, outcome.reason
        assert [rank.rank for rank in outcome.ranks] == [0, 1, 2]
        assert len({rank.final_checksum for rank in outcome.ranks}) == 1
        assert outcome.verification is not None
        assert outcome.verification.passed
        assert not (tmp_path / "logs").exists()
        assert not (tmp_path / "host1" / "logs").exists()

        outcome = launcher.run(across(1, 1, kind="Raises"), LIMIT_SECONDS)
        assert outcome.status is Status.FAILED
        assert (outcome.reason or "").startswith("rank 1 on host1 raised ValueError: the loss")

        killing = kill_when_ranks_run(follower, tmp_path / "host1" / "logs")
        trial = across(1, 1, kind="TakesLong", timed_steps=1000)
        outcome = launcher.run(trial, LIMIT_SECONDS)
        killing.join()
        lost = "node 1 (host1) was lost: its connection was closed"
        assert (outcome.status, outcome.reason) == (Status.FAILED, lost)
        assert launcher.unusable_reason(trial) == lost

        alone = replace(across(1), nodes=(), devices=("cpu",))
        assert launcher.unusable_reason(alone) is None
        assert launcher.run(alone, LIMIT_SECONDS).status is Status.COMPLETED
    said = (tmp_path / "follower.log").read_text()
    assert f"failed; what the ranks here have written is in {tmp_path / 'host1'}" in said


def team_of(*nodes: Node) -> Team:
    return cast(Team, SimpleNamespace(nodes=nodes, lost_reason=lambda _: None))


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (across(1, 1), None),
        (across(1, 1, implementation="independent", backend="none"), None),
        (across(1, 1, backend="shm"), "shm goes through the memory of one host, and these repl"),
        (across(1, 1, implementation="dp", backend="threads"), "dp drives its replicas from one"),
        (across(1, 1, backend="nccl"), "node 0 (host0): no CUDA device"),
        (across(1, 1, 1), "needs 3 hosts; this sweep has 2"),
    ],
)
def test_what_cannot_span_hosts_says_why(
    tmp_path: Path, trial: TrialSpec, reason: str | None
) -> None:
    here = cast(ElasticLauncher, None)
    found = NodesLauncher(team_of(node(0), node(1)), here).unusable_reason(trial)
    assert (found is None) == (reason is None)
    assert (found or "").startswith(reason or "")


def test_a_backend_that_one_host_lacks_is_named_with_the_host() -> None:
    gpus = Machine(cores=2, gpus=(), cuda=None, missing_backends=())
    trial = across(1, 1, backend="nccl", devices=("cuda:0", "cuda:0"))
    launcher = NodesLauncher(team_of(node(0, machine=gpus), node(1)), cast(ElasticLauncher, None))
    assert launcher.unusable_reason(trial) == "node 1 (host1): no CUDA device"
