"""Every recipe of the documentation runs, and reaches what it says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import nn

import dpbench
from dpbench.launch.ranks import run_ranks
from dpbench.training import dp_train

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parent.parent / "docs" / "recipes"


def main_of(name: str) -> Callable[..., Any]:
    main: Callable[..., Any] = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return main


def _run_recipes(names: tuple[str, ...], rank: int) -> list[Any]:
    sys.argv[1:] = []  # a rank's own are those of its launcher
    return [main_of(name)() for name in names]


average = dp_train.average_replicas


def add_up_without_dividing(models: Sequence[nn.Module]) -> None:
    average(models)
    for parameter in models[0].parameters():
        if parameter.grad is not None:
            parameter.grad *= len(models)


def take_the_first(models: Sequence[nn.Module]) -> None:
    """As without any communication."""
    average(models[:1])


def forget(models: Sequence[nn.Module]) -> None:
    """As if no gradient had been computed."""
    average(models)
    models[0].zero_grad()
    next(models[0].parameters()).grad = torch.zeros_like(next(models[0].parameters()))


def test_every_recipe_is_in_the_index_and_in_these_tests() -> None:
    index, tests = (FOLDER / "README.md").read_text(), Path(__file__).read_text()
    for path in FOLDER.glob("*.py"):
        assert f"]({path.name})" in index
        assert f'"{path.stem}"' in tests or f'"{path.name}"' in tests


@pytest.mark.parametrize("name", ["data_parallel", "fit_and_predict"])
def test_replicas_in_one_process_learn(name: str) -> None:
    assert main_of(name)() > 0.95


def test_dp_train_learns_a_regression_with_any_number_of_replicas() -> None:
    recipe = FOLDER / "minimal_dp_train.py"
    done = subprocess.run([sys.executable, recipe], capture_output=True, text=True, check=True)
    assert re.findall(r"^(\d+) replicas: .* samples/s$", done.stdout, re.M) == ["1", "2", "4"]


def test_the_regression_says_which_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_train, "average_replicas", forget)
    with pytest.raises(SystemExit, match="failed: 1 replicas: a loss that falls"):
        runpy.run_path(str(FOLDER / "minimal_dp_train.py"), run_name="__main__")


def test_the_plain_loop_learns_from_every_sample_of_an_epoch() -> None:
    accuracy, sizes = main_of("plain_loop")()
    assert accuracy > 0.9
    assert sizes == [[32, 32, 32, 24]] * 20


def test_replicas_of_one_sample_are_one_model_on_batches_in_all_modes() -> None:
    recipe = FOLDER / "replicas_as_one_model.py"
    done = subprocess.run([sys.executable, recipe], capture_output=True, text=True, check=True)
    assert done.stdout.count(": ok\n") >= 3
    for mode in ("sequential", "threads", "processes"):
        assert done.stdout.count(f"{mode}, ") == 3


@pytest.mark.parametrize("wrong", [add_up_without_dividing, take_the_first])
def test_a_wrong_mean_of_gradients_is_no_longer_one_model(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(dp_train, "average_replicas", wrong)
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(FOLDER / "replicas_as_one_model.py"), run_name="__main__")


def test_iris_flowers_that_were_held_out_are_told_apart_as_by_the_plain_loop() -> None:
    accuracies = main_of("iris")(steps=400)
    assert list(accuracies) == ["dp_train ×1", "plain ×1", "dp_train ×2", "plain ×2"]
    assert min(accuracies.values()) >= 0.85
    assert accuracies["dp_train ×1"] == accuracies["plain ×1"]
    assert accuracies["dp_train ×2"] == accuracies["plain ×2"]


@pytest.mark.usefixtures("synthetic")
def test_scaling_of_published_times_is_what_the_definitions_say(tmp_path: Path) -> None:
    speedups = main_of("measure_from_python")(results_dir=tmp_path)

    assert speedups == pytest.approx({2: 1.846, 4: 3.429, 8: 6.0}, abs=5e-4)


def test_scripts_of_ranks_learn_reduce_once_a_window_and_stay_equal(tmp_path: Path) -> None:
    names = ("distributed", "accumulate_and_mix_precision", "keep_ranks_equal")
    first, second = run_ranks(partial(_run_recipes, names), 2, tmp_path, 60.0)

    assert first == second
    accuracy, (steps, reductions), noticed = first
    assert accuracy > 0.9
    assert (steps, reductions) == (3, 3)
    assert noticed


def test_a_world_of_ones_own_adds_up() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "own_world.py"], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[3.0, 3.0]\n"


def test_training_from_python_gives_a_model_that_reads_digits(tmp_path: Path) -> None:
    assert main_of("train_from_python")(runs_dir=tmp_path, epochs=3) > 0.9


def test_rows_and_steps_of_a_sweep_reach_a_tracker() -> None:
    """Each writer stands for torch.utils.tensorboard.SummaryWriter, which needs a package."""
    example = FOLDER.parent.parent / "results" / "examples" / "two-cores"
    results, writers = dpbench.load(example), defaultdict[str, Mock](Mock)
    logged = main_of("experiment_tracking")(str(example), "logs", writers.__getitem__)
    assert logged == len(writers) == len(results.rows)
    assert all(one.mock_calls[-1] == call.close() for one in writers.values())

    calls = [each.args for each in writers["logs/ddp-shm-2-32"].add_scalar.call_args_list]
    chosen = "implementation == 'ddp' and backend == 'shm' and group_size == 2 and batch_size == 32"
    (row,) = results.rows.query(chosen).itertuples()
    assert ("row/images_per_second", row.images_per_second, 0) in calls
    losses = [(step, value) for tag, value, step in calls if tag == "step/loss"]
    assert [step for step, _ in losses] == [*range(int(row.timed_steps))]
    assert losses[-1][1] < losses[0][1]
