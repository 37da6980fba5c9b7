"""A sweep under torchrun is one sweep, with as many replicas as torchrun started processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench import store
from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.launch.nodes.handshake import VARIABLE
from dpbench.rendezvous.launch_variables import LaunchVariables
from dpbench.run.sweep.nodes import WORLD_OPTIONS, WORLD_VARIABLES, World, take_world
from dpbench.run.sweep.resume import read_options
from tests.builders import sweep_spec
from tests.cli.command import environment

WORLD = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
"""Of the second process on the second node."""
ALONE = World(
    local_rank=0,
    local_size=2,
    node=0,
    nodes=1,
    variables=LaunchVariables(rank=0, world_size=2, address="host0", port=29500),
    environ={},
)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORLD.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("launched")
def test_the_world_is_read_and_forgotten() -> None:
    world = take_world()
    assert world is not None
    assert (world.local_rank, world.local_size, world.node, world.nodes) == (1, 2, 1, 2)
    assert world.variables == LaunchVariables(rank=3, world_size=4, address="host0", port=29500)
    assert not WORLD.keys() & os.environ.keys()
    assert take_world() is None


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("name", sorted({*WORLD_VARIABLES} - {"RANK", "WORLD_SIZE"}))
def test_ranks_of_another_launcher_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.delenv(name)
    assert run(["sweep"]) == 2
    err = capsys.readouterr().err
    assert f"rank 3 of 4, but {name} is not set, as torchrun sets it" in err
    assert "--nnodes and --node-rank" in err


@pytest.mark.usefixtures("launched")
def test_a_variable_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GROUP_RANK", "first")
    assert run(["sweep"]) == 2
    assert "got GROUP_RANK='first', expected an integer" in capsys.readouterr().err


def test_several_nodes_need_a_token_that_the_launcher_does_not_pass_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = replace(ALONE, nodes=2)
    nothing: dict[str, str] = {}
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"2 nodes need a token.*set {VARIABLE} to the same one"):
        several.options(nothing)
    monkeypatch.setattr(World, "_endpoint", lambda _: "host0:4000")
    assert several.options({**nothing, "token_file": "token"})["nnodes"] == "2"
    monkeypatch.setenv(VARIABLE, "a-token-of-the-tests")
    assert several.options(nothing)["rdzv_endpoint"] == "host0:4000"


@pytest.mark.parametrize(("name", "value"), [("nnodes", "2"), ("node_rank", "0"), ("gpus", "3")])
def test_what_the_launcher_says_cannot_be_said_otherwise(name: str, value: str) -> None:
    assert ALONE.options({})["gpus"] == "2"
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
        ALONE.options({name: value})


def test_a_launcher_may_resume_a_sweep_on_another_endpoint(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a-token-of-the-tests")
    monkeypatch.setattr(World, "_endpoint", lambda _: "host0:4000")
    begun = read_options(replace(ALONE, nodes=2, local_size=4).options({"preset": "quick"}))
    store.SweepStore.create(Path("results/a"), sweep_spec(), [], begun.dump()).close()
    monkeypatch.setattr(World, "_endpoint", lambda _: "host0:5000")
    typed = {"name": "a", "resume": True}
    again = read_options(replace(ALONE, nodes=2).options(typed), (*WORLD_OPTIONS, "gpus"))
    assert (again.nnodes, again.rdzv_endpoint, again.gpus) == ("2", "host0:5000", 2)
    assert again.arch == ("mlp",)


@pytest.mark.usefixtures("synthetic")
def test_torchrun_starts_one_sweep(tmp_path: Path) -> None:
    options = (
        "--arch",
        "mlp",
        "--backends",
        "gloo,shm",
        "--repetitions",
        "1",
        "--batch-sizes",
        "8",
    )
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "dpbench", "sweep", "--oversubscribe", "--no-charts"),
            *(*options, "--name", "s", "--quiet"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    stored = store.load(tmp_path / "results" / "s")
    assert stored.spec.group_sizes == (1, 2)
    assert stored.spec.devices == ("cpu", "cpu")
    assert finished.stdout.count("Implementation") == 1
