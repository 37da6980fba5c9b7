"""The command as a user runs it; slow ones with real ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from dpbench import store
from dpbench.cli.app import run
from dpbench.cli.sweep_run import exit_status
from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.records import Status, TrialRecord
from dpbench.sweep import plan
from dpbench.sweep import run as run_trials
from tests.builders import sweep_spec
from tests.cli.command import dpbench, start

JSON_KEYS = {
    "implementation",
    "backend",
    "group_size",
    "batch_size",
    "global_batch_size",
    "images_per_second",
    "images_per_second_low",
    "images_per_second_high",
    "speedup",
    "absolute_speedup",
    "efficiency",
    "exposed_communication_seconds",
    "loss_delta_per_step",
    "loss_delta_per_second",
    "final_loss",
    "peak_memory_bytes",
    "step_seconds_p50",
    "step_seconds_p95",
    "repetitions",
    "timed_steps",
    "status",
    "reason",
    "verified",
}
TWO = ["--gpus", "2", "--oversubscribe"]
QUICK = ["--arch", "mlp", "--batch-sizes", "4", "--steps", "3", "--warmup", "1"]
SLOW_STEPS = ["--arch", "tests.launch.faulty:TakesLong", *QUICK[2:]]


@pytest.mark.slow
def test_the_main_job_prints_a_row_per_configuration_and_keeps_everything(tmp_path: Path) -> None:
    finished = dpbench(
        "sweep", "--backends", "gloo,nccl", *QUICK, *TWO, "--name", "main", cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stderr
    for header in ("Implementation", "Backend", "Group", "Batch", "Images/s", "Speedup", "Status"):
        assert header in finished.stdout
    folder = tmp_path / "results/main"
    stored = store.load(folder)
    assert len(stored.records) == 3 * (1 + 2 + 4)
    skipped = [record for record in stored.records if record.status is Status.SKIPPED]
    assert {record.trial.backend for record in skipped} == {"nccl"}
    assert all(record.reason for record in skipped)
    assert {record.status for record in stored.records} == {Status.COMPLETED, Status.SKIPPED}
    assert all(r.verification and r.verification.passed for r in stored.records if r.ranks)
    assert (folder / "report/table.md").exists()
    assert len(list((folder / "report/charts").glob("*.svg"))) == 3  # one batch size only
    assert stored.environments
    assert finished.stderr.count("2 CPU replicas") == 1
    assert not (folder / "logs").exists()


@pytest.mark.slow
def test_json_rows_are_alone_on_stdout(tmp_path: Path) -> None:
    finished = dpbench("sweep", *QUICK, *TWO, "--repetitions", "2", "--json", cwd=tmp_path)
    rows = json.loads(finished.stdout)
    assert len(rows) == 5
    for row in rows:
        assert set(row) >= JSON_KEYS
        assert row["status"] == "completed"
        assert row["verified"] is True
        assert row["repetitions"] == 2
        assert row["images_per_second_low"] < row["images_per_second"]
    assert "[10/10]" in finished.stderr


@pytest.mark.slow
def test_a_failing_row_does_not_stop_the_others(tmp_path: Path) -> None:
    arguments = ["--arch", "tests.launch.faulty:Killed", "--implementations", "ddp"]
    finished = dpbench(
        "sweep", *arguments, "--repetitions", "1", "--batch-sizes", "4,8", *TWO, cwd=tmp_path
    )
    assert finished.returncode == 1
    assert finished.stdout.count("failed") >= 6
    assert "was killed by SIGKILL" in finished.stdout
    assert "Traceback" not in finished.stderr


@pytest.mark.slow
def test_wrong_gradients_are_exit_status_6_and_never_a_speed(tmp_path: Path) -> None:
    arguments = ["--arch", "tests.launch.faulty:DependsOnItsShard", "--implementations", "ddp"]
    finished = dpbench("sweep", *arguments, *QUICK[2:], *TWO, "--json", cwd=tmp_path)
    assert finished.returncode == 6
    rows = {(row["implementation"], row["group_size"]): row for row in json.loads(finished.stdout)}
    wrong = rows["ddp", 2]
    assert (wrong["status"], wrong["verified"]) == ("wrong_gradients", False)
    assert wrong["images_per_second"] is None
    assert rows["ddp", 1]["status"] == "completed"


def wait_for_records(folder: Path, count: int) -> None:
    path = folder / store.TRIALS_FILE
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not alive


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [True, False], ids=["as-from-a-terminal", "as-from-kill"])
def test_ctrl_c_keeps_what_was_measured_and_resume_finishes_the_rest(
    tmp_path: Path, whole_group: bool
) -> None:
    arguments = [*SLOW_STEPS, "--repetitions", "1", "--implementations", "ddp", *TWO]
    running = start("sweep", *arguments, "--name", "cut", cwd=tmp_path)
    folder = tmp_path / "results/cut"
    wait_for_records(folder, 1)
    time.sleep(1.0)  # into the next trial
    processes = psutil.Process(running.pid).children(recursive=True)
    if whole_group:
        os.killpg(running.pid, signal.SIGINT)
    else:
        os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted: 1 of 3 trials are stored" in err
    assert "Traceback" not in err
    assert gone(processes)
    first = (folder / store.TRIALS_FILE).read_bytes()
    finished = dpbench("sweep", *arguments, "--name", "cut", "--resume", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "resuming: 1 of 3 trials are stored" in finished.stderr
    assert (folder / store.TRIALS_FILE).read_bytes().startswith(first)
    identifiers = [record.trial.trial_id for record in store.load(folder).records]
    assert len(identifiers) == len(set(identifiers)) == 3


@pytest.mark.slow
def test_a_killed_sweep_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    arguments = [*SLOW_STEPS, "--repetitions", "1", "--implementations", "ddp", *TWO]
    running = start("sweep", *arguments, "--name", "cut", cwd=tmp_path)
    folder = tmp_path / "results/cut"
    wait_for_records(folder, 1)
    time.sleep(1.0)
    processes = psutil.Process(running.pid).children(recursive=True)
    assert processes
    running.kill()
    running.communicate(timeout=20)
    assert gone(processes)
    assert len(store.load(folder).records) == 1
    finished = dpbench("sweep", *arguments, "--name", "cut", "--resume", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert len(store.load(folder).records) == 3


def test_resuming_a_finished_sweep_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["sweep", "--name", "n", "--batch-sizes", "4", "--synthetic-launcher", "--quiet"]
    assert run(arguments) == 0
    before = (tmp_path / "results/n/trials.jsonl").read_bytes()
    assert run([*arguments, "--resume"]) == 0
    assert (tmp_path / "results/n/trials.jsonl").read_bytes() == before


def test_a_dry_run_prints_the_plan_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", "--gpus", "1", "--dry-run", "--synthetic-launcher"]) == 0
    out = capsys.readouterr().out
    assert "27 trials of 10 + 50 steps" in out
    assert "about " in out
    assert not (tmp_path / "results").exists()


def test_quiet_says_nothing_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", "--gpus", "1", "--synthetic-launcher", "--quiet"]) == 0
    assert "[1/" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    arguments = ["-m", "dpbench", "sweep", "--gpus", "1", "--synthetic-launcher", "-q"]
    from tests.cli.command import environment, sys

    running = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    running.stdout.close()
    _, err = running.communicate(timeout=60)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def records(*statuses: Status) -> list[TrialRecord]:
    from dataclasses import replace

    trials = plan(sweep_spec())[: len(statuses)]
    measured = run_trials(trials, SyntheticLauncher(), environment_id="", time_limit_seconds=1)
    pairs = zip(measured, statuses, strict=True)
    return [replace(record, status=status) for record, status in pairs]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([Status.COMPLETED, Status.SKIPPED], 0),
        ([Status.SKIPPED], 1),
        ([Status.COMPLETED, Status.FAILED], 1),
        ([Status.COMPLETED, Status.TIMED_OUT], 1),
        ([Status.COMPLETED, Status.OUT_OF_MEMORY], 1),
        ([Status.COMPLETED, Status.DIVERGED], 1),
        ([Status.WRONG_GRADIENTS, Status.FAILED], 6),
        ([], 1),
    ],
)
def test_the_exit_status_says_the_worst(statuses: list[Status], expected: int) -> None:
    assert exit_status(records(*statuses)) == expected
