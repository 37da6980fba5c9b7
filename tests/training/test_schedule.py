"""The learning rate of every step, against torch's StepLR and numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.training.schedule import build_schedule, rate_factor
from tests.training.jobs import training_spec


def rates(steps: int, steps_per_epoch: int, **changes: object) -> list[float]:
    """With which each of the first steps is made."""
    spec = training_spec(**changes)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=spec.learning_rate)
    schedule = build_schedule(optimizer, spec, steps_per_epoch)
    made = []
    for _ in range(steps):
        made.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return made


@given(gamma=st.floats(0.01, 1.0), steps_per_epoch=st.integers(1, 5), epochs=st.integers(1, 6))
def test_the_rate_of_each_epoch_is_that_of_torchs_step_lr(
    gamma: float, steps_per_epoch: int, epochs: int
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)
    expected = []
    for _ in range(epochs):
        expected += [optimizer.param_groups[0]["lr"]] * steps_per_epoch
        optimizer.step()
        reference.step()
    ours = rates(epochs * steps_per_epoch, steps_per_epoch, gamma=gamma)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_the_warm_up_is_a_line_from_the_workloads_rate_to_the_scaled_one() -> None:
    """Rate 0.1 for 4 samples; 2 replicas and 2 micro-steps make 16, so linear scaling asks for
    0.4: 0.1, 0.175, 0.25, 0.325, 0.4 from step 4 on; epochs of 3 steps, each at 0.5 of the one
    before."""
    made = rates(8, 3, learning_rate_rule="linear", accumulation_steps=2, warmup_steps=4, gamma=0.5)
    by_hand = [0.1, 0.175, 0.25, 0.1625, 0.2, 0.2, 0.1, 0.1]
    assert made == pytest.approx(by_hand, rel=1e-12)


def test_without_a_warm_up_the_first_step_has_the_scaled_rate() -> None:
    assert rates(1, 3, learning_rate_rule="sqrt", accumulation_steps=2) == pytest.approx([0.2])
    assert rate_factor(0, steps_per_epoch=3, gamma=0.7) == 1.0


def test_a_schedule_that_goes_on_after_some_steps_has_the_rates_of_one_that_made_them() -> None:
    spec = training_spec(warmup_steps=5, learning_rate_rule="linear")
    whole = rates(8, 3, warmup_steps=5, learning_rate_rule="linear")
    for done in range(1, 7):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=100.0)
        resumed = build_schedule(optimizer, spec, 3, done=done)
        assert optimizer.param_groups[0]["lr"] == whole[done]
        optimizer.step()
        resumed.step()
        assert optimizer.param_groups[0]["lr"] == whole[done + 1]
