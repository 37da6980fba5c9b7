"""dpbench explain with a training script: what is the script's, and one run from end to end."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dpbench.cli.app import run
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.store import load_sweep
from tests.analysis.builders import weak_sweep
from tests.analysis.diagnosis.scripts import script_sweep
from tests.cli.command import dpbench, start
from tests.cli.stored import stored
from tests.launch import training_script
from tests.waiting import wait_until

SCRIPT = Path(training_script.__file__)


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str, ...]:
    """The script and its arguments, as the command line has them."""
    found: list[tuple[str, ...]] = []

    def measure(options: SweepOptions, *_: object, **_more: object) -> None:
        found.append(options.script_words)
        raise KeyboardInterrupt

    for module in ("measuring", "job"):  # the first takes the function from the second as it loads
        monkeypatch.setattr(f"dpbench.run.sweep.{module}.planned", measure)
    assert run([*words]) == 130
    return found[0]


@pytest.mark.parametrize("command", ["explain", "sweep"])
@pytest.mark.parametrize(
    "rest",
    [[], ["--epochs", "1"], ["--ep", "1", "--help"], ["--", "--gpus", "3"], ["-m", "x", "-q"]],
)
def test_everything_after_the_script_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch, command: str, rest: list[str]
) -> None:
    options = (command, "--gpus", "2", "-q")
    assert parsed(monkeypatch, *options, "train.py", *rest) == ("train.py", *rest)
    assert parsed(monkeypatch, *options, "-m", "pkg.train", *rest) == ("-m", "pkg.train", *rest)


def test_options_of_dpbench_after_the_script_are_refused_unless_they_are_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "-q", "train.py", "--gpus", "2", "--lr", "1", "--dry-run"]) == 2
    assert (
        "--gpus, --dry-run stand after train.py, where the script's own options are; put dpbench's "
        "options before it, or -- if it is the script that has --gpus"
    ) in capsys.readouterr().err
    assert parsed(monkeypatch, "sweep", "--", "train.py", "--gpus", "2")[1:] == ("--gpus", "2")
    own = SweepOptions(script="train.py", arguments=("--gpus=2",), repetitions=1)
    assert own.words() == ["--repetitions", "1", "--", "train.py", "--gpus=2"]


def test_what_a_script_does_wrong_is_said_even_where_its_speed_is_too_noisy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = [
        one
        for number in range(4)
        for one in script_sweep(number, single=0.01 * 4**number, finds_unused=True)
    ]
    folder = stored(tmp_path / "demo", noisy)
    assert run(["explain", str(folder)]) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("No efficiency: ")
    assert "search for unused parameters in every step" in said


@pytest.mark.parametrize(
    ("growth", "command"),
    [
        (1, "sweep --group-sizes max --find-unused auto,off --gpus 2 train.py --lr 1"),
        (4, "explain --gpus 2 --repetitions 67 train.py --lr 1"),
    ],
)
def test_the_next_command_measures_the_remedy_or_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    growth: int,
    command: str,
) -> None:
    records = [
        one
        for number in range(4)
        for one in script_sweep(number, single=0.01 * growth**number, finds_unused=True)
    ]
    folder = stored(tmp_path / "demo", records)
    monkeypatch.setattr("dpbench.run.sweep.measuring.measure_sweep", lambda *_: load_sweep(folder))
    words = ("--gpus", "2", "--quiet", "--name", "demo", "train.py", "--lr", "1")
    assert run(["explain", *words]) == (0 if growth == 1 else 4)
    assert capsys.readouterr().out.endswith(f"\n\nNext: dpbench {command}\n")


def test_a_results_folder_takes_its_options_in_any_place(tmp_path: Path) -> None:
    folder = stored(tmp_path / "demo", [one for i in range(3) for one in weak_sweep(i)])
    assert run(["explain", str(folder), "--group-sizes", "2"]) == 0


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_slow_input_pipeline_is_found_in_an_unchanged_script(tmp_path: Path) -> None:
    options = ("explain", "--gpus", "2", "--repetitions", "3", "--name", "own", "--json")
    script = (str(SCRIPT), "--fault", "slow-samples")
    done = dpbench(*options, *script, cwd=tmp_path, timeout=180)
    assert done.returncode in (0, 4), done.stderr  # 4 on a machine that is busy
    (group,) = (
        one
        for one in json.loads(done.stdout)["configurations"]
        if one["implementation"] == "script"
    )
    (share,) = (one["share_of_step"] for one in group["advice"] if one["kind"] == "input pipeline")
    assert share > 0.5
    records = load_sweep(tmp_path / "results" / "own").records
    assert [record.trial.implementation for record in records] == [
        *("script", "independent", "single"),
        *("single", "independent", "script"),
        *("script", "independent", "single"),
    ]
    again = dpbench("explain", "results/own", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert "script" in dpbench("report", "results/own", cwd=tmp_path).stdout


@pytest.mark.full
def test_a_script_that_fails_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    done = dpbench("explain", "--gpus", "2", "-q", str(SCRIPT), "--fault", "raise", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dpbench: training_script.py: rank 1 raised ValueError: the loss is a")
    words = ("sweep", "--gpus", "2", "--repetitions", "3", "--no-charts", "--name", "own")
    swept = dpbench(*words, str(SCRIPT), "--fault", "raise", cwd=tmp_path)
    assert swept.returncode == 1
    assert swept.stderr.count("repetition") == 1
    assert "the output of trials that failed is in results/own/logs" in swept.stderr


@pytest.mark.full
def test_a_sweep_gives_the_script_each_value_and_is_resumed_and_compared(tmp_path: Path) -> None:
    words = (
        *("sweep", "--gpus", "2", "--group-sizes", "2", "--implementations", "script,ddp"),
        *("--backends", "shm", "--batch-sizes", "8,16", "--steps", "10", "--repetitions", "1"),
        *("--oversubscribe", "--no-charts", "--name", "own"),
    )
    script = (str(SCRIPT), "--batch-size", "{batch_size}")
    plan = dpbench(*words, "--dry-run", *script, cwd=tmp_path)
    assert "6 trials" in plan.stdout, plan.stderr
    assert "no estimate, as a plan does not" in plan.stdout
    done = dpbench(*words, *script, cwd=tmp_path, timeout=180)
    assert done.returncode == 0, done.stderr
    records = load_sweep(tmp_path / "results" / "own").records
    assert all(one.status is Status.COMPLETED for one in records)
    assert [(one.trial.implementation, one.trial.batch_size) for one in records] == [
        (name, size) for size in (8, 16) for name in ("script", "ddp", "single")
    ]
    for one in records:
        for rank in one.ranks:
            assert rank.timed.samples == one.trial.batch_size * len(rank.timed.step_seconds)
            is_group = one.trial.group_size == 2
            assert bool(rank.without_sync) == is_group
    again = dpbench(*words, "--resume", *script, cwd=tmp_path)
    assert "resuming: 6 of 6 trials are stored" in again.stderr, again.stderr
    other = dpbench(*words, "--resume", *script, "--width", "64", cwd=tmp_path)
    assert other.returncode == 2
    assert f"--name own --resume {SCRIPT}" in other.stderr.replace("'", "")
    compared = dpbench(
        *("compare", "results/own:implementation=script", "results/own:implementation=ddp"),
        cwd=tmp_path,
    )
    assert compared.returncode == 0, compared.stderr
    page = (tmp_path / "results" / "own" / "report" / "index.html").read_text()
    assert "sweep --gpus 2 --implementations ddp --batch-sizes 16 --group-sizes 2" in page
    assert "--batch-size &#39;{batch_size}&#39;" in page


def processes_in(folder: Path, program: str = "") -> list[psutil.Process]:
    """The processes that work in the folder, with this word in their command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder) and program in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_no_process_outlives_a_command_that_is_ended(tmp_path: Path, number: int) -> None:
    script = (str(SCRIPT), "--samples", "100000", "--workers", "2")
    command = start("explain", "--gpus", "2", "--steps", "100000", *script, cwd=tmp_path)
    wait_until(lambda: len(processes_in(tmp_path, "inside.py")) >= 3)  # one has two workers
    command.send_signal(number)
    _, printed = command.communicate(timeout=60)
    if number == signal.SIGINT:
        assert command.returncode == 130
        assert "interrupted: 0 of 12 trials are stored in results/" in printed.splitlines()[-1]
    wait_until(lambda: not processes_in(tmp_path))
