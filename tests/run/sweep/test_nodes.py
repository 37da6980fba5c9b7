"""A sweep over several nodes, as far as one host can tell; tests/multi_node has two."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench import folders
from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.launch.signed_store import TOKEN_VARIABLE
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import recorded_variables
from dpbench.rendezvous.placement import Placement
from dpbench.run.sweep.answer import launched_sweep
from dpbench.run.sweep.nodes import node_placement
from tests.cli.command import environment, start
from tests.ports import free_port
from tests.waiting import commands_in

TOKEN = "a-token-of-the-tests"
SRUN = Placement(rank=1, world_size=2, node=1, node_count=2, address="host0", port=29603)
TYPED = SweepOptions(nnodes=2, node_rank=1, rdzv_endpoint="[::1]:29503")


@pytest.mark.parametrize(
    ("options", "placed", "expected"),
    [
        (SweepOptions(), None, None),
        (SweepOptions(nnodes=1), None, None),
        (SweepOptions(), replace(SRUN, node_count=1, node=0), None),
        (TYPED, None, (2, 1, "::1", 29503, False)),
        (SweepOptions(), SRUN, (2, 1, "host0", 29603, False)),
        (SweepOptions(), replace(SRUN, has_store=True), (2, 1, "host0", 29603, True)),
        (TYPED.model_copy(update={"node_rank": None}), SRUN, (2, 1, "::1", 29503, False)),
    ],
)
def test_options_come_before_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch,
    options: SweepOptions,
    placed: Placement | None,
    expected: tuple[Any, ...] | None,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    found = node_placement(options, placed)
    names = ("node_count", "node", "address", "port", "has_store")
    assert (None if found is None else tuple(getattr(found, name) for name in names)) == expected


@pytest.mark.parametrize(
    ("options", "placed", "message"),
    [
        (SweepOptions(), replace(SRUN, address=""), "or MASTER_ADDR from a launcher"),
        (SweepOptions(script="train.py"), SRUN, "train.py on 2 nodes: .* measured on one node"),
        (SweepOptions(), SRUN, rf"2 nodes need a token .* expected the same {TOKEN_VARIABLE}"),
    ],
)
def test_what_is_missing_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, options: SweepOptions, placed: Placement | None, message: str
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=message):
        node_placement(options, placed)


@pytest.mark.usefixtures("synthetic")
def test_torchrun_starts_one_sweep(tmp_path: Path) -> None:
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "dpbench", "sweep", "--oversubscribe", "--no-charts", "--arch", "mlp"),
            *("--backends", "gloo,shm", "--repetitions", "1", "--batch-sizes", "8"),
            *("--name", "s", "--quiet"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    stored = folders.load_sweep(tmp_path / "results" / "s")
    assert stored.spec.group_sizes == (2,)
    assert stored.spec.devices == ("cpu", "cpu")
    assert finished.stdout.count("Implementation") == 1


SYNTHETIC = ("--arch", "mlp", "--gpus", "1", "--no-charts")


def meeting(rank: int, port: int = 29503) -> tuple[str, ...]:
    return ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", f"127.0.0.1:{port}")


@pytest.mark.usefixtures("synthetic")
@pytest.mark.slow
def test_a_sweep_of_two_nodes_runs_and_shows_the_token_nowhere(here: Path) -> None:
    """Not in arguments of processes, nor in any file."""
    options = (*SYNTHETIC, "--implementations", "ddp", "--batch-sizes", "8", "--name", "s")
    port = free_port()
    lead, follow = (
        start("sweep", *options, *meeting(rank, port), cwd=here, **{TOKEN_VARIABLE: TOKEN})
        for rank in range(2)
    )
    listed = commands_in(here)
    _, said_there = follow.communicate(timeout=100)
    out, err = lead.communicate(timeout=100)
    assert (lead.returncode, follow.returncode) == (0, 0), err + said_there
    assert "node 0 (" in said_there
    written = [one.read_text(errors="replace") for one in here.rglob("*") if one.is_file()]
    for text in (out, err, said_there, *listed, *written):
        assert TOKEN not in text
    to_finish = str(folders.load_sweep(here / "results/s").to_finish)
    assert to_finish.startswith("on every node, as before: dpbench sweep ")
    assert " --node-rank N " in to_finish


@pytest.mark.usefixtures("here", "synthetic")
def test_the_token_is_in_no_configuration_and_no_environment_of_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert run(["sweep", *SYNTHETIC, *meeting(0), "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    assert TOKEN_VARIABLE not in recorded_variables()
    with launched_sweep(SweepOptions(arch="mlp", gpus=1, nnodes=1, debug=True)):
        assert TOKEN_VARIABLE not in os.environ
        assert os.environ["NCCL_DEBUG"] == "INFO"
    assert os.environ[TOKEN_VARIABLE] == TOKEN
    assert "NCCL_DEBUG" not in os.environ
