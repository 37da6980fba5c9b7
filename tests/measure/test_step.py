"""A step is what a person would write by hand, however many micro-steps it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_model import RankModel, build_optimizer, compile_module, loss_of
from dpbench.measure.step import BenchmarkStepper
from dpbench.specs.workload import OPTIMIZERS
from tests.builders import WORKLOAD, configuration
from tests.launch.faulty import Healthy

SAMPLES = 24
RATE = 0.1


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Healthy().build_model().double()


def samples() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)
    return Dataset(inputs=inputs, targets=targets)


def stepper(module: torch.nn.Module, dataset: Dataset, weight: float = 1.0) -> BenchmarkStepper:
    return stepper_of(Plain(module), dataset, weight)


def stepper_of(parallel: Any, dataset: Dataset, weight: float = 1.0) -> BenchmarkStepper:
    module = parallel.wrapped
    sgd = torch.optim.SGD(module.parameters(), lr=RATE)
    model = RankModel(module=module, parallel=parallel, optimizer=sgd, loss=Healthy().loss)
    return BenchmarkStepper(model, dataset.select, weight)


def parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in module.parameters()]


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_accumulated_micro_batches_are_one_large_batch(count: int) -> None:
    dataset, whole, parts = samples(), model(), model()
    large, accumulating = stepper(whole, dataset), stepper(parts, dataset)
    for batch in torch.arange(SAMPLES).split(12):
        loss = accumulating.step(batch.split(12 // count)).item()
        assert loss == pytest.approx(large.step([batch]).item(), rel=1e-13)
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=0, atol=1e-14)


def test_an_averaging_weight_scales_the_gradient_but_not_the_reported_loss() -> None:
    """y = w·x with w = 1 and x = 2; with weight 0.5 the gradient is 4·w: w = 1 - 0.4."""
    module = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(module.weight)
    two = torch.full((1, 1), 2.0, dtype=torch.float64)
    halved = stepper(module, Dataset(inputs=two, targets=torch.zeros_like(two)), weight=0.5)
    loss = halved.step([torch.tensor([0])])
    assert next(module.parameters()).item() == pytest.approx(0.6, rel=1e-12)
    assert loss.item() == pytest.approx(4.0, rel=1e-12)


def test_nothing_is_read_back_from_the_device_during_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = stepper(model(), samples())

    def forbidden(*_: object) -> None:
        raise AssertionError("a step waited for the device")

    for name in ("item", "tolist", "numpy", "cpu", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    losses = [training.step([torch.arange(3), torch.arange(3)]) for _ in range(2)]
    monkeypatch.undo()
    assert not any(loss.requires_grad for loss in losses)


@pytest.mark.parametrize(
    ("unsynced", "expected"),
    [
        (
            False,
            ["accumulate_only", "forward", "backward"] * 2 + ["forward", "backward", "after_step"],
        ),
        (True, ["unsynced", "forward", "backward"] * 3),
    ],
)
def test_gradients_are_reduced_in_the_last_micro_step_or_not_at_all(
    unsynced: bool, expected: list[str]
) -> None:
    plain = Plain(model())
    recorded = Mock(wraps=plain, wrapped=plain.wrapped)
    stepper_of(recorded, samples()).step([torch.arange(2)] * 3, unsynced=unsynced)
    parts = ("accumulate_only", "unsynced", "forward", "backward", "after_step")
    assert [name for name, _, _ in recorded.method_calls if name in parts] == expected


def test_a_loss_of_a_model_in_cuda_graphs_is_kept_out_of_their_memory() -> None:
    outputs = torch.ones((), requires_grad=True)
    for mode, is_copied in (("default", False), ("reduce-overhead", True), ("max-autotune", True)):
        loss = loss_of(OwnLoss(), replace(WORKLOAD, compile=mode))(outputs, None)
        assert (loss.data_ptr() != outputs.data_ptr()) == is_copied
        assert loss.requires_grad


class OwnLoss(Healthy):
    """The model's output is the loss."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs


KINDS = {"sgd": "SGD", "adamw": "AdamW", "adam": "Adam", "adadelta": "Adadelta"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_workloads_optimizer_is_torchs_own_at_its_defaults(name: str) -> None:
    module = model()
    workload = replace(WORKLOAD, optimizer=name, lr=0.25)
    built = build_optimizer(module, configuration(workload=workload))
    family, _, kernels = name.partition("-")
    kind: Any = getattr(torch.optim, KINDS[family])
    assert type(built) is kind
    (group,) = built.param_groups
    assert all(a is b for a, b in zip(group["params"], module.parameters(), strict=True))
    chosen = {kernels: True} if kernels else {}
    assert built.defaults == kind(module.parameters(), lr=0.25, **chosen).defaults


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_module_is_itself_with_its_own_names() -> None:
    module = torch.nn.Linear(2, 2)
    assert compile_module(module, replace(WORKLOAD, compile="default")) is module
    assert [*module.state_dict()] == ["weight", "bias"]
