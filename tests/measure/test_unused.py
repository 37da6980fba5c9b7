"""Parameters without a gradient, in the implementations that do not allow them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpbench.errors import DpbenchError
from dpbench.measure.implementations import wrap
from dpbench.measure.rank_model import RankModel, build_optimizer
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.unused import unused_parameters_named
from tests.builders import configuration
from tests.measure.implementations.architectures import Frozen
from tests.measure.implementations.verifying import samples
from tests.parallel.ranks import run_ranks


class Partly(Frozen):
    """A frozen layer, trained ones and a parameter that the loss does not use."""

    def build_model(self) -> torch.nn.Module:
        model = super().build_model()
        model.get_submodule("2").register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
        return model


def message(rank: int, implementation: str) -> str:
    settings = configuration(implementation=implementation, backend="gloo")
    architecture = Partly()
    module = architecture.build_model()
    parallel = wrap(module, settings, rank)
    optimizer = parallel.optimizer(build_optimizer(module, settings))
    model = RankModel(module=module, parallel=parallel, optimizer=optimizer, loss=architecture.loss)
    stepper = BenchmarkStepper(model, samples(architecture).select)

    def train() -> None:
        for _ in range(3):
            stepper.step([torch.arange(4)])

    with pytest.raises(DpbenchError) as raised, unused_parameters_named(module):
        train()
    return str(raised.value)


def messages(rank: int) -> list[str]:
    return [message(rank, name) for name in ("ddp", "torch-ddp", "ddp-sharded")]


def test_the_error_names_the_parameters_and_what_a_user_can_do(tmp_path: Path) -> None:
    expected = (
        "parameters without a gradient in a step: 2.unused; use them in the "
        "loss, freeze them with requires_grad_(False), or use dp, or torch-ddp-static if they are "
        "the same in every step; in your own script, set find_unused_parameters=True"
    )
    for found in run_ranks(messages, tmp_path / "store", backend="gloo"):
        assert found == [expected] * 3


def test_the_names_that_torch_lists_when_debugging_are_not_taken_for_indices() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4)))
    for_rank = "which did not receive grad for rank 1:"
    text = f"… reduction\nParameters {for_rank} 3.bias\nParameter indices {for_rank} 7\n"
    with (
        pytest.raises(DpbenchError, match=r"in a step: 3\.bias; use"),
        unused_parameters_named(module),
    ):
        raise RuntimeError(text)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="other"), unused_parameters_named(torch.nn.ReLU()):
        raise RuntimeError("other")
