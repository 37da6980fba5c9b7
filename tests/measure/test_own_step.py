"""A step of the user's is proved and measured like dpbench's, or refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError
from dpbench.measure.device import AmpState
from dpbench.measure.implementations import Plain
from dpbench.measure.own_step import OwnTrainer
from dpbench.measure.reference import ShardReference
from dpbench.measure.try_out import try_step
from tests.builders import trial_spec
from tests.launch.faulty import Healthy
from tests.measure.implementations.steps import whole
from tests.measure.recorded import Recorded


def trainer(own: Any, model: Plain | None = None) -> OwnTrainer:
    torch.manual_seed(0)
    model = model or Plain(Healthy().build_model())
    samples = Dataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))
    sgd = torch.optim.SGD(model.module.parameters(), lr=0.1)
    return OwnTrainer("step 's'", own, model, sgd, Healthy().loss, samples.select, 2)


BATCHES = [torch.arange(0, 4), torch.arange(4, 8)]


def test_gradients_are_reduced_once_and_finished_before_the_optimizer_steps() -> None:
    model = Recorded(Healthy().build_model())
    trainer(whole, model).step(BATCHES)
    expected = "no_sync( forward backward ) forward backward after_step"
    assert " ".join(model.events) == expected


def test_without_synchronization_nothing_inside_of_the_step_turns_it_on_again() -> None:
    model = Recorded(Healthy().build_model())
    trainer(whole, model).step(BATCHES, sync=False)
    expected = "without_sync( forward backward forward backward )"
    assert " ".join(model.events) == expected


def reduces_each(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    optimizer.zero_grad()
    for inputs, targets in batches:
        value = loss(model(inputs), targets) / len(batches)
        model.backward(value)
    optimizer.step()
    return value  # type: ignore[no-any-return]


def test_a_step_that_reduces_in_each_micro_step_is_noted() -> None:
    for own, noted in ((reduces_each, True), (whole, False)):
        training = trainer(own)
        training.step(BATCHES, sync=False)
        assert not training.reduces_each_micro_step
        training.step(BATCHES)
        assert training.reduces_each_micro_step == noted
        training = trainer(own)
        training.step(BATCHES[:1])
        assert not training.reduces_each_micro_step


def test_clipping_sees_reduced_gradients() -> None:
    model = Recorded(Healthy().build_model())
    trainer(partial(whole, max_norm=1e-3), model).step(BATCHES)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.module.parameters()])  # type: ignore[misc]
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_clipping_under_a_loss_scale_is_of_the_true_gradients() -> None:
    training = trainer(partial(whole, max_norm=1e-3))
    training.amp = AmpState(torch.device("cpu"), "f16")
    training.step(BATCHES)
    gradients = [p.grad for p in training.model.module.parameters() if p.grad is not None]
    assert torch.nn.utils.get_total_norm(gradients).item() == pytest.approx(1e-3, rel=1e-2)


def goes_around(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    for inputs, targets in batches:
        value = loss(model(inputs), targets)
        value.backward()
    optimizer.step()
    return value  # type: ignore[no-any-return]


def leaves_one_out(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    inputs, targets = next(iter(batches))
    value = loss(model(inputs), targets)
    model.backward(value)
    optimizer.step()
    return value  # type: ignore[no-any-return]


def steps_twice(model: Any, optimizer: Any, batches: Any, loss: Any) -> Any:
    optimizer.step()
    return whole(model, optimizer, batches, loss)


def waits_for_the_device(model: Any, optimizer: Any, batches: Any, loss: Any) -> Any:
    return whole(model, optimizer, batches, loss).item()


def loss_of_each(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    return whole(model, optimizer, batches, loss).expand(3)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (goes_around, "it never called model.backward(loss)"),
        (leaves_one_out, "left 1 of 2 batches; loop over all of them ("),
        (steps_twice, "it called optimizer.step() 2 times; expected once"),
        (waits_for_the_device, "it returned a float; expected"),
        (loss_of_each, "it returned a tensor of shape (3,); expected"),
    ],
)
def test_what_would_be_measured_as_something_else_is_refused(own: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        trainer(own).step(BATCHES)
    assert message in str(refused.value)
    assert str(refused.value).startswith("step 's': ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hidden", "a step leaves no gradients"),
        ("broken", "a step on 2 samples raised KeyError: 'x' (steps.py, line 22)"),
        (
            "forgetful",
            "forgetful() takes 3 positional arguments but 4 were given (steps.py, line 25)",
        ),
        ("hiden", "has no hiden()"),
        ("other.py", "no file"),
    ],
)
def test_a_step_is_tried_before_any_rank_starts(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.py").write_text(STEPS)
    text = f"steps.py:{name}" if not name.endswith(".py") else f"{name}:step"
    with pytest.raises(UsageError) as refused:
        try_step(text, Healthy())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_step_may_compute_a_loss_that_it_does_not_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("watching_steps.py").write_text(STEPS)
    try_step("watching_steps.py:watching", Healthy())


STEPS = """\
def hidden(model, optimizer, batches, loss):
    for inputs, targets in batches:
        value = loss(model(inputs), targets)
        model.backward(value)
    optimizer.step()
    optimizer.zero_grad()
    return value


def watching(model, optimizer, batches, loss):
    optimizer.zero_grad()
    for inputs, targets in batches:
        value = loss(model(inputs), targets)
        loss(model(inputs).detach(), targets)
        model.backward(value)
    optimizer.step()
    return value


def broken(model, optimizer, batches, loss):
    optimizer.zero_grad()
    {}["x"]


def forgetful(model, optimizer, batches): ...
"""


def never_reduces(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    with model.no_sync():
        return whole(model, optimizer, batches, loss)


@pytest.mark.parametrize("own", [whole, reduces_each, never_reduces])
def test_the_proof_compares_with_the_mean_over_all_shards_however_a_step_reduces(own: Any) -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(16, 4), torch.randn(16, 2)
    samples = Dataset(inputs=inputs, targets=targets)

    def make_trainer(model: Any, optimizer: Any) -> OwnTrainer:
        return OwnTrainer("step 's'", own, model, optimizer, Healthy().loss, samples.select, 2)

    module = Healthy().build_model()
    reference = ShardReference(module, trial_spec(implementation="ddp"), 0, make_trainer)
    reference.step([*torch.arange(16).chunk(2)])
    Healthy().loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
    for parameter, proved in zip(module.parameters(), reference.module.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(proved.grad, parameter.grad)
