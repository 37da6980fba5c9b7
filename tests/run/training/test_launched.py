"""`dpbench train` in ranks that somebody else has started: one training, and one who speaks."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dpbench
from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.launch.ranks import run_ranks
from dpbench.options.train import TrainOptions
from dpbench.rendezvous.placement import LAUNCHERS
from dpbench.run.training.preparation import RankDescription, spec_of_world
from dpbench.training.events import StartLine
from dpbench.training.run_folder import follow_log, read_manifest
from tests.builders import TINY_TRAINING

Printed = tuple[int, str, str]
"""Exit status, stdout, stderr."""


def commands(folder: Path, lines: Sequence[Sequence[str]], rank: int) -> list[Printed]:
    """Runs one command after the other as `rank`, as torchrun would have started it."""
    os.chdir(folder)
    printed = []
    for number, line in enumerate(lines):
        # Another launch would have another store.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run(["train", *(word.replace("RANK", str(rank)) for word in line)])
        printed.append((status, out.getvalue(), err.getvalue()))
    return printed


def from_python(folder: Path, rank: int) -> tuple[int, str, str]:
    os.chdir(folder)
    options: dict[str, Any] = {"arch": TINY_TRAINING[1], "limit_train": 48, "batch_size": 4}
    options["evaluate"] = "off"
    dpbench.train(**options, epochs=1, name="first")
    # The second one reads the variables of srun.
    for ours, theirs in zip(LAUNCHERS[0].split(), LAUNCHERS[1].split(), strict=True):
        os.environ[theirs] = os.environ.pop(ours)
    trained = dpbench.train(**options, epochs=2, name="second")
    return trained.finished.steps, trained.finished.state_sha256, str(trained.folder.absolute())


def test_the_ranks_of_a_launcher_make_one_training(tmp_path: Path) -> None:
    lines = [
        [*TINY_TRAINING, "--name", "joined", "--json", "--local-rank=RANK"],
        [*TINY_TRAINING, "--resume", "joined", "--epochs", "3", "--json"],
    ]
    first, second = run_ranks(partial(commands, tmp_path, lines), 2, tmp_path / "scratch", 100)
    assert second == [(0, "", "")] * 2
    (status, out, err), (resumed_status, resumed_out, resumed_err) = first
    assert (status, resumed_status) == (0, 0)
    (line,) = out.splitlines()
    assert json.loads(line)["steps"] == 12
    assert "4 samples per step" not in err
    assert "= 8 samples per step" in err
    folder = tmp_path / "runs" / "joined"
    started, _ = (event for event in follow_log(folder).new() if isinstance(event, StartLine))
    assert len({*started.pids}) == started.world_size == 2
    assert started.samples_per_rank == (24, 24)
    assert "resuming from" in resumed_err
    assert json.loads(resumed_out)["steps"] == 18
    assert (read_manifest(folder).spec.group_size, read_manifest(folder).spec.epochs) == (2, 3)


def test_every_rank_of_a_python_program_gets_the_result_of_each_training(tmp_path: Path) -> None:
    here, other = run_ranks(partial(from_python, tmp_path), 2, tmp_path / "scratch", 100)
    assert here == other
    assert here[0] == 12
    assert here[2].endswith("runs/second")


def description(**changes: Any) -> RankDescription:
    return RankDescription(**({"device": "cpu", "host": "a", "cores": 4} | changes))


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        ([description()] * 2, {"gpus": "2"}, "--gpus 2: the launcher has started 2 processes"),
        ([description()] * 2, {"implementation": "dp"}, "one process drives all its replicas"),
        ([description(), description(host="b")], {"backend": "shm"}, "these are on 2"),
        ([description(), description()], {"backend": "nccl"}, "--backend nccl: "),
        ([description(), description()], {"threads": "3"}, "at most 2"),
    ],
)
def test_ranks_that_do_not_go_together_are_refused(
    ranks: list[RankDescription], options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        spec_of_world(TrainOptions(**{"arch": "mlp", **options}), ranks)


def test_threads_are_those_of_the_host_with_the_least_for_each() -> None:
    ranks = [description(cores=8), description(cores=8), description(host="b", cores=3)]
    spec = spec_of_world(TrainOptions(arch="mlp"), ranks)
    assert spec.threads == 3
    assert spec.devices == ("cpu",) * 3
