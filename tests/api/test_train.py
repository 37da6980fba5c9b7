"""`dpbench.train`: the same options as the command, in somebody else's program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import dpbench
from dpbench.api.train import Trained
from dpbench.errors import FileError, UsageError
from dpbench.parallel.agreement import tensors_sha256
from dpbench.training.events import to_line
from dpbench.training.run_folder import open_log
from tests.training.jobs import training_job, training_spec
from tests.training.test_events import STARTED

TINY: dict[str, Any] = {
    "arch": "tests.launch.faulty:Healthy",
    "limit_train": 48,
    "batch_size": 4,
    "epochs": 2,
    "log_interval": 3,
    "gpus": 2,
}


COMMAND = (
    "--arch tests.launch.faulty:Healthy --limit-train 48 --epochs 2 --batch-size 4 --gpus 2 "
    "--log-interval 3 --name one"
)
"""The command line of the same training."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        yield dpbench.train(**TINY, name="one")


def test_a_training_leaves_a_model(trained: Trained) -> None:
    assert (trained.folder, trained.finished.steps) == (Path("runs/one"), 12)
    assert trained.manifest.status == "completed"
    command = trained.manifest.starts[0].command
    assert (command.name, sorted(command.words)) == ("train", sorted(COMMAND.split()))
    random_numbers = torch.get_rng_state()
    model = trained.load_model(arch=TINY["arch"])
    assert torch.equal(torch.get_rng_state(), random_numbers), "the caller's go on as they were"
    state = sorted(model.state_dict().items())
    assert tensors_sha256(state) == trained.finished.state_sha256
    assert not model.training
    assert trained.load_model("best", arch=TINY["arch"])(torch.zeros(1, 4)).shape == (1, 2)


def test_a_run_folder_is_opened_without_running_anything(trained: Trained, tmp_path: Path) -> None:
    again = Trained.open(trained.folder)
    assert again.finished == trained.finished
    with pytest.raises(UsageError, match="whose code would be imported; if you trust it"):
        again.load_model()
    with pytest.raises(UsageError, match="arch: got 'mlp', but the run uses"):
        again.load_model(arch="mlp")
    with pytest.raises(UsageError, match="which: got 'first'"):
        again.load_model("first", arch=TINY["arch"])  # type: ignore[arg-type]
    moved = tmp_path / "moved"
    shutil.copytree(trained.folder, moved)
    shutil.rmtree(moved / "checkpoints")
    with pytest.raises(UsageError, match="has no best checkpoint"):
        Trained.open(moved).load_model("best", arch=TINY["arch"])


def test_a_run_that_is_not_over_is_an_error(tmp_path: Path) -> None:
    folder = training_job(tmp_path / "one", training_spec()).folder
    with closing(open_log(folder)) as log:
        log.append(to_line(STARTED).encode(), sync=False)
    with pytest.raises(FileError, match="training has not finished; dpbench train --resume"):
        Trained.open(folder)


def test_a_training_goes_on_with_the_same_arguments(
    trained: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    longer = dpbench.train(**TINY | {"epochs": 3}, resume=trained.folder)
    out, err = capfd.readouterr()
    assert (out, "epoch 3: train loss" in err) == ("", True)
    assert longer.folder == trained.folder
    assert longer.finished.steps == 18
