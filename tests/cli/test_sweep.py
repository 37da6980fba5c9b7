"""`dpbench sweep`: a whole one with real ranks, what ends it early, and what it says.

Only what a process of its own can show starts one: interpreter and server import torch for seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
import pytest

from dpbench import folders, units
from dpbench.cli.app import run
from dpbench.launch.machine import Machine
from dpbench.records.environment import Accelerator
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.init import MODEL_TEMPLATE
from dpbench.specs import Configuration
from tests.cli.command import dpbench, start
from tests.launch import synthetic
from tests.launch.synthetic import SyntheticRunner

TWO = ["--gpus", "2", "--oversubscribe"]
STEPS = ["--batch-sizes", "4", "--steps", "3", "--warmup", "1"]
DDP_ON_TWO = [
    *("--implementations", "ddp", "--group-sizes", "2", "--repetitions", "1"),
    *STEPS,
    *TWO,
]
"""Two trials for each value of another axis: the plain module, and ddp on two ranks."""
THREE_TRIALS = [
    *("--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp", *STEPS, *TWO),
    *("--group-sizes", "1,2", "--repetitions", "1", "--name", "cut", "--no-charts"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("signals")
def test_a_sweep_measures_every_configuration_and_keeps_everything(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    axes = ["--arch", "mlp:width=64", "--backends", "gloo,nccl", "--overlap", "on,off"]
    assert run(["sweep", *axes, *DDP_ON_TWO, "--name", "main"]) == 0
    folder = here / "results/main"
    stored = folders.load_sweep(folder)
    by_status = {s: [r for r in stored.records if r.status is s] for s in Status}
    assert len(stored.records) == len(by_status[Status.COMPLETED] + by_status[Status.SKIPPED])
    assert {record.configuration.backend for record in by_status[Status.SKIPPED]} == {"nccl"}
    assert all(record.reason for record in by_status[Status.SKIPPED])
    done = by_status[Status.COMPLETED]
    assert all((found := record.facts.verification) and found.passed for record in done)
    pairs = [record for record in done if record.configuration.implementation == "ddp"]
    assert {record.configuration.overlap for record in pairs} == {"on", "off"}
    assert len({record.ranks[0].final_checksum for record in pairs}) == 1  # the same gradients
    assert 'data-kind="throughput"' in (folder / "report/index.html").read_text()
    shown = capfd.readouterr()
    for header in ("Implementation", "Size", "Images/s", "Speedup"):
        assert header in shown.out
    assert f"[{len(done)}/{len(done)}]" in shown.err
    assert not (folder / "logs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("here", "signals")
def test_a_failing_row_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    """Wrong gradients are exit status 6, and never a speed."""
    both = "tests.launch.faulty:Killed,tests.launch.faulty:DependsOnItsRank"
    assert run(["sweep", "--arch", both, *DDP_ON_TWO, "--no-charts", "--json"]) == 6
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    rows = json.loads(out)
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(failed) == 2
    assert all("was killed by SIGKILL" in row["reason"] for row in failed)
    (wrong,) = (row for row in rows if row["status"] == "wrong_gradients")
    assert (wrong["group_size"], wrong["verified"], wrong["images_per_second"]) == (2, False, None)
    assert sum(row["status"] == "completed" for row in rows) == 1


def in_the_second_trial(here: Path) -> tuple[Popen[str], list[psutil.Process]]:
    """The command within its second trial of three, and the processes that it has started."""
    running = start("sweep", *THREE_TRIALS, cwd=here)
    folder = here / "results/cut"
    deadline = time.monotonic() + 90
    while not stored_trials(folder) or not [*folder.glob("logs/*/rank0.stack")]:
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    return running, psutil.Process(running.pid).children(recursive=True)


def stored_trials(folder: Path) -> int:
    path = folder / folders.TRIALS_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C", marks=pytest.mark.full),
        pytest.param(os.kill, signal.SIGKILL, id="kill -9"),
    ],
)
def test_what_ends_a_sweep_loses_nothing_and_leaves_no_process_and_resume_finishes_it(
    send: Callable[[int, int], None],
    number: signal.Signals,
    here: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    running, processes = in_the_second_trial(here)
    assert processes
    send(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert "Traceback" not in err
    assert not psutil.wait_procs(processes, timeout=30)[1]
    trials = here / "results/cut" / folders.TRIALS_FILE
    first, count = trials.read_bytes(), stored_trials(trials.parent)
    assert 1 <= count < 3
    if number is signal.SIGINT:
        assert running.returncode == 130
        assert f"interrupted: {units.stored(count, 3)}" in err
    else:
        assert running.returncode == -number
    with synthetic.in_use():  # which finishes it at once
        assert run(["sweep", *THREE_TRIALS, "--resume"]) == 0
    assert f"resuming: {units.stored(count, 3)}" in capfd.readouterr().err
    assert trials.read_bytes().startswith(first)
    identifiers = [record.trial_id for record in folders.load_sweep(trials.parent).records]
    assert len(identifiers) == len(set(identifiers)) == 3


@pytest.mark.usefixtures("synthetic")
def test_resuming_runs_what_failed_again_and_nothing_else(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = SyntheticRunner.run

    def failing(self: SyntheticRunner, settings: Configuration, *rest: Any) -> TrialRecord:
        if settings.implementation == "dp":
            reason = "rank 0 was killed by SIGKILL"
            return TrialRecord(configuration=settings, status=Status.FAILED, reason=reason)
        return original(self, settings, *rest)

    arguments = ["sweep", "--name", "n", "--batch-sizes", "4", "--gpus", "1", "--repetitions", "1"]
    arguments += ["--no-charts", "--implementations", "dp,ddp"]
    with monkeypatch.context() as broken:
        broken.setattr(SyntheticRunner, "run", failing)
        assert run(arguments) == 1
    capsys.readouterr()
    assert run([*arguments, "--resume", "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    runs = {row["implementation"]: row["runs"] for row in json.loads(out)}
    assert runs == {"single": 0, "dp": 1, "ddp": 0}
    assert "Resuming: 2 of 3 trials are stored. 1 trial of 5" in err
    # What failed, such as by a time limit, may have more time now.
    assert run([*arguments, "--resume", "--time-limit", "1h"]) == 0
    assert "resuming: 2 of 3 trials are stored" in capsys.readouterr().err
    assert len((here / "results/n/trials.jsonl").read_text().splitlines()) == 4
    records = folders.load_sweep(here / "results/n").records
    assert {record.status for record in records} == {Status.COMPLETED}


@pytest.mark.usefixtures("signals", "synthetic")
def test_a_sweep_is_not_finished_with_other_files(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's file is edited while the sweep runs, and put back in the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    model, original = here / "model.py", SyntheticRunner.run
    model.write_text(MODEL_TEMPLATE.read_text())

    def run_and_edit(
        self: SyntheticRunner, settings: Configuration, repetition: int, limit: float
    ) -> TrialRecord:
        if repetition:
            model.write_text(f"{MODEL_TEMPLATE.read_text()}# edited")
        return original(self, settings, repetition, limit)

    monkeypatch.setattr(SyntheticRunner, "run", run_and_edit)
    words = ["sweep", "--arch", "model.py:make", "--implementations", "ddp", "--gpus", "1"]
    words += [*STEPS, "--repetitions", "2", "--no-charts", "--quiet", "--name", "a"]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "model.py has changed while the sweep ran" in said
    assert "3 of 4 trials are stored in results/a; to finish: " in said
    assert run([*words, "--resume"]) == 2
    assert "--resume: model.py has changed since results/a was begun; " in capsys.readouterr().err
    model.write_text(MODEL_TEMPLATE.read_text())
    assert run([*words, "--resume"]) == 0
    assert len(folders.load_sweep(Path("results/a")).records) == 4


@pytest.mark.usefixtures("here")
def test_what_cannot_run_here_is_said_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--arch linear --implementations dp,ddp --backends nccl --group-sizes 1 --gpus 1"
    words = [*f"sweep {options} --batch-sizes 4 --steps 2 --repetitions 1 --no-charts".split()]
    assert run(words) == 2
    said = capsys.readouterr().err
    nothing = "dpbench: nothing with nccl can be measured here: torch was built without nccl ("
    assert said.splitlines()[-1].startswith(nothing)
    assert run([*words, "--dry-run"]) == 2
    assert capsys.readouterr().err == said
    assert run([*words, "--backends", "gloo,nccl", "--dry-run"]) == 0
    capsys.readouterr()
    assert run([*words, "--backends", "gloo", "--gpus", "999", "--dry-run"]) == 0
    needs = "; the sweep itself needs 999 cores, or --oversubscribe."
    assert needs in " ".join(capsys.readouterr().out.split())
    assert run([*words, "--backends", "gloo", "--threads", "999", "--dry-run"]) == 0
    assert needs in " ".join(capsys.readouterr().out.split())
    assert not Path("results").exists()


@pytest.mark.usefixtures("here")
def test_a_plan_for_more_gpus_than_there_are_skips_no_row_for_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Accelerator(index=0, name="H100", memory_bytes=2**36)
    environment = replace(synthetic.machine().environment, accelerators=(gpu,), cuda="12.8")
    monkeypatch.setattr(
        "dpbench.run.sweep.plan.inspect_machine", lambda: Machine(environment=environment)
    )
    words = ["sweep", "--implementations", "ddp", "--batch-sizes", "4", "--gpus", "2", "--json"]
    words += ["--arch", "mlp", "--group-sizes", "1,2", "--dry-run"]
    assert run(words) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {(row["group_size"], row["runs"]) for row in planned} == {(1, 4), (2, 4)}
    assert run([*words, "--oversubscribe"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {(row["group_size"], row["runs"]) for row in planned} == {(1, 4), (2, 0)}


LATE = """
import os
import time

from dpbench.architectures.mlp import Architecture as Mlp


class Late(Mlp):
    \"\"\"Rank 1 does not come to the second step's reduction.\"\"\"

    steps = 0

    def loss(self, outputs, targets):
        assert os.environ["NCCL_DEBUG"] == "INFO"
        assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
        Late.steps += 1
        if Late.steps > 1 and os.environ.get("RANK") == "1":
            time.sleep(60)
        return super().loss(outputs, targets)
"""


@pytest.mark.alone
def test_a_rank_that_is_missing_is_named_soon_after_the_limit(
    tmp_path: Path,
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    ended = dpbench(
        *("sweep", "--arch", "late.py:Late", *DDP_ON_TWO, "--backends", "gloo"),
        *("--time-limit", "6", "--debug", "--name", "a", "--no-charts"),
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    assert "--debug: TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO" in ended.stderr
    stored = folders.load_sweep(tmp_path / "results" / "a")
    (environment,) = stored.environments.values()
    assert environment.variables["NCCL_DEBUG"] == "INFO"
    (record,) = [r for r in stored.records if r.configuration.group_size == 2]
    assert record.status is Status.TIMED_OUT
    assert record.duration_seconds < 30  # rank 1 sleeps for 60
    assert "rank 1 was in loss (late.py:" in (record.reason or "")
