"""One sweep over two hosts: measured, broken, resumed."""

from __future__ import annotations

import time
from pathlib import Path

from dpbench import store
from dpbench.records import Status, TrialRecord
from tests.multi_node.commands import said, statuses, sweeping, wait_until
from tests.multi_node.hosts import Host

SWEEP = (
    *("--arch", "mlp", "--data", "synthetic", "--implementations", "ddp", "--batch-sizes", "8"),
    *("--gpus", "1", "--threads", "1", "--repetitions", "1", "--warmup", "1", "--no-charts"),
    *("--phases", "0", "--gradient-steps", "0", "--lost-after", "2s", "--name", "s"),
)
GRADIENTS_ARE_FLOWING = 4_000_000
"""Bytes on the link; what nodes say to each other is a few thousand."""
BOUND_SECONDS = 60.0
"""On a busy machine; a collective of its own would wait for half an hour."""


def latest(folder: Path) -> dict[str, TrialRecord]:
    records = store.load(folder / "s").records
    return {record.trial.label: record for record in records}


def wait_for_a_collective(host: Host) -> None:
    before = host.sent_bytes()
    wait_until(lambda: host.sent_bytes() > before + GRADIENTS_ARE_FLOWING)


def test_a_sweep_survives_a_host_and_is_finished_with_resume(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    words = (*SWEEP, "--backends", "gloo,shm", "--steps", "60")
    with sweeping(hosts, *words, folder=tmp_path) as commands:
        wait_for_a_collective(hosts[1])
        hosts[1].kill_everything()
        assert statuses(commands) == [1, -9]
    across, shm = "ddp/gloo ×2 (1+1 hosts), batch 8", "ddp/shm ×2 (1+1 hosts), batch 8"
    broken = latest(tmp_path)
    assert broken[across].status is Status.FAILED
    assert (broken[across].reason or "").startswith("node 1 (host1) was lost: ")
    assert broken[across].lost_host == 1
    assert broken["ddp/gloo ×1, batch 8"].status is Status.COMPLETED
    assert "--resume" in said(tmp_path, 0)

    with sweeping(hosts, *words, "--resume", folder=tmp_path) as commands:
        assert statuses(commands) == [0, 0]
    whole = store.load(tmp_path / "s")
    record = latest(tmp_path)[across]
    assert record.status is Status.COMPLETED
    assert [whole.environments[one].hostname for one in record.environment_ids] == [
        "host0",
        "host1",
    ]
    assert [rank.timed.samples for rank in record.ranks] == [480, 480]
    assert latest(tmp_path)[shm].status is Status.SKIPPED
    assert "shm goes through the memory of one host" in (latest(tmp_path)[shm].reason or "")
    again = [r.trial.label for r in whole.records].count("ddp/gloo ×1, batch 8")
    assert again == 1  # what was stored is not repeated


def test_a_link_that_is_cut_in_a_collective_is_named_in_time(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    words = (*SWEEP, "--backends", "gloo", "--steps", "300")
    with sweeping(hosts, *words, folder=tmp_path) as commands:
        wait_for_a_collective(hosts[0])
        hosts[0].cut_link()
        started = time.monotonic()
        assert statuses(commands) == [1, 1]
    assert time.monotonic() - started < BOUND_SECONDS
    record = latest(tmp_path)["ddp/gloo ×2 (1+1 hosts), batch 8"]
    assert record.status is Status.FAILED
    assert record.reason == "node 1 (host1) was lost: no sign of life for 2 s"
    assert "node 0 (host0) was lost: no sign of life for 2 s" in said(tmp_path, 1)
    assert latest(tmp_path)["ddp/gloo ×1, batch 8"].status is Status.COMPLETED
