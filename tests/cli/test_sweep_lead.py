"""A sweep over several nodes, as far as one host can tell; tests/multi_node has two."""

from __future__ import annotations

import json
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.cli.joined_world import free_port
from dpbench.cli.measuring import lasting
from dpbench.cli.sweep import parse_typed, sweep
from dpbench.cli.sweep_run import exit_status
from dpbench.cli.sweep_spec import build
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.records import Status
from dpbench.specs import SweepSpec
from dpbench.store import SweepStore
from tests.analysis.builders import record, trial
from tests.analysis.builders import run as completed
from tests.builders import sweep_spec
from tests.cli.command import start

SYNTHETIC = ("--synthetic-launcher", "--arch", "mlp", "--gpus", "1", "--no-charts")
CPUS = Machine(cores=4, gpus=(), cuda=None, missing_backends=())


def meeting(rank: int, port: int = 29503) -> tuple[str, ...]:
    return ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", f"127.0.0.1:{port}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_plan_waits_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--dry-run", "--json", "--implementations", "ddp", "--batch-sizes", "8")
    assert run(["sweep", *SYNTHETIC, *meeting(0), *arguments]) == 0
    out, err = capsys.readouterr()
    assert "the plan assumes that every node lends 1 replica, as this one does" in err
    nodes = {(row["implementation"], row["group_size"]): row["nodes"] for row in json.loads(out)}
    assert nodes == {("single", 1): [], ("ddp", 1): [], ("ddp", 2): [1, 1]}


@pytest.mark.usefixtures("here")
def test_only_node_0_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", *SYNTHETIC, *meeting(1), "--dry-run"]) == 2
    assert "the plan is made by node 0; expected --node-rank 0" in capsys.readouterr().err


@pytest.mark.slow
def test_nodes_that_were_told_different_things_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port("127.0.0.1")
    other = start("sweep", *SYNTHETIC, *meeting(1, port), "--batch-sizes", "16", cwd=here)
    status = run(["sweep", *SYNTHETIC, *meeting(0, port), "--batch-sizes", "8", "--name", "s"])
    _, said_there = other.communicate(timeout=60)
    assert (status, other.returncode) == (2, 2)
    for text in (capsys.readouterr().err, said_there):
        assert "differs from node 0" in text
        assert "--batch-sizes 16 instead of 8" in text
    assert not (here / "results").exists()


def test_trials_that_a_lost_node_left_over_are_run_again_and_count_as_failure() -> None:
    done, across = completed(trial(), 1.0), trial(group_size=2, nodes=(1, 1))
    lost = record(across, status=Status.SKIPPED, lost_host=1)
    assert lasting([done, lost]) == [done]
    assert exit_status([done, lost]) == 1
    assert exit_status([done, replace(lost, lost_host=None)]) == 0


def test_a_sweep_of_several_nodes_is_no_baseline_to_run_again_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SweepStore.create(here / "s", sweep_spec(nodes=(1, 1)), []).close()
    assert run(["check", "--baseline", "s", "--synthetic-launcher"]) == 2
    assert "that sweep ran on 2 nodes, and here it would run on one" in capsys.readouterr().err


class Lent:
    """A host as `build` sees it."""

    def __init__(self, machine: Machine, *devices: str) -> None:
        self.machine = machine
        self.devices = devices


def built(*hosts: Lent, **options: str) -> SweepSpec:
    defaults = {name: one.default for name, one in signature(sweep).parameters.items()}
    parsed, _, _ = parse_typed({**defaults, "arch": "mlp", "data": "digits", **options})
    return build(parsed, hosts[0].machine, hosts)[0]


def test_threads_are_those_that_every_host_has() -> None:
    small = replace(CPUS, cores=2)
    spec = built(Lent(CPUS, "cpu", "cpu"), Lent(small, "cpu", "cpu"))
    assert (spec.group_sizes, spec.nodes, spec.threads_per_replica) == ((1, 2, 3, 4), (2, 2), 1)
    assert built(Lent(CPUS, "cpu", "cpu"), Lent(small, "cpu")).threads_per_replica == 2


def test_a_group_is_no_larger_than_all_hosts_together() -> None:
    hosts = (Lent(CPUS, "cpu", "cpu"), Lent(CPUS, "cpu"))
    assert built(*hosts, group_sizes="3").group_sizes == (3,)
    with pytest.raises(UsageError, match=r"4 is above the 3 replicas of all nodes \(2 \+ 1\)"):
        built(*hosts, group_sizes="4")


def test_hosts_lend_devices_of_one_kind() -> None:
    with pytest.raises(UsageError, match="node 0 lends cpu devices and node 1 cuda ones"):
        built(Lent(CPUS, "cpu"), Lent(CPUS, "cuda:0"))
