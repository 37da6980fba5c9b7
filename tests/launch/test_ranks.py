"""Real ranks that really fail, each with its first cause, in time; and who can reach them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from dpbench.launch.failures import RanksFailed
from dpbench.launch.fork_server import server_pid
from dpbench.launch.ranks import run_ranks
from dpbench.launch.trial_runner import TrialRunner
from dpbench.records.trial import Status, TrialRecord
from dpbench.rendezvous.process_group import rank_group
from dpbench.specs import Configuration
from tests.builders import MACHINE, WORKLOAD, configuration
from tests.ports import listening
from tests.waiting import wait_until

LIMIT_SECONDS = 4.0
"""Time for ranks to get to where they hang, on a busy machine too."""


def faulty(kind: str, **changes: object) -> Configuration:
    workload = replace(WORKLOAD, architecture=f"tests.launch.faulty:{kind}", dataset="synthetic")
    return configuration(workload=workload, **changes)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TrialRunner:
    """A runner whose server is warm, so that times are those of the ranks."""
    logs = tmp_path_factory.mktemp("logs")
    runner = TrialRunner(MACHINE, logs)
    assert runner.run(faulty("Healthy"), 0, 60).status is Status.COMPLETED
    return runner


def ended(runner: TrialRunner, settings: Configuration, limit: float = 60) -> TrialRecord:
    outcome = runner.run(settings, 0, limit)
    assert ranks_alive() == []
    return outcome


def ranks_alive() -> list[int]:
    """Grandchildren of this process: the forkserver's children are the ranks."""
    this = psutil.Process()
    return [
        process.pid
        for process in this.children(recursive=True)
        if process.ppid() != this.pid and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize(
    ("kind", "backend", "status", "reason"),
    [
        ("Raises", "gloo", Status.FAILED, "rank 1 raised ValueError: the loss function is broken"),
        ("Exits", "gloo", Status.FAILED, "rank 1 exited with status 7"),
        ("LeavesQuietly", "shm", Status.FAILED, "rank 1 ended without a result"),
        ("Killed", "gloo", Status.FAILED, "rank 1 was killed by SIGKILL"),
        ("Killed", "shm", Status.FAILED, "rank 1 was killed by SIGKILL"),
        ("RunsOutOfMemory", "shm", Status.OUT_OF_MEMORY, "rank 1 ran out of memory: RuntimeError"),
        ("MeetsItsMemoryLimit", "gloo", Status.OUT_OF_MEMORY, "rank 1 ran out of memory"),
        ("Diverges", "gloo", Status.DIVERGED, "the loss is not finite at timed step 1"),
    ],
)
def test_a_rank_that_ends_is_named_before_the_limit(
    runner: TrialRunner, kind: str, backend: str, status: Status, reason: str
) -> None:
    outcome = ended(runner, faulty(kind, backend=backend))
    assert outcome.status is status
    assert (outcome.reason or "").startswith(reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind", "reason"),
    # To a peer on gloo a stopped rank is one that hangs; shm looks closer.
    [
        ("gloo", "Hangs", "rank 1 was in misbehave (faulty.py:"),
        ("shm", "Stops", "rank 1 did not respond"),
    ],
)
def test_a_rank_that_hangs_is_named_soon_after_the_limit(
    runner: TrialRunner, backend: str, kind: str, reason: str
) -> None:
    outcome = ended(runner, faulty(kind, backend=backend), LIMIT_SECONDS)
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason is not None
    assert outcome.reason.startswith("no result after 4 s: ")
    assert reason in outcome.reason


def stops_in_its_answer(_: int) -> bytes:
    def send_half(pipe: socket.socket, content: bytes) -> None:
        pipe.send(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGSTOP)

    setattr(socket.socket, "sendall", send_half)  # noqa: B010
    return bytes(1000)


def test_a_rank_that_stops_in_its_answer_is_named_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match="no result after 3 s: rank 0 did not respond"):
        run_ranks(stops_in_its_answer, 1, tmp_path, 3.0)


def test_a_server_that_is_killed_takes_its_ranks_along(runner: TrialRunner) -> None:
    server, ranks = server_pid(), list[psutil.Process]()

    def kill() -> None:
        deadline = time.monotonic() + 30
        while len(ranks_alive()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks.extend(map(psutil.Process, ranks_alive()))
        os.kill(server, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    outcome = runner.run(faulty("Hangs"), 0, 60)
    killing.join()
    assert outcome.status is Status.FAILED
    assert outcome.killed
    assert "the server that ranks are forked from was killed" in (outcome.reason or "")
    assert len(ranks) == 2
    _, left = psutil.wait_procs(ranks, timeout=30)
    assert not [rank for rank in left if rank.status() != psutil.STATUS_ZOMBIE]
    assert runner.run(faulty("Healthy"), 0, 60).status is Status.COMPLETED


def found(name: str, _: int) -> str | None:
    return os.environ.get(name)


@pytest.mark.usefixtures("runner")
def test_a_rank_has_the_variables_of_the_moment_whenever_the_server_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert run_ranks(partial(found, "NCCL_ALGO"), 1, tmp_path, LIMIT_SECONDS) == ["Ring"]


def test_a_completed_trial_leaves_no_files_and_a_failed_one_its_output(tmp_path: Path) -> None:
    runner = TrialRunner(MACHINE, tmp_path / "logs")
    runner.run(faulty("Healthy"), 0, 60)
    assert list(tmp_path.iterdir()) == []
    trial = faulty("Raises")
    runner.run(trial, 0, 60)
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("ddp-gloo--2,-batch-4-")
    logs = [path.read_text() for path in folder.glob("rank?.stderr")]
    assert any("ValueError: the loss function is broken" in text for text in logs)


LONG_SECONDS = 60.0


def sleeps(_: int) -> None:
    time.sleep(LONG_SECONDS)


@pytest.mark.parametrize("when", ["before the rank is there", "after it"])
def test_an_interrupt_while_ranks_start_leaves_none(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start, read_pid = BaseProcess.start, forkserver.read_signed

    def interrupted_start(process: BaseProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted_read(descriptor: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return read_pid(descriptor)

    if when == "after it":
        monkeypatch.setattr(BaseProcess, "start", interrupted_start)
    else:
        monkeypatch.setattr(forkserver, "read_signed", interrupted_read)
    with pytest.raises(KeyboardInterrupt) as interrupt:  # whose frames may hold the rank's pipe
        run_ranks(sleeps, 1, tmp_path, LONG_SECONDS)
    wait_until(lambda: ranks_alive() == [], seconds=5)
    del interrupt


def seen_by_a_rank(backend: str, launcher: int, rank: int) -> dict[str, object]:
    """What a rank finds open while its group works."""
    before = listening(launcher)
    with rank_group(backend, 2):
        dist.all_reduce(torch.ones(1))
        store = Path(os.environ["DPBENCH_STORE_FILE"])
        return {
            "launcher": before,
            "ranks": listening(os.getpid()),
            "modes": [oct(path.stat().st_mode & 0o077) for path in store.parents[:1]],
            "store": store,
            "started": subprocess.Popen(["sleep", "60"], start_new_session=True).pid,
        }


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_meet_on_loopback_in_a_folder_of_their_own_and_leave_nothing(
    tmp_path: Path, backend: str
) -> None:
    mine = listening(os.getpid())
    found = run_ranks(partial(seen_by_a_rank, backend, os.getpid()), 2, tmp_path, LONG_SECONDS)
    for seen in found:
        assert seen["launcher"] == mine  # no store is served
        assert {address for address, _ in seen["ranks"]} <= {"127.0.0.1", "::1"}
        assert seen["modes"] == ["0o0"]
        assert not seen["store"].exists()  # by now
        assert not psutil.pid_exists(seen["started"])
