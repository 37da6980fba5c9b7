"""A sweep over several nodes, as far as one host can tell; tests/multi_node has two."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil
import pytest

from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.launch.exchange import VARIABLE
from dpbench.launch.machine import Machine
from dpbench.launch.nodes import Node
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import recorded_variables
from dpbench.records.trial import Status
from dpbench.run.sweep.measuring import exit_status, lasting
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import SweepSpec
from tests.analysis.builders import record, trial
from tests.analysis.builders import run as completed
from tests.cli.command import start
from tests.cli.stored import HERE
from tests.ports import free_port

SYNTHETIC = ("--arch", "mlp", "--gpus", "1", "--no-charts")
TOKEN = "a-token-of-the-tests"
CPUS = Machine(cores=4, gpus=(), cuda=None, missing_backends=())


def meeting(rank: int, port: int = 29503) -> tuple[str, ...]:
    return ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", f"127.0.0.1:{port}")


def command_told(err: IO[str]) -> list[str]:
    """What node 0 says is to be typed on node 1, as the words of a shell."""
    for line in err:
        if line.startswith("dpbench: on node 1: "):
            return shlex.split(line.removeprefix("dpbench: on node 1: "))
    raise AssertionError("node 0 did not say how to join")


@pytest.mark.usefixtures("synthetic")
@pytest.mark.slow
def test_a_sweep_of_two_nodes_runs_with_the_command_that_node_0_prints(here: Path) -> None:
    """And the token in it is nowhere else: not in arguments of processes, nor in any file."""
    options = (*SYNTHETIC, "--implementations", "ddp", "--batch-sizes", "8", "--name", "s")
    port = free_port()
    lead = start("sweep", *options, *meeting(0, port), cwd=here)
    assert lead.stderr is not None
    variable, *words = command_told(lead.stderr)
    name, _, token = variable.partition("=")
    assert (name, len(token)) == (VARIABLE, 32)
    assert {*words} == {"dpbench", "sweep", *options, *meeting(1, port)}
    follow = start(*words[1:], cwd=here, **{VARIABLE: token})
    listed = [process.cmdline() for process in psutil.process_iter() if is_ours(process, here)]
    _, said_there = follow.communicate(timeout=100)
    out, err = lead.communicate(timeout=100)
    assert (lead.returncode, follow.returncode) == (0, 0), err + said_there
    assert "node 0 (" in said_there
    for text in (out, err, said_there, repr(listed), *contents(here)):
        assert token not in text
    assert any(VARIABLE.encode() not in path.read_bytes() for path in here.rglob("*.json"))


def is_ours(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False


def contents(folder: Path) -> list[str]:
    return [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("synthetic")
@pytest.mark.usefixtures("here")
def test_the_token_is_in_no_configuration_and_no_environment_of_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert run(["sweep", *SYNTHETIC, *meeting(0), "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert VARIABLE not in dict(recorded_variables())


def test_trials_that_a_lost_node_left_over_are_run_again_and_count_as_failure() -> None:
    done, across = completed(trial(), 1.0), trial(group_size=2, nodes=(1, 1))
    lost = record(across, status=Status.SKIPPED, lost_host=1)
    assert lasting([done, lost]) == [done]
    assert lasting([done, lost], {across.configuration}) == [done, lost]
    assert exit_status([done, lost]) == 1
    assert exit_status([done, replace(lost, lost_host=None)]) == 0


def node(machine: Machine, *devices: str) -> Node:
    return Node(number=0, environment=HERE, machine=machine, devices=devices, common={})


def built(*hosts: Node, **options: str) -> SweepSpec:
    parsed = SweepOptions(**{"arch": "mlp", "data": "digits", **options})
    return build_sweep_spec(parsed, hosts, [])


def test_threads_are_those_that_every_host_has() -> None:
    small = replace(CPUS, cores=2)
    spec = built(node(CPUS, "cpu", "cpu"), node(small, "cpu", "cpu"))
    assert (spec.group_sizes, spec.nodes, spec.threads_per_replica) == ((1, 2, 3, 4), (2, 2), 1)
    assert built(node(CPUS, "cpu", "cpu"), node(small, "cpu")).threads_per_replica == 2


def test_a_group_is_no_larger_than_all_hosts_together() -> None:
    hosts = (node(CPUS, "cpu", "cpu"), node(CPUS, "cpu"))
    assert built(*hosts, group_sizes="3").group_sizes == (3,)
    with pytest.raises(UsageError, match=r"4 is above the 3 replicas of all nodes \(2 \+ 1\)"):
        built(*hosts, group_sizes="4")


def test_all_hosts_have_devices_of_one_kind() -> None:
    with pytest.raises(UsageError, match="node 0 has cpu devices and node 1 cuda ones"):
        built(node(CPUS, "cpu"), node(CPUS, "cuda:0"))
