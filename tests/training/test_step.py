"""One optimizer step: one reduction a step, one cut of reduced gradients, no step on overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpbench.architecture import load_architecture
from dpbench.data.batch import Batch
from dpbench.measure.rank_model import RankModel, build_rank_model
from dpbench.specs.training import TrainingSpec
from tests.training.jobs import ranks_here, training_spec

CPU = torch.device("cpu")


def model_of(spec: TrainingSpec, rank: int = 0) -> RankModel:
    made = load_architecture(spec.workload.architecture)
    return build_rank_model(made, spec, rank, CPU)


def alone(architecture: str = "Plain", **changes: Any) -> RankModel:
    changes |= {"implementation": "single", "backend": "none", "group_size": 1}
    return model_of(training_spec(architecture, **changes))


def step(
    model: RankModel, batches: Sequence[Batch], number: int = 0, max_norm: float | None = None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    return model.step(batches, number, micro_steps=len(batches), max_norm=max_norm)


def batches_of(*sizes: int) -> tuple[Batch, ...]:
    """Micro-batches of so many samples, weighted as those of one process."""
    generator = torch.Generator().manual_seed(1)
    whole = sum(sizes)
    inputs = torch.randn(whole, 4, generator=generator)
    targets = torch.arange(whole) % 3
    parts = zip(inputs.split(sizes), targets.split(sizes), sizes, strict=True)
    return tuple(Batch(x, y, size / whole, size) for x, y, size in parts)


def gradient(model: RankModel) -> torch.Tensor:
    """Of all parameters, in one row."""
    return torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None])


@pytest.mark.parametrize("sizes", [(12,), (6, 6), (5, 4, 2, 1)])
def test_uneven_micro_batches_give_the_gradient_of_the_whole_step(sizes: tuple[int, ...]) -> None:
    whole, parts = alone(), alone()
    ([one], _), (losses, _) = step(whole, batches_of(12)), step(parts, batches_of(*sizes))
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=0, atol=1e-14)
    mean = sum(float(loss) * n / 12 for loss, n in zip(losses, sizes, strict=True))
    assert mean == pytest.approx(float(one), rel=1e-12)


def test_a_gradient_below_the_norm_is_left_alone_to_the_bit_and_one_above_is_cut() -> None:
    free = alone()
    step(free, batches_of(12))
    norm = float(gradient(free).norm())
    for limit, cut in ((norm * 1.01, False), (norm * 0.5, True)):
        clipped = alone()
        batches = batches_of(7, 5) if cut else batches_of(12)
        _, before = step(clipped, batches, max_norm=limit)
        assert before is not None
        assert float(before) == pytest.approx(norm, rel=1e-12)
        if cut:
            assert float(gradient(clipped).norm()) == pytest.approx(limit, rel=1e-5)
        else:
            assert torch.equal(gradient(clipped), gradient(free))


def test_parameters_come_from_the_seed_and_random_numbers_from_the_rank_too() -> None:
    """Of rank 1 too, although there is one process here."""
    spec = training_spec("Noisy", implementation="single", backend="none", group_size=2)
    drawn = [(parameters(model_of(spec, rank)), float(torch.rand(()))) for rank in (0, 1, 0)]
    (one, mask_of_0), (other, mask_of_1), (_, again) = drawn
    assert torch.equal(one, other)
    assert mask_of_0 != mask_of_1
    assert mask_of_0 == again


def parameters(model: RankModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.module.parameters()])


def test_the_forward_pass_has_the_dtype_and_the_gradients_stay_float32() -> None:
    reference = alone("Single")
    step(reference, batches_of(12))
    for dtype, expected in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        model = alone("Single", dtype=dtype)
        seen: list[torch.dtype] = []
        model.module.register_forward_hook(
            lambda _, __, output, seen=seen: seen.append(output.dtype)
        )
        step(model, batches_of(12))
        assert (seen.pop(), gradient(model).dtype) == (expected, torch.float32)
        torch.testing.assert_close(gradient(model), gradient(reference), rtol=0.05, atol=0.01)


def overflowing(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    last = batches[-1]
    return (*batches[:-1], Batch(last.inputs * float("inf"), last.targets, last.weight, 0))


def test_gradients_are_cut_in_their_true_size_under_a_loss_scale() -> None:
    model, reference = alone("Single", dtype="f16"), alone("Single")
    step(reference, batches_of(12))
    _, norm = step(model, batches_of(12), max_norm=0.01)
    assert norm is not None
    assert float(norm) == pytest.approx(float(gradient(reference).norm()), rel=0.05)
    assert float(gradient(model).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("gamma", [0.5, 0.7, 1.0])
def test_the_rate_of_each_epoch_is_that_of_torchs_step_lr(gamma: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)
    spec = training_spec(gamma=gamma)
    for epoch in range(4):
        expected = optimizer.param_groups[0]["lr"]
        assert spec.learning_rate_in(epoch) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        reference.step()


def everyone(value: Any) -> list[Any]:
    """The value of each rank."""
    return ranks_here().gather(value)


def an_overflow_on_one_rank_leaves_the_step_out_on_all(rank: int) -> None:
    for name, sync_every in (("ddp", 1), ("torch-ddp", 1), ("local-sgd", 2)):
        spec = training_spec("Single", implementation=name, sync_every=sync_every, dtype="f16")
        model, scales = model_of(spec, rank), []
        for number in range(4):
            batches = batches_of(3, 2)
            overflows = (number, rank) == (1, 1)
            batches = overflowing(batches) if overflows else batches
            step(model, batches, number, max_norm=1.0)
            scales.append(model.scaler.get_scale())
        model.parallel.sync_parameters()
        assert scales == [65536.0, 32768.0, 32768.0, 32768.0]
        first, second = everyone(parameters(model).tolist())
        assert first == second
        assert all(map(math.isfinite, first))


def a_step_is_reduced_once_however_many_micro_steps_it_has(rank: int) -> None:
    """Each rank has other samples; local-sgd averages every second step."""
    for name, sync_every, expected in (("ddp", 1, [1, 2, 3, 4]), ("local-sgd", 2, [0, 1, 1, 2])):
        spec = training_spec("Single", implementation=name, sync_every=sync_every)
        model, reduced, equal = model_of(spec, rank), [], []
        for number in range(4):
            batches = batches_of(3, 2, 1)
            theirs = [replace(batch, inputs=batch.inputs + rank) for batch in batches]
            step(model, theirs, number)
            reduced.append(model.parallel.reduced_bytes() / parameters(model).nbytes)
            first, second = everyone(parameters(model).tolist())
            equal.append(first == second)
        assert reduced == expected
        assert equal == ([True] * 4 if sync_every == 1 else [False, True, False, True])


ON_TWO_RANKS = [
    an_overflow_on_one_rank_leaves_the_step_out_on_all,
    a_step_is_reduced_once_however_many_micro_steps_it_has,
]
"""Tests that run in the world of test_rank.py."""
