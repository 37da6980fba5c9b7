from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpbench.api.dp_train import dp_train
from dpbench.errors import TrainingFailed
from dpbench.measure.implementations.model import threads_kept
from dpbench.training.dp_train import replica_indices
from tests.api import dp_train_tasks as tasks
from tests.api.dp_train_tasks import F64, make_model, run, samples


@pytest.mark.parametrize(
    ("n_gpu", "batch", "optimizer"),
    [
        (1, 4, torch.optim.SGD),
        (4, 1, torch.optim.SGD),
        (2, 2, torch.optim.Adam),
        (3, 1, torch.optim.Adam),
    ],
)
def test_replicas_of_one_sample_train_as_one_model_on_batches(
    n_gpu: int, batch: int, optimizer: Any
) -> None:
    result = run(n_gpu=n_gpu, batch_per_replica=batch, n_iter=20, optimizer=optimizer)
    data, alone = samples(), make_model()
    steps = optimizer(alone.parameters(), lr=0.05)
    for step, loss in zip(result.indices, result.loss_history, strict=True):
        chosen = [data[index] for replica in step for index in replica]
        assert len(chosen) == n_gpu * batch
        x, y = (torch.stack(parts) for parts in zip(*chosen, strict=True))
        steps.zero_grad()
        expected = F.mse_loss(alone(x), y)
        expected.backward()
        steps.step()
        assert loss == pytest.approx(expected.item(), abs=1e-9)
    for got, parameter in zip(result.params.values(), alone.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.detach(), rtol=0, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.data(), st.integers(0, 99))
def test_steps_have_no_sample_twice_and_passes_have_each_once(
    replicas: int, batch: int, data: st.DataObject, seed: int
) -> None:
    count = data.draw(st.integers(replicas * batch, 40))
    steps = replica_indices(count, replicas, batch, 3 * count, seed=seed)
    dealt = []
    for step in steps:
        assert [len(mine) for mine in step] == [batch] * replicas
        order = [step[i % replicas][i // replicas] for i in range(replicas * batch)]
        assert len(set(order)) == len(order)
        dealt += order
    passes = [dealt[start : start + count] for start in range(0, len(dealt) - count + 1, count)]
    assert all(sorted(each) == [*range(count)] for each in passes)
    if count > 20:
        assert passes[0] != passes[1]  # shuffled anew


def test_what_is_left_out_has_its_default() -> None:
    def autoencoder() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(3, 3).double()

    defaults: dict[str, Any] = {
        "n_iter": 10,
        "lr": 1e-3,
        "max_norm": math.inf,
        "optimizer": partial(torch.optim.Adam, betas=(0.9, 0.999), eps=1e-8),
        "forward_fn": lambda model, sample: model(sample),
        "target_fn": lambda sample: sample,
    }
    inputs = [x for x, _ in samples()]
    plain, spelled_out = (
        dp_train(autoencoder, inputs, n_gpu=1, loss_fn=F.mse_loss, **options)
        for options in ({}, defaults)
    )
    assert plain.loss_history == spelled_out.loss_history
    assert all(torch.equal(plain.params[name], p) for name, p in spelled_out.params.items())


def test_the_factory_is_called_once_per_replica_and_replicas_start_equal() -> None:
    made: list[nn.Module] = []
    before: list[dict[str, Tensor]] = []

    def factory() -> nn.Module:
        made.append(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double())
        made[-1][1].running_mean.normal_()  # type: ignore[index, union-attr]
        return made[-1].eval()

    def look(iteration: int, models: Sequence[nn.Module]) -> None:
        if iteration == 1:
            before.extend(copy.deepcopy(model.state_dict()) for model in models)

    def forward(model: nn.Module, sample: tasks.Sample) -> Tensor:
        return model(sample[0][None])[0]

    result = run(make_model=factory, n_gpu=3, forward_fn=forward, on_backward=look, n_iter=2)
    assert len(made) == 3
    assert result.model is made[0]
    assert not result.model.training
    for other in before[1:]:
        assert all(torch.equal(other[key], value) for key, value in before[0].items())


def test_callbacks_see_each_part_in_order_and_replicas_that_stay_equal() -> None:
    seen: list[tuple[int, str]] = []

    def note(name: str) -> Callable[[int, Sequence[nn.Module]], None]:
        def callback(iteration: int, models: Sequence[nn.Module]) -> None:
            seen.append((iteration, name))
            grads = [[p.grad is not None for p in model.parameters()] for model in models]
            everywhere, first_only = [[True] * 4] * 3, [[True] * 4, [False] * 4, [False] * 4]
            none = [[False] * 4] * 3
            expected = {"backward": everywhere, "broadcast": none}.get(name, first_only)
            assert grads == expected
            if name == "broadcast":
                for model in models[1:]:
                    pairs = zip(model.parameters(), models[0].parameters(), strict=True)
                    assert all(torch.equal(one, other) for one, other in pairs)

        return callback

    parts = ["backward", "reduce", "step", "broadcast"]
    run(n_gpu=3, n_iter=3, **{f"on_{part}": note(part) for part in parts})
    assert seen == [(iteration, part) for iteration in (1, 2, 3) for part in parts]


@pytest.mark.parametrize("mode", ["sequential", "processes"])
def test_a_gradient_that_some_replica_lacks_counts_as_zero(mode: Any) -> None:
    result = run(mode=mode, make_model=Branches, n_iter=1, lr=1.0, forward_fn=tasks.forward)
    data, alone = samples(), Branches()
    for [index] in result.indices[0]:
        (F.mse_loss(alone(data[index][0]), data[index][1]) / 2).backward()
    missing = [name for name, p in alone.named_parameters() if p.grad is None]
    assert "unused" in missing
    for name, parameter in alone.named_parameters():
        step = 0 if parameter.grad is None else parameter.grad
        torch.testing.assert_close(result.params[name], (parameter - step).detach())


class Branches(nn.Module):
    """Each sample takes one of two weights, by the sign of its first number."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Parameter(torch.ones(3, dtype=F64))
        self.negative = nn.Parameter(torch.full((3,), 2.0, dtype=F64))
        self.unused = nn.Parameter(torch.ones(1, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.positive if x[0] > 0 else self.negative
        return (x * weight).sum().reshape(1)


def test_gradients_are_clipped_after_the_reduction() -> None:
    free = run(n_iter=1)
    norm, start = free.norm_history[0], make_model()
    clipped = run(n_iter=1, max_norm=norm / 3)
    assert clipped.norm_history == free.norm_history
    for name, parameter in start.named_parameters():
        step, full = clipped.params[name] - parameter, free.params[name] - parameter
        torch.testing.assert_close(step, full / 3, rtol=1e-5, atol=1e-9)
    below = run(n_iter=1, max_norm=norm * 1.01)
    assert all(torch.equal(below.params[name], free.params[name]) for name in free.params)


def test_the_result_holds_what_happened_and_the_seed_repeats_it() -> None:
    result, again, other = (run(n_iter=7, seed=seed) for seed in (4, 4, 5))
    assert len(result.loss_history) == len(result.indices) == len(result.norm_history) == 7
    assert result.loss == result.loss_history[-1]
    assert list(result.params) == [name for name, _ in result.model.named_parameters()]
    assert not any(value.requires_grad for value in result.params.values())
    assert result.elapsed_seconds > 0
    assert again.loss_history == result.loss_history
    assert other.indices != result.indices
    nothing = run(n_iter=0)
    assert nothing.loss_history == nothing.indices == ()
    assert nothing.loss is None
    start = make_model()
    assert all(torch.equal(nothing.params[name], p) for name, p in start.named_parameters())


def test_a_scheduler_follows_the_steps() -> None:
    rates: list[float] = []
    made: list[torch.optim.Optimizer] = []

    def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        made.append(optimizer)
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def look(*_: Any) -> None:
        rates.append(made[0].param_groups[0]["lr"])

    run(scheduler=halving, n_iter=3, lr=0.4, on_reduce=look)
    assert rates == [0.4, 0.2, 0.1]


@pytest.mark.parametrize("mode", ["sequential", "threads", "processes"])
def test_the_state_of_the_caller_is_restored(mode: Any) -> None:
    def state() -> tuple[Any, ...]:
        random = torch.get_rng_state().tolist()
        return random, torch.is_grad_enabled(), torch.get_num_threads()

    models = [tasks.make_noisy_model() for _ in range(4)]
    with torch.no_grad(), threads_kept():
        torch.set_num_threads(2)
        before = state()
        run(mode=mode, make_model=models.pop, n_iter=3)
        if mode != "processes":
            with pytest.raises(KeyError):
                run(mode=mode, make_model=models.pop, forward_fn=lambda *_: {}["sample"])
        assert state() == before


@pytest.mark.parametrize(
    ("verbose", "expected"),
    [(None, []), (0, []), (8, [1, 8, 16, 20]), (True, [1, *range(2, 21, 2)]), (100, [1, 20])],
)
def test_progress_is_logged(
    verbose: Any, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dpbench.training"):
        result = run(verbose=verbose)
    ours = [record for record in caplog.records if record.name == "dpbench.training"]
    lines = [record.getMessage() for record in ours]
    assert lines == [f"iteration {i}/20  loss {result.loss_history[i - 1]:.6f}" for i in expected]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_gpu", (0, -1, 1.5, "2", True)),
        ("n_iter", (-1, 2.0)),
        ("batch_per_replica", (0,)),
        ("lr", (0, -0.1, math.nan, math.inf, "1")),
        ("max_norm", (0, -5.0, math.nan, None)),
        ("mode", ("process",)),
        ("verbose", (-1, 1.5)),
        ("seed", (-1, None)),
        ("loss_fn", (3,)),
        ("optimizer", (None,)),
        ("on_step", ("print",)),
        ("devices", ([], "cpu")),
    ],
)
def test_bad_arguments_are_named_before_anything_is_made(name: str, values: Any) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"for dp_train\n{name}.*\n"):
            dp_train(unused, samples(), **{name: value})


def unused() -> nn.Module:
    raise AssertionError("nothing may be made before the arguments are checked")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_gpu": 3, "devices": ["cpu", "cpu"]}, "n_gpu=3 and 2 devices"),
        ({"n_gpu": None, "devices": ["cuda:77"]}, "cuda:77"),
        ({"n_gpu": 3, "data": samples(2)}, "got 2 samples for 3 in a step"),
        ({"data": []}, "data is empty"),
        ({"data": iter(samples())}, "instance of Sized"),
        ({"mode": "processes", "on_step": print}, "got a callback with mode='processes'"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run(make_model=unused, **options)


def test_without_a_number_replicas_are_on_the_gpus_that_are_there_or_one_is_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"n_gpu=3, but 2 CUDA devices are visible.*devices="):
        run(make_model=unused, n_gpu=3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert [len(step) for step in run(n_gpu=None, n_iter=2).indices] == [1, 1]


def test_what_is_no_factory_is_refused() -> None:
    model, widths, biases = make_model(), [4, 5], [False, True]
    for factory, message in (
        (model, r"expected a function.*deepcopy"),
        (lambda: 3, "make_model made 3"),
        (nn.Tanh, "empty parameter list"),
        (lambda: model, "replica 1 has parameters of an earlier one"),
        (lambda: nn.Linear(3, widths.pop(0)), "size mismatch for weight"),
        (lambda: nn.Linear(3, 1, bias=biases.pop(0)), "bias"),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
            run(make_model=factory)


@pytest.mark.parametrize(
    ("forward_fn", "message"),
    [
        (
            lambda m, s: m(s[0]).expand(2),
            r"a loss of shape \(2,\), .* in iteration 1, replica 0, sam",
        ),
        (lambda m, s: 1.0, r"the loss 1\.0 in iteration 1, replica 0, sample"),
        (lambda m, s: s[1].sum(), "requires_grad=False in iteration 1, replica 0, sample"),
        (
            lambda m, s: (0 * m(s[0]).sum()).abs().sqrt(),
            "norm of the mean gradient is nan in iteration 1, samples",
        ),
    ],
)
def test_a_loss_that_cannot_be_used_is_located(forward_fn: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, TrainingFailed), match=message):
        run(forward_fn=forward_fn, loss_fn=None)


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
    expected, found = run(mode="sequential", **options), run(mode=mode, **options)
    assert found.indices == expected.indices
    assert found.loss_history == pytest.approx(expected.loss_history, rel=1e-6)
    assert found.norm_history == pytest.approx(expected.norm_history, rel=1e-6)
    states = found.model.state_dict(), expected.model.state_dict()
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-6)
    calls = expected.model.state_dict()["2.calls"].item()
    assert calls == 12 * 2  # the buffers are those of replica 0


@pytest.mark.parametrize("mode", ["sequential", "threads", "processes"])
def test_a_loss_that_is_not_finite_is_raised_in_every_mode(mode: Any) -> None:
    (index,) = run(n_iter=2).indices[1][1]
    message = rf"the loss is inf in iteration 2, replica 1, sample {index};"
    with pytest.raises(RuntimeError if mode == "processes" else TrainingFailed, match=message):
        run(mode=mode, forward_fn=partial(tasks.infinite_on, index), loss_fn=None)
