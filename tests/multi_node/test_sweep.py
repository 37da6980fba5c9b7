"""One sweep over two hosts: it loses a host, then the link, and is finished with --resume."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dpbench import folders
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import plain_label
from tests.multi_node.commands import BUSY_SECONDS, said, statuses, sweeping
from tests.multi_node.hosts import Host
from tests.waiting import wait_until

pytestmark = pytest.mark.full
SWEEP = (
    *("--arch", "mlp", "--data", "synthetic", "--implementations", "ddp", "--backends", "gloo"),
    *("--batch-sizes", "8", "--group-sizes", "2", "--gpus", "1", "--threads", "1"),
    *("--repetitions", "1", "--warmup", "1", "--steps", "15", "--no-charts", "--name", "s"),
)
GRADIENTS_ARE_FLOWING = 4_000_000
"""Bytes on the link; what nodes say to each other is a few thousand."""
BOUND_SECONDS = 60.0
"""On a busy machine; a collective of its own would wait for half an hour."""
ALONE, ACROSS = "single ×1, batch 8", "ddp/gloo ×2 (1+1 nodes), batch 8"


def latest(folder: Path) -> dict[str, TrialRecord]:
    """The last record of each configuration."""
    return {
        plain_label(record.configuration): record
        for record in folders.load_sweep(folder / "s").records
    }


def wait_for_a_collective(host: Host) -> None:
    before = host.sent_bytes()
    wait_until(lambda: host.sent_bytes() > before + GRADIENTS_ARE_FLOWING, BUSY_SECONDS)


@pytest.mark.timeout(3 * BUSY_SECONDS)
def test_a_sweep_that_lost_a_host_and_its_link_is_finished_with_resume(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    with sweeping(hosts, *SWEEP, folder=tmp_path) as commands:
        wait_for_a_collective(hosts[1])
        hosts[1].kill_everything()
        assert statuses(commands) == [1, -9]
    assert [*latest(tmp_path)] == [ALONE]
    assert latest(tmp_path)[ALONE].status is Status.COMPLETED
    assert "node 1 (host1) was lost: no sign of life for 10 s; to finish, " in said(tmp_path, 0)

    with sweeping(hosts, *SWEEP, "--resume", folder=tmp_path) as commands:
        wait_for_a_collective(hosts[0])
        hosts[0].set_link("down")
        cut = time.monotonic()
        assert statuses(commands) == [1, 1]
    assert time.monotonic() - cut < BOUND_SECONDS
    assert [*latest(tmp_path)] == [ALONE]
    assert "node 1 (host1) was lost: no sign of life for 10 s" in said(tmp_path, 0)
    assert "node 0 (host0) was lost: no sign of life for 10 s" in said(tmp_path, 1)

    hosts[0].set_link("up")
    with sweeping(hosts, *SWEEP, "--resume", folder=tmp_path) as commands:
        assert statuses(commands) == [0, 0]
    whole = folders.load_sweep(tmp_path / "s")
    record = latest(tmp_path)[ACROSS]
    assert record.status is Status.COMPLETED
    assert [rank.timed.samples for rank in record.ranks] == [120, 120]
    names = [whole.environments[one].hostname for one in record.environment_ids]
    assert names == ["host0", "host1"]
    assert [plain_label(record.configuration) for record in whole.records].count(ALONE) == 1
