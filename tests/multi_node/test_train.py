"""A training over two hosts, killed and resumed, ends with the parameters of one that was not."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import pytest

from dpbench.cli.app import run
from tests.multi_node.commands import BUSY_SECONDS, PORT, ended, said, start, statuses
from tests.multi_node.hosts import ADDRESSES, INTERFACE, Host
from tests.waiting import wait_until

pytestmark = pytest.mark.full
TRAIN = (
    *("train", "--arch", "mlp", "--data", "synthetic", "--limit-train", "512", "--epochs", "2"),
    *("--batch-size", "16", "--checkpoint-every", "4", "--threads", "1", "--backend", "gloo"),
    "--json",
)


def training(
    hosts: tuple[Host, Host], *words: str, folder: Path
) -> AbstractContextManager[list[Popen[str]]]:
    """The same training, started on each host with a rank of its own."""
    meeting = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint")
    return ended(
        start(
            host,
            *("launch", *meeting, f"{ADDRESSES[0]}:{PORT}", "--node-rank", str(host.number)),
            *("--local-addr", host.address, "-m", "dpbench", *TRAIN, "--runs-dir", str(folder)),
            *words,
            folder=folder,
        )
        for host in hosts
    )


def result(text: str) -> dict[str, object]:
    """The last line that is JSON."""
    found: dict[str, object] = json.loads([x for x in text.splitlines() if x[:1] == "{"][-1])
    return found


@pytest.mark.timeout(3 * BUSY_SECONDS)
def test_a_training_that_lost_a_host_ends_as_one_that_did_not(
    hosts: tuple[Host, Host], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = ("--gpus", "2", "--oversubscribe", "--name", "alone", "--runs-dir", str(tmp_path))
    assert run([*TRAIN, *alone]) == 0
    expected = result(capsys.readouterr().out)

    checkpoints = tmp_path / "run" / "checkpoints"
    with training(hosts, "--name", "run", folder=tmp_path) as commands:
        wait_until(lambda: any(checkpoints.glob("step-*")), BUSY_SECONDS)
        hosts[1].kill_everything()
        assert statuses(commands) == [1, -9]
    survivor = said(tmp_path, 0)
    assert f"gloo connects by {INTERFACE}" in survivor
    assert "another rank has ended: " in survivor
    assert "first cause" in survivor
    assert "Traceback" not in survivor

    with training(hosts, "--name", "run", "--resume", "auto", folder=tmp_path) as commands:
        assert statuses(commands) == [0, 0]
    assert "resuming from" in said(tmp_path, 0)
    found = result(said(tmp_path, 0))
    assert found["state_sha256"] == expected["state_sha256"]
    assert found["steps"] == 32
