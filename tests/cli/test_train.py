"""`dpbench train` with real ranks: what it leaves, how it ends, and how it goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dpbench.cli.app import run
from dpbench.report.progress import training as train_words
from dpbench.run.interrupts import end_at_once
from dpbench.training.events import EndLine, StartLine, StepLine
from dpbench.training.run_folder import follow_log, read_manifest
from tests.builders import TINY_TRAINING
from tests.cli import command
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.usefixtures("signals", "here")


def tiny(*words: str) -> int:
    return run(["train", *TINY_TRAINING, "--gpus", "2", *words])


def result(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert tiny("--json", *words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_two_ranks_train_on_disjoint_samples_and_leave_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tiny("--name", "one", "--json-lines", "--json", "--memory") == 0
    out, err = capsys.readouterr()
    kinds = [json.loads(line).get("kind") for line in out.splitlines()]
    assert kinds == ["started", *("step", "step", "epoch") * 2, "finished", None]
    assert "host memory, largest ÷ mean of ranks" in err
    folder = Path("runs/one")
    assert read_manifest(folder).status == "completed"
    assert read_manifest(folder).spec.epochs == 2
    started, *events, finished = follow_log(folder).new()
    assert isinstance(started, StartLine)
    assert isinstance(finished, EndLine)
    assert len({*started.pids, os.getpid()}) == 3
    assert started.samples_per_rank == (24, 24)
    assert started.steps_per_epoch == 6
    assert [e.step for e in events if isinstance(e, StepLine)] == [3, 6, 9, 12]
    assert json.loads(out.splitlines()[-1])["state_sha256"] == finished.state_sha256
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.pt", "step-00000006.pt", "step-00000012.pt"]
    assert not (folder / "ranks").exists()


@pytest.mark.slow
def test_a_training_that_stopped_or_was_killed_goes_on_to_the_same_model(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--arch", "tests.launch.faulty:TakesLong", "--limit-train", "24"]
    options += ["--evaluate", "off"]
    whole = result(capsys, *options)
    assert result(capsys, *options, "--name", "part", "--max-steps", "4")["steps"] == 4
    header = read_manifest(Path("runs/part"))
    assert (header.status, header.reason) == ("interrupted", "--max-steps 4")

    often = ("--checkpoint-every", "1")
    arguments = [*TINY_TRAINING, "--gpus", "2", *options, "--name", "killed", *often]
    with command.start("train", *arguments, cwd=here) as killed:
        folder = Path("runs/killed")
        wait_until(lambda: (folder / "checkpoints/step-00000002.pt").exists())
        killed.kill()
        killed.communicate()
    (started,) = (e for e in follow_log(folder).new() if isinstance(e, StartLine))
    wait_until(lambda: not any(map(is_alive, started.pids)))
    assert read_manifest(folder).status == "running"

    capsys.readouterr()
    stopped = result(capsys, *options, "--resume", "part")
    resumed = result(capsys, *options, "--name", "killed", *often, "--resume", "auto")
    for key in ("state_sha256", "final_loss", "steps"):
        assert stopped[key] == resumed[key] == whole[key], key
    assert resumed["samples"] < whole["samples"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_ranks_and_says_how_to_go_on(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = train_words.epoch_line
    said = 0

    def interrupted(*arguments: Any) -> str:
        nonlocal said
        said += 1
        if said == 3:  # the checkpoint of the first epoch is written then, that of the last may not
            os.kill(os.getpid(), number)
        return original(*arguments)

    monkeypatch.setattr(train_words, "epoch_line", interrupted)
    end_at_once()
    assert tiny("--name", "cut", "--epochs", "200") == 128 + number
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dpbench: interrupted: to go on from step-0")
    folder = Path("runs/cut")
    assert read_manifest(folder).status == "interrupted"
    (started,) = (e for e in follow_log(folder).new() if isinstance(e, StartLine))
    assert not any(map(is_alive, started.pids))


def test_a_rank_that_fails_is_one_line_with_the_cause_and_the_next_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arch, cause = "tests.launch.faulty:Raises", "rank 1 raised ValueError: the loss function is"
    assert tiny("--arch", arch, "--name", "broken") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"dpbench: {cause}")
    assert "what the ranks printed is in runs/broken/ranks/1; there is no checkpoint yet" in line
    _, _, again = line.partition("to begin again: dpbench train ")
    assert {"--arch", arch, "--resume", "runs/broken"} <= {*again.split()}
    kept = read_manifest(Path("runs/broken"))
    assert (kept.status, (kept.reason or "").startswith(cause)) == ("failed", True)
    assert Path("runs/broken/ranks/1").is_dir()
