"""Sequential, threads and processes are the same training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpbench.training.dp_train.steps import NonFinite, TrainingResult
from tests.training.dp_train import tasks
from tests.training.dp_train.tasks import run


def assert_close(one: TrainingResult, other: TrainingResult) -> None:
    assert one.indices == other.indices
    assert one.loss_history == pytest.approx(other.loss_history, rel=1e-6)
    assert one.norm_history == pytest.approx(other.norm_history, rel=1e-6)
    torch.testing.assert_close(
        one.model.state_dict(), other.model.state_dict(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_every_mode_gives_the_weights_of_the_sequential_one(mode: Any) -> None:
    options: dict[str, Any] = {
        "make_model": tasks.make_noisy_model,
        "n_gpu": 3,
        "batch_per_replica": 2,
        "n_iter": 12,
        "max_norm": 0.5,
        "optimizer": torch.optim.Adam,
        "seed": 3,
    }
    expected = run(mode="sequential", **options)
    assert_close(run(mode=mode, **options), expected)
    calls = expected.model.state_dict()["2.calls"].item()
    assert calls == 12 * 2  # the buffers are those of replica 0


@pytest.mark.parametrize("mode", ["sequential", "threads", "processes"])
def test_a_loss_that_is_not_finite_is_raised_in_every_mode(mode: Any) -> None:
    with pytest.raises(
        NonFinite, match=r"the loss is inf in iteration 2, replica 1, samples \[3\]"
    ):
        run(mode=mode, forward_fn=tasks.infinite_on_third, loss_fn=None, seed=seed_with_3_fourth())


def seed_with_3_fourth() -> int:
    """A seed whose second step gives sample 3 to replica 1."""
    return next(seed for seed in range(1000) if run(n_iter=2, seed=seed).indices[1][1] == (3,))


def test_callbacks_cannot_be_called_in_processes() -> None:
    with pytest.raises(ValueError, match="got on_step, on_broadcast with mode='processes'"):
        run(mode="processes", on_step=print, on_broadcast=print)
