"""dpbench explain with a training script: what is the script's, and one run from end to end."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.cli.app import commands, run
from dpbench.folders import Sweep, load_sweep
from dpbench.records.trial import Status
from dpbench.run.sweep.measuring import SweepRun
from tests.analysis.diagnosis.scripts import script_sweep
from tests.cli.command import dpbench, start
from tests.cli.stored import stored
from tests.launch import training_script
from tests.waiting import commands_in, wait_until

SCRIPT = Path(training_script.__file__)
AGAIN = "train.py --lr 1   # about 12 s"
NONE = "no option changes the largest loss, wrapper"


@pytest.mark.parametrize(
    ("command", "first"), [("explain", "results_or_script"), ("sweep", "script")]
)
@pytest.mark.parametrize(
    ("named", "rest"),
    [
        (["train.py"], []),
        (["train.py"], ["--ep", "1", "--help"]),
        (["train.py"], ["--", "--gpus", "3"]),
        (["train.py"], ["-m", "x", "-q"]),
        (["-m", "pkg.train"], ["--epochs", "1", "-q"]),
        (["--", "train.py"], ["--gpus", "3"]),
    ],
)
def test_everything_after_the_script_is_the_scripts(
    command: str, first: str, named: list[str], rest: list[str]
) -> None:
    words = ["--gpus", "2", *named, *rest]
    given = commands().commands[command].make_context(command, words).params
    assert (given["gpus"], bool(given["module"])) == ("2", named[0] == "-m")
    assert [given[first], *(given["arguments"] or ())] == [named[-1], *rest]


def test_an_option_of_dpbench_behind_a_script_that_does_not_have_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text('add("--lr"), add("--batch-size", help="gpus alike"), main(seed=1)')
    own = ["--lr", "1", "--batch_size=2", "--epochs", "1", "--seed", "2", "--gpus", "2"]
    words = ["train.py", *own, "--data-worker=2", "--tolerance", "5%", "--json"]
    given = commands().commands["check"].make_context("check", [*words, "--", "--steps"]).params
    assert (given["candidate"], given["arguments"]) == ("train.py", [*words[1:], "--", "--steps"])
    assert capsys.readouterr().err == (
        "dpbench: --tolerance, --json after train.py: for the script; options of dpbench stand "
        "before it\n"
    )
    commands().commands["sweep"].make_context("sweep", words)
    assert "dpbench: --data-worker, --json after train.py: for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("growth", "finds_unused", "command"),
    [
        (1, True, f"sweep --gpus 2 --group-sizes max --find-unused auto,off {AGAIN}; {NONE}"),
        (1, False, f"report {{folder}} --open   # {NONE}"),
        (4, True, "explain --gpus 2 --repetitions 67 train.py --lr 1"),
    ],
)
def test_the_next_command_measures_the_remedy_or_again_or_opens_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    growth: int,
    finds_unused: bool,
    command: str,
) -> None:
    records = [
        one
        for number in range(4)
        for one in script_sweep(number, single=0.01 * growth**number, finds_unused=finds_unused)
    ]
    folder = stored(tmp_path / "demo", records)

    def measured(run: SweepRun, _: object) -> Sweep:
        return replace(load_sweep(folder), command=run.sweep.command)

    monkeypatch.setattr(SweepRun, "measure", measured)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    words = ("--gpus", "2", "--quiet", "--name", "demo", "train.py", "--lr", "1")
    assert run(["explain", *words]) == (0 if growth == 1 else 4)
    assert capsys.readouterr().out.endswith(f"\n\nNext: dpbench {command.format(folder=folder)}\n")


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_slow_input_pipeline_is_found_in_an_unchanged_script(tmp_path: Path) -> None:
    shares = list[float]()
    for name in ("own", "once-more"):  # on a machine that is busy no loss is named
        options = ("explain", "--gpus", "2", "--repetitions", "3", "--name", name, "--json")
        done = dpbench(*options, str(SCRIPT), "--fault", "slow-samples", cwd=tmp_path, timeout=110)
        assert done.returncode in (0, 4), done.stderr
        (advice,) = (
            one["advice"]
            for one in json.loads(done.stdout)["configurations"]
            if one["implementation"] == "script"
        )
        shares = [one["share_of_step"] for one in advice if one["kind"] == "input pipeline"]
        if shares:
            break
    (share,) = shares
    assert share > 0.5
    records = load_sweep(tmp_path / "results" / name).records
    assert [record.configuration.implementation for record in records] == [
        *("script", "independent", "single"),
        *("single", "independent", "script"),
        *("script", "independent", "single"),
    ]
    again = dpbench("explain", f"results/{name}", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert "script" in dpbench("report", f"results/{name}", cwd=tmp_path).stdout


@pytest.mark.full
def test_a_script_that_fails_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    mine = tmp_path / "results" / "mine"
    mine.mkdir(parents=True)
    words = ("explain", "--gpus", "2", "-q", str(SCRIPT), "--fault", "raise")
    dpbench(words[0], "--name", "mine", *words[1:], cwd=tmp_path)
    assert mine.is_dir()
    done = dpbench(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dpbench: training_script.py: rank 1 failed: ValueError: the loss is")
    assert f'File "{SCRIPT}", line' in done.stderr  # the end of the script's own traceback
    assert "rank_process.py" not in done.stderr
    assert [*(tmp_path / "results").iterdir()] == [mine]
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
    done = dpbench(*words, *script, cwd=tmp_path, timeout=180)
    assert done.returncode == 0, done.stderr
    records = load_sweep(tmp_path / "results" / "own").records
    assert all(one.status is Status.COMPLETED for one in records)
    assert [
        (one.configuration.implementation, one.configuration.batch_size) for one in records
    ] == [(name, size) for size in (8, 16) for name in ("script", "ddp", "single")]
    for one in records:
        for rank in one.ranks:
            assert rank.timed.samples == one.configuration.batch_size * len(rank.timed.step_seconds)
            is_group = one.configuration.group_size == 2
            assert ("unsynced" in rank.windows) == is_group
    again = dpbench(*words, "--resume", *script, cwd=tmp_path)
    assert "resuming: 6 of 6 trials are stored" in again.stderr, again.stderr
    other = dpbench(*words, "--resume", *script, "--width", "64", cwd=tmp_path)
    assert other.returncode == 2
    assert " --name own " in other.stderr
    assert f" --resume {SCRIPT}" in other.stderr
    compared = dpbench(
        *("compare", "results/own:implementation=script", "results/own:implementation=ddp"),
        cwd=tmp_path,
    )
    assert compared.returncode == 0, compared.stderr
    page = (tmp_path / "results" / "own" / "report" / "index.html").read_text()
    assert "sweep --gpus 2 --implementations ddp --backends shm --batch-sizes 16 " in page
    assert "--batch-size &#39;{batch_size}&#39;" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_no_process_outlives_a_command_that_is_ended(tmp_path: Path, number: int) -> None:
    script = (str(SCRIPT), "--samples", "100000", "--workers", "2")
    command = start("explain", "--gpus", "2", "--steps", "100000", *script, cwd=tmp_path)
    # One has two workers.
    wait_until(lambda: sum("program.py" in one for one in commands_in(tmp_path)) >= 3)
    command.send_signal(number)
    _, printed = command.communicate(timeout=60)
    if number == signal.SIGINT:
        assert command.returncode == 130
        assert "interrupted: 0 of 12 trials are stored in results/" in printed.splitlines()[-1]
    wait_until(lambda: not commands_in(tmp_path))
