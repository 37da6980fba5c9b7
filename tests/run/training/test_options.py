"""The options of `dpbench train`: their layers, and what is refused before a training starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpbench.cli.app import run
from dpbench.messages import said_to
from dpbench.options.reading import read_options
from dpbench.options.train import TrainOptions
from dpbench.run.training.preparation import build_spec
from dpbench.specs.training import TrainingRunOptions


def options(**given: Any) -> TrainOptions:
    """Options as they would be typed."""
    return read_options(TrainOptions, given)


def test_defaults_are_those_of_the_mnist_example() -> None:
    found = options()
    assert (found.lr, found.batch_size, found.optimizer) == (1.0, 64, "adadelta")
    assert (found.arch, found.seed, found.run) == ("mnist_cnn", 0, TrainingRunOptions())


def test_the_preset_torch_ddp_has_the_defaults_of_that_script_below_what_is_typed() -> None:
    found = options(preset="torch-ddp", batch_size="32")
    assert (found.arch, found.data, found.data_dir) == ("mnist_cnn", "mnist", Path("data"))
    assert (found.epochs, found.lr, found.gamma) == (5, 1.0, 0.7)
    assert (found.batch_size, found.optimizer, found.log_interval) == (32, "adadelta", 20)
    assert found.checkpoint == Path("/tmp/mnist_ddp_checkpoint.pt")
    assert not found.download  # nothing is downloaded unless it is asked for


@pytest.mark.parametrize(
    ("typed", "epochs", "gamma"),
    [
        ({}, 10, 0.85),
        ({"epochs": "3"}, 3, 0.85),
        ({"epochs": "3", "gamma": "0.5"}, 3, 0.5),
        ({"data": "synthetic"}, 5, 0.7),
    ],
)
def test_epochs_and_gamma_default_to_what_the_data_need(
    typed: dict[str, str], epochs: int, gamma: float
) -> None:
    with said_to(lambda note: None):
        spec = build_spec(options(arch="mlp", **typed), ["cpu"], 1)
    assert (spec.epochs, spec.gamma) == (epochs, gamma)


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("f32", ("f32", "fp32", "float32")),
        ("bf16", ("bf16", "bfloat16")),
        ("f16", ("f16", "fp16", "float16")),
    ],
)
def test_a_dtype_has_several_names(dtype: str, names: tuple[str, ...]) -> None:
    assert {options(dtype=name).dtype for name in names} == {dtype}


@pytest.mark.usefixtures("signals", "here")
def test_the_size_of_a_step_is_told_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train", "--arch", "mlp", "--gpus", "2", "--oversubscribe"]
    words += ["--accumulate", "4", "--dry-run"]
    size = "batch 64 × 2 replicas × accumulation 4 = 512 samples per step, 3 steps per epoch"
    for more in ((), ("--quiet",)):
        assert run([*words, *more]) == 0
        assert " ".join(capsys.readouterr().out.split()) == f"{size}, 10 epochs"
    assert run([*words, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert json.loads(out)["samples_per_step"] == 512
    assert not Path("runs").exists()
