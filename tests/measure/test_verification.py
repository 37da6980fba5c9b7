"""The verification of gradients finds every way of being wrong that people have shipped.

dp drives all replicas from one process, so an implementation can be put in its place here without
starting ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.measure import verification
from dpbench.measure.implementations import ParallelModel, Plain, wrap
from dpbench.measure.implementations.dp import OurDataParallel
from dpbench.measure.verification import verify
from dpbench.records.trial import Verification
from dpbench.rendezvous.process_group import RankGroup
from dpbench.specs import Configuration
from tests.builders import WORKLOAD, configuration
from tests.launch.faulty import Healthy

ALONE = RankGroup()
SAMPLES = Dataset(
    inputs=torch.randn(32, 4, generator=torch.Generator().manual_seed(0)),
    targets=torch.randn(32, 2, generator=torch.Generator().manual_seed(1)),
)
STILL = replace(WORKLOAD, lr=0.0)
"""Without a change of parameters both steps deviate by the same, known amount."""


class PeersAreWrong(RankGroup):
    """Some other rank found an error of a half."""

    def gather(self, value: Any) -> list[Any]:
        return [value, (0.5, "bias") if isinstance(value, tuple) else value]


def dp(replicas: int = 2, **changes: Any) -> Configuration:
    return configuration(implementation="dp", backend="threads", group_size=replicas, **changes)


def verified(settings: Configuration, dataset: Dataset = SAMPLES) -> Verification:
    return verify(settings, Healthy(), dataset, 0, ALONE)


def found_in(
    monkeypatch: pytest.MonkeyPatch,
    fake: Callable[[torch.nn.Module], ParallelModel],
    **changes: Any,
) -> Verification:
    """The verification of `fake` in the place of dp."""
    monkeypatch.setattr(verification, "wrap", lambda module, settings, rank: fake(module))
    return verified(dp(**{"workload": STILL, **changes}))


def parameter(module: torch.nn.Module, name: str) -> torch.nn.Parameter:
    return dict(module.named_parameters())[name]


def gradient_of(module: torch.nn.Module, name: str) -> torch.Tensor:
    gradient = parameter(module, name).grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("replicas", "scaling", "batch_size"),
    [(1, "weak", 4), (2, "weak", 1), (2, "strong", 7), (3, "weak", 4), (3, "strong", 10)],
)
def test_ours_passes_with_any_replicas_shards_and_accumulation(
    replicas: int, scaling: str, batch_size: int, accumulate: int
) -> None:
    settings = dp(replicas, scaling=scaling, batch_size=batch_size, accumulate=accumulate)
    found = verified(settings)
    assert found.passed
    assert found.max_relative_error < 1e-14
    assert found.tolerance == 1e-10
    assert found.tensors_compared == 2 * 2  # weight and bias, in two steps


def test_both_sides_step_at_the_rate_of_the_smaller_shards() -> None:
    """Copies of uneven shards scale their rate by the samples that they take."""
    workload = replace(WORKLOAD, lr_scaling="linear")
    settings = configuration(
        implementation="independent",
        backend="none",
        group_size=3,
        scaling="strong",
        batch_size=32,
        workload=workload,
    )
    assert verified(settings).passed


class HalfAsLarge(Plain):
    """Divides by the number of replicas what is a mean already."""

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        for tensor in self.wrapped.parameters():
            assert tensor.grad is not None
            tensor.grad.div_(2)


class ForgetsToReduce(OurDataParallel):
    """Every replica computes, but only the first one's gradients arrive."""

    def __init__(self, module: torch.nn.Module) -> None:
        right = wrap(module, dp(), 0)
        assert isinstance(right, OurDataParallel)
        super().__init__(right.wrapped)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with self.wrapped.unsynced():
            return super().forward(inputs)


class NotANumber(Plain):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        gradient_of(self.wrapped, "bias")[0] = math.nan


class Misses(Plain):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        parameter(self.wrapped, "bias").grad = None


class LastMicroStepOnly(Plain):
    """Forgets what the earlier micro-steps accumulated."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for tensor in self.wrapped.parameters():
            tensor.grad = None
        return super().forward(inputs)


class WeighsShardsEqually(Plain):
    """The mean of the replicas' means, though the first replica has more samples."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(inputs)
        larger = (len(outputs) + 1) // 2
        weights = torch.full((len(outputs), 1), len(outputs) / 2 / larger, dtype=torch.float64)
        weights[larger:] = len(outputs) / 2 / (len(outputs) - larger)
        return outputs.detach() + (outputs - outputs.detach()) * weights


EVEN = {"scaling": "strong", "batch_size": 8}
UNEVEN = {"scaling": "strong", "batch_size": 7}
HALF = pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("fake", "changes", "error"),
    [
        (HalfAsLarge, {}, HALF),
        # With Adam the size of a gradient does not matter; the verification takes SGD in any case.
        (HalfAsLarge, {"workload": replace(STILL, optimizer="adamw")}, HALF),
        (ForgetsToReduce, {}, None),
        (NotANumber, {}, math.inf),
        (Misses, {}, math.inf),
        (LastMicroStepOnly, {"accumulate": 1}, 0.0),
        (LastMicroStepOnly, {"accumulate": 2}, None),
        (WeighsShardsEqually, EVEN, pytest.approx(0.0, abs=1e-12)),
        (WeighsShardsEqually, UNEVEN, None),
    ],
)
def test_every_wrong_gradient_is_found(
    monkeypatch: pytest.MonkeyPatch,
    fake: Callable[[torch.nn.Module], ParallelModel],
    changes: dict[str, Any],
    error: Any,
) -> None:
    """An error of None is a large one."""
    found = found_in(monkeypatch, fake, **changes)
    assert found.passed == (error == 0.0)
    if error is None:
        assert 0.01 < found.max_relative_error < math.inf
    else:
        assert found.max_relative_error == error
    if error == math.inf:
        assert found.worst_parameter == "bias"


def test_the_error_is_relative_to_the_largest_gradient_of_its_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bias off by an eighth of its largest entry, the weight by a quarter of its own."""

    class Off(Plain):
        def backward(self, loss: torch.Tensor) -> None:
            super().backward(loss)
            for name, share in (("bias", 0.125), ("weight", 0.25)):
                gradient = gradient_of(self.wrapped, name)
                gradient.view(-1)[0] += share * gradient.abs().max()

    found = found_in(monkeypatch, Off)
    assert found.max_relative_error == pytest.approx(0.25, rel=1e-12)
    assert found.worst_parameter == "weight"


@pytest.mark.parametrize(("sync_every", "steps"), [(2, 3), (500, 5)])
def test_parameters_that_are_never_averaged_are_found_after_few_steps(
    monkeypatch: pytest.MonkeyPatch, sync_every: int, steps: int
) -> None:
    monkeypatch.setattr(verification, "wrap", lambda module, settings, rank: Plain(module))
    found = verified(configuration(implementation="local-sgd", sync_every=sync_every))
    assert not found.passed
    assert found.tensors_compared == steps * 2


def test_all_ranks_decide_together() -> None:
    found = verify(dp(2), Healthy(), SAMPLES, 0, PeersAreWrong())
    assert (found.passed, found.max_relative_error, found.worst_parameter) == (False, 0.5, "bias")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_independent_copy_is_compared_on_its_own_shard(rank: int) -> None:
    settings = configuration(implementation="independent", backend="none", group_size=2)
    found = verify(settings, Healthy(), SAMPLES, rank, ALONE)
    assert (found.passed, found.max_relative_error) == (True, 0.0)


def test_a_hook_which_loses_precision_is_left_out_of_the_verification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapped: list[Configuration] = []

    def noted(module: torch.nn.Module, settings: Configuration, rank: int) -> ParallelModel:
        wrapped.append(settings)
        return Plain(module)

    monkeypatch.setattr(verification, "wrap", noted)
    assert verified(configuration(group_size=1, comm_hook="bf16")).passed
    assert [settings.comm_hook for settings in wrapped] == ["none"]


class CastsToFloat32(Healthy):
    """Takes its inputs in float32 whatever they are, as from images of bytes."""

    def build_model(self) -> torch.nn.Module:
        module = super().build_model()
        module.register_forward_pre_hook(lambda _, inputs: inputs[0].float())
        return module


def test_a_model_that_is_large_or_casts_to_float32_is_compared_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    casting = verify(dp(), CastsToFloat32(), SAMPLES, 0, ALONE)
    monkeypatch.setattr(verification, "MAX_DOUBLE_PARAMETERS", 0)
    for found in (casting, verified(dp())):
        assert found.passed
        assert (found.dtype, found.tolerance, found.is_sample_mean) == ("float32", 1e-3, True)
    assert not found_in(monkeypatch, HalfAsLarge).passed


class Dropping(Healthy):
    """Its dropout does not end in eval mode."""

    def build_model(self) -> torch.nn.Module:
        module = super().build_model()
        module.register_forward_hook(lambda _, __, out: torch.nn.functional.dropout(out))
        return module


def test_a_random_model_fails_and_its_loss_is_not_called_another_than_a_mean() -> None:
    found = verify(dp(), Dropping(), SAMPLES, 0, ALONE)
    assert (found.passed, found.is_sample_mean) == (False, None)
