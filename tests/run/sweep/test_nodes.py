"""A process takes its place among the nodes of a sweep from its options, or from its launcher."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench import store
from dpbench.errors import UsageError
from dpbench.launch.exchange import VARIABLE
from dpbench.launch.placement import NodeRequest, Placement
from dpbench.options.sweep import SweepOptions
from dpbench.run.sweep.nodes import parse_nodes
from tests.cli.command import environment

TOKEN = "a-token-of-the-tests"
SRUN = Placement(rank=1, size=2, node=1, nodes=2, address="host0", port=29603, has_store=False)
TYPED = SweepOptions(nnodes=2, node_rank=1, rdzv_endpoint="[::1]:29503")


def place(options: SweepOptions, placed: Placement | None = None) -> dict[str, Any] | None:
    found: NodeRequest | None = parse_nodes(options, placed)
    names = ("node_count", "node_rank", "host", "port", "has_store")
    return None if found is None else {name: getattr(found, name) for name in names}


@pytest.mark.parametrize(
    ("options", "placed", "expected"),
    [
        (SweepOptions(), None, None),
        (SweepOptions(nnodes=1), None, None),
        (SweepOptions(), replace(SRUN, nodes=1, node=0), None),
        (TYPED, None, (2, 1, "::1", 29503, False)),
        (SweepOptions(), SRUN, (2, 1, "host0", 29603, False)),
        (SweepOptions(), replace(SRUN, has_store=True), (2, 1, "host0", 29603, True)),
        (SweepOptions(nnodes=2), replace(SRUN, nodes=None), (2, 1, "host0", 29603, False)),
        (TYPED.model_copy(update={"node_rank": None}), SRUN, (2, 1, "::1", 29503, False)),
    ],
)
def test_options_come_before_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch,
    options: SweepOptions,
    placed: Placement | None,
    expected: tuple[Any, ...] | None,
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    found = place(options, placed)
    assert (None if found is None else tuple(found.values())) == expected


@pytest.mark.parametrize(
    ("options", "placed", "message"),
    [
        (SweepOptions(), replace(SRUN, address=None), "or MASTER_ADDR from a launcher"),
        (SweepOptions(), SRUN, rf"2 nodes need a token .* expected the same {VARIABLE}"),
    ],
)
def test_what_is_missing_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, options: SweepOptions, placed: Placement | None, message: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=message):
        place(options, placed)


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
    stored = store.load(tmp_path / "results" / "s")
    assert stored.spec.group_sizes == (1, 2)
    assert stored.spec.devices == ("cpu", "cpu")
    assert finished.stdout.count("Implementation") == 1
