"""The command with real ranks, and the command with none.

Only what a process of its own can show starts one: interpreter and server import torch for seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess, Popen

import psutil
import pytest

from dpbench import store
from dpbench.cli.app import run
from dpbench.launch.launcher import TrialOutcome
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep.grid import plan_trials, run_trials
from dpbench.run.sweep.preparation import exit_status
from dpbench.specs import TrialSpec
from tests.builders import sweep_spec
from tests.cli.command import dpbench, start
from tests.launch.synthetic import SyntheticLauncher

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
    "loss_slope_per_second",
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
QUICK = ["--arch", "mlp:width=64", "--batch-sizes", "4", "--steps", "3", "--warmup", "1"]
THREE_TRIALS = [
    *("--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp", *QUICK[2:], *TWO),
    *("--repetitions", "1", "--name", "cut"),
    "--no-charts",
]


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompletedProcess[str], Path]:
    """What the command printed, and the folder that it left."""
    here = tmp_path_factory.mktemp("main")
    options = ["--repetitions", "2", "--name", "main", "--json"]
    options += ["--implementations", "dp,ddp", "--backends", "gloo,nccl"]
    finished = dpbench("sweep", *QUICK, *TWO, *options, cwd=here)
    assert finished.returncode == 0, finished.stderr
    return finished, here / "results/main"


@pytest.mark.slow
def test_the_main_job_measures_every_configuration_and_keeps_everything(
    main_job: tuple[CompletedProcess[str], Path],
) -> None:
    finished, folder = main_job
    stored = store.load(folder)
    assert len(stored.records) == 2 * (1 + 2 + 4)
    skipped = [record for record in stored.records if record.status is Status.SKIPPED]
    assert {record.trial.backend for record in skipped} == {"nccl"}
    assert all(record.reason for record in skipped)
    assert {record.status for record in stored.records} == {Status.COMPLETED, Status.SKIPPED}
    proofs = [r.verification for r in stored.records if r.ranks and r.trial.repetition == 0]
    assert all(proof and proof.passed for proof in proofs)
    table = (folder / "report/table.txt").read_text()
    for header in ("Implementation", "Backend", "Group", "Images/s", "Speedup"):
        assert header in table
    assert "All 5 rows: batch 4" in table
    assert (folder / "report/table.md").exists()
    assert (folder / "report/charts/throughput.svg").exists()
    assert stored.environments
    assert finished.stderr.count("2 CPU replicas") == 1
    assert "[10/10]" in finished.stderr
    assert not (folder / "logs").exists()


@pytest.mark.slow
def test_json_rows_are_alone_on_stdout(main_job: tuple[CompletedProcess[str], Path]) -> None:
    rows = json.loads(main_job[0].stdout)
    assert all(set(row) >= JSON_KEYS for row in rows)
    measured = [row for row in rows if row["backend"] != "nccl"]
    assert (len(rows), len(measured)) == (7, 5)
    for row in measured:
        assert row["status"] == "completed"
        assert row["verified"] is True
        assert row["repetitions"] == 2
        assert row["images_per_second_low"] < row["images_per_second"]


@pytest.mark.slow
def test_a_failing_row_does_not_stop_the_others(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--arch", "tests.launch.faulty:Killed", "--implementations", "ddp", *QUICK[2:]]
    assert run(["sweep", *arguments, "--repetitions", "1", *TWO, "--no-charts"]) == 1
    out, err = capfd.readouterr()
    assert out.count("failed") >= 3
    assert "was killed by SIGKILL" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_wrong_gradients_are_exit_status_6_and_never_a_speed(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--arch", "tests.launch.faulty:DependsOnItsRank", "--implementations", "ddp"]
    arguments.append("--no-charts")
    assert run(["sweep", *arguments, *QUICK[2:], *TWO, "--repetitions", "1", "--json"]) == 6
    rows = json.loads(capfd.readouterr().out)
    by_size = {(row["implementation"], row["group_size"]): row for row in rows}
    wrong = by_size["ddp", 2]
    assert (wrong["status"], wrong["verified"]) == ("wrong_gradients", False)
    assert wrong["images_per_second"] is None
    assert by_size["ddp", 1]["status"] == "completed"


def wait_for_records(folder: Path, count: int) -> None:
    path = folder / store.TRIALS_FILE
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_the_second_trial(here: Path) -> tuple[Popen[str], list[psutil.Process]]:
    """The command within its second trial of three, and the processes that it has started."""
    running = start("sweep", *THREE_TRIALS, cwd=here)
    wait_for_records(here / "results/cut", 1)
    time.sleep(0.5)
    return running, psutil.Process(running.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not alive


@pytest.mark.slow
def test_an_interrupt_of_the_command_alone_ends_its_ranks_too(here: Path) -> None:
    running, processes = in_the_second_trial(here)
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted: 1 of 3 trials are stored" in err
    assert gone(processes)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_resume_finishes_the_rest(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running, processes = in_the_second_trial(here)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted: 1 of 3 trials are stored" in err
    assert "Traceback" not in err
    assert gone(processes)
    trials = here / "results/cut" / store.TRIALS_FILE
    first = trials.read_bytes()
    assert run(["sweep", *THREE_TRIALS, "--resume"]) == 0
    assert "resuming: 1 of 3 trials are stored" in capfd.readouterr().err
    assert trials.read_bytes().startswith(first)
    identifiers = [record.trial.trial_id for record in store.load(trials.parent).records]
    assert len(identifiers) == len(set(identifiers)) == 3


@pytest.mark.slow
def test_a_killed_sweep_loses_nothing_and_leaves_no_process(here: Path) -> None:
    running, processes = in_the_second_trial(here)
    assert processes
    running.kill()
    running.communicate(timeout=20)
    assert gone(processes)
    assert len(store.load(here / "results/cut").records) == 1
    assert run(["sweep", *THREE_TRIALS, "--resume"]) == 0
    assert len(store.load(here / "results/cut").records) == 3


@pytest.mark.usefixtures("synthetic")
def test_resuming_a_finished_sweep_repeats_nothing(here: Path) -> None:
    arguments = ["sweep", "--name", "n", "--batch-sizes", "4", "--quiet"]
    arguments.append("--no-charts")
    assert run(arguments) == 0
    before = (here / "results/n/trials.jsonl").read_bytes()
    assert run([*arguments, "--resume"]) == 0
    assert (here / "results/n/trials.jsonl").read_bytes() == before


@pytest.mark.usefixtures("synthetic")
def test_another_sweep_is_not_resumed_and_the_differing_options_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--name", "n", "--gpus", "1", "--no-charts"]
    monkeypatch.setattr(sys, "argv", ["dpbench", *arguments])
    assert run([*arguments, "--arch", "mlp", "--steps", "3"]) == 0
    capsys.readouterr()
    others = ["--arch", "mlp,mnist_cnn", "--steps", "3,4", "--data", "synthetic"]
    others += ["--implementations", "ddp"]
    assert run([*arguments, *others, "--resume"]) == 2
    differences = (
        "--arch: mlp -> mlp,mnist_cnn; --steps: 3 -> 3,4; --data: 'digits' -> 'synthetic'; "
        "--implementations: ['dp', 'ddp', 'torch-ddp', 'single', 'independent'] -> ['ddp']"
    )
    said = capsys.readouterr().err
    assert f"holds another sweep ({differences}); to finish it, leave these options out" in said


@pytest.mark.usefixtures("synthetic")
def test_what_another_command_measured_is_not_resumed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--arch", "mlp", "--gpus", "1", "--name", "n"]
    check = ["check", "--against", "torch-ddp", *small]
    monkeypatch.setattr(sys, "argv", ["dpbench", *check])
    assert run([*check, "--quiet"]) == 0
    capsys.readouterr()
    for preset in ([], ["--preset", "quick"]):
        assert run(["sweep", *small, *preset, "--resume"]) == 2
        remedy = "only dpbench sweep can be resumed, and another command made it; choose another"
        assert f"{remedy} --name" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_data_folder_without_effect_is_told_and_hinders_no_resumption(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--name", "n", "--gpus", "1", "--no-charts"]
    arguments += ["--arch", "mlp", "--data-dir", "absent"]
    for more in ([], ["--resume"]):
        assert run([*arguments, *more]) == 0
        assert "--data-dir absent has no effect with --data digits" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_retry_measures_what_failed_again_and_nothing_else(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = SyntheticLauncher.run

    def failing(self: SyntheticLauncher, trial: TrialSpec, limit: float) -> TrialOutcome:
        if trial.implementation == "dp":
            return TrialOutcome(status=Status.FAILED, reason="rank 0 was killed by SIGKILL")
        return original(self, trial, limit)

    arguments = ["sweep", "--name", "n", "--batch-sizes", "4", "--gpus", "1", "--repetitions", "1"]
    arguments += ["--no-charts", "--implementations", "dp,ddp"]
    with monkeypatch.context() as broken:
        broken.setattr(SyntheticLauncher, "run", failing)
        assert run(arguments) == 1
    before = (here / "results/n/trials.jsonl").read_bytes()
    assert run([*arguments, "--resume"]) == 1
    assert run([*arguments, "--resume", "--retry", "timed-out"]) == 1
    assert (here / "results/n/trials.jsonl").read_bytes() == before
    assert run([*arguments, "--resume", "--retry", "timed-out,failed"]) == 0
    assert "--retry: 1 stored trial will be measured again" in capsys.readouterr().err
    records = store.load(here / "results/n").records
    assert (here / "results/n/trials.jsonl").read_bytes().startswith(before)
    assert [r.trial.implementation for r in records[3:]] == ["dp"]
    assert records[-1].status is Status.COMPLETED


@pytest.mark.slow
def test_a_trial_whose_rank_is_killed_is_tried_again_once_and_keeps_the_first_cause(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--batch-sizes", "4", "--steps", "2", "--warmup", "0", *TWO]
    options += ["--repetitions", "1", "--implementations", "ddp", "--no-charts", "--name", "n"]
    assert run(["sweep", "--arch", "tests.launch.faulty:KilledOnce", *options]) == 0
    first, *others = store.load(here / "results/n").records
    cause = "rank 0 was killed by SIGKILL (kill -9, or the kernel for lack of memory)"
    assert (first.status, first.tried_again_after) == (Status.COMPLETED, cause)
    assert [record.tried_again_after for record in others] == [None, None]
    assert f"single ×1, batch 4: {cause}; it is tried once more" in capfd.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_a_dry_run_prints_the_plan_and_stores_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--gpus", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "48 trials of 5 + 20 to 1,000 steps" in out
    assert "about " in out
    assert not (here / "results").exists()


@pytest.mark.usefixtures("synthetic")
def test_a_dry_run_refuses_a_name_that_is_taken_as_the_sweep_would(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", "--gpus", "1", "--name", "taken", "--no-charts"]
    assert run([*arguments, "--dry-run"]) == 0
    assert run(arguments) == 0
    for words in (arguments, [*arguments, "--dry-run"]):
        capsys.readouterr()
        assert run(words) == 2
        assert "results/taken exists already" in capsys.readouterr().err


@pytest.mark.usefixtures("synthetic")
def test_quiet_says_nothing_of_progress(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--gpus", "1", "--quiet", "--no-charts"]) == 0
    assert "[1/" not in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    running = start("--version", cwd=tmp_path)
    assert running.stdout is not None
    running.stdout.close()
    _, err = running.communicate(timeout=60)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def records(*statuses: Status) -> list[TrialRecord]:
    trials = plan_trials(sweep_spec())[: len(statuses)]
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


def test_a_baseline_alone_is_no_answer() -> None:
    (baseline,) = records(Status.COMPLETED)
    assert baseline.trial.implementation == "single"
    assert exit_status([baseline]) == 0
    assert exit_status([baseline], asked=("ddp",)) == 1


@pytest.mark.usefixtures("here")
def test_what_cannot_run_here_is_said_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--arch linear --implementations ddp --backends nccl --group-sizes 1 --gpus 1"
    words = [*f"sweep {options} --batch-sizes 4 --steps 2 --repetitions 1 --no-charts".split()]
    assert run(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("dpbench: --backends nccl: torch was built without nccl (dpbench list")
    assert run([*words, "--backends", "gloo,nccl", "--dry-run"]) == 0
    assert not Path("results").exists()


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


def test_overlap_is_an_axis_and_the_seeds_columns_and_debugging_are_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = dpbench(
        *("sweep", "--implementations", "ddp", "--overlap", "on,off", *QUICK, *TWO, "--debug"),
        *("--columns", "seed", "--group-sizes", "2", "--repetitions", "1"),
        *("--name", "a", "--no-charts"),
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    header, *_ = ended.stdout.splitlines()
    assert header.split(" | ") == ["Backend", "Proc Group", "Batch", "Images/s |"]
    assert "dpbench: --debug: TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO" in ended.stderr
    stored = store.load(tmp_path / "results" / "a")
    (environment,) = stored.environments.values()
    variables = dict(environment.variables)
    assert (variables["NCCL_DEBUG"], variables["TORCH_DISTRIBUTED_DEBUG"]) == ("INFO", "DETAIL")
    pairs = [r for r in stored.records if r.trial.group_size == 2]
    by_overlap = {record.trial.overlap: record for record in pairs}
    assert by_overlap.keys() == {"on", "off"}
    ends = {record.ranks[0].final_checksum for record in pairs}
    assert len(ends) == 1  # identical gradients, so identical parameters
    assert all(record.ranks[0].without_sync is not None for record in pairs)
    assert run(["report", str(tmp_path / "results" / "a"), "--json", "--no-charts"]) == 0
    rows = json.loads(capsys.readouterr().out)
    shown = {r["overlap"]: r["exposed_communication_seconds"] for r in rows if r["group_size"] == 2}
    assert shown.keys() == {"on", "off"}
    assert None not in shown.values()


@pytest.mark.usefixtures("synthetic")
def test_columns_that_are_not_known_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", "--columns", "sed"]) == 2
    assert "'sed'. Did you mean 'seed'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.alone
def test_a_rank_that_is_missing_is_named_with_the_collective_soon_after_the_limit(
    tmp_path: Path,
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    ended = dpbench(
        *("sweep", "--arch", "late.py:Late", *QUICK[2:], *TWO, "--implementations", "ddp"),
        *("--backends", "gloo", "--group-sizes", "2", "--time-limit", "4", "--debug"),
        *("--repetitions", "1", "--name", "a"),
        "--no-charts",
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    (record,) = [
        r for r in store.load(tmp_path / "results" / "a").records if r.trial.group_size == 2
    ]
    assert record.status is Status.TIMED_OUT
    assert record.duration_seconds < 4 + 2
    assert "rank 1 was in loss (late.py:" in (record.reason or "")
    assert "; rank 0 waited in the all-reduce of gradients" in (record.reason or "")
