"""Norms of gradients on real ranks, against one process with all the samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench import parallel
from dpbench.data.datasets import Dataset
from dpbench.measure.noise_scale import measure_gradient_norms
from dpbench.measure.rank_group import RankGroup
from dpbench.records.trial import GradientNorms
from tests.parallel.ranks import run_ranks

SHARDS = (slice(0, 5), slice(5, 8))
"""Uneven: five samples and three."""


def samples() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 4, generator=generator)
    return Dataset(inputs=inputs, targets=inputs[:, :2] * 2)


def plain_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def gradient(module: torch.nn.Module, indices: torch.Tensor) -> torch.Tensor:
    data = samples()
    loss = torch.nn.functional.mse_loss(module(data.inputs[indices]), data.targets[indices])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


def measured(module: torch.nn.Module, rank: int) -> GradientNorms | None:
    batches = [torch.arange(8)[SHARDS[rank]], torch.arange(8, 16)[SHARDS[rank]]]
    ranks = RankGroup(size=2, control=dist.group.WORLD)
    return measure_gradient_norms(module, torch.nn.functional.mse_loss, samples(), batches, ranks)


def norms_of_drifted_ranks(rank: int) -> GradientNorms | None:
    module = plain_model()
    if rank == 1:
        torch.nn.init.ones_(module[0].weight)
    return measured(module, rank)


def leaves_everything_as_it_was(rank: int) -> None:
    """A model with running statistics, dropout, frozen and unused parameters, inside a wrapper."""
    module = plain_model()
    module.insert(1, torch.nn.BatchNorm1d(3))
    module.insert(2, torch.nn.Dropout(0.5))
    module[0].bias.requires_grad_(False)
    wrapped = parallel.DistributedDataParallel(module)
    mine = torch.arange(8)[SHARDS[rank]]
    data = samples()
    wrapped(data.inputs[mine]).sum().backward()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    random, reductions = torch.get_rng_state(), wrapped.reductions
    assert measured(module, rank) is not None
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)
    after = [p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(after, gradients, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert wrapped.reductions == reductions
    wrapped(data.inputs[mine]).sum().backward()
    assert wrapped.reductions == 2 * reductions


def test_norms_are_those_of_one_process_at_the_parameters_of_rank_zero(tmp_path: Path) -> None:
    by_rank = run_ranks([leaves_everything_as_it_was, norms_of_drifted_ranks], tmp_path / "store")
    module = plain_model()
    for number, found in enumerate(by_rank):
        batches = [torch.arange(8), torch.arange(8, 16)]
        local = [gradient(module, batch[SHARDS[number]]).square().sum() for batch in batches]
        whole = [gradient(module, batch).square().sum() for batch in batches]
        assert found.local_squared == pytest.approx([float(v) for v in local], rel=1e-5)
        assert found.global_squared == pytest.approx([float(v) for v in whole], rel=1e-5)
        assert (found.local_samples, found.global_samples) == ((5, 8), (3, 8))[number]


def test_a_single_rank_has_nothing_to_compare() -> None:
    alone = RankGroup(size=1, control=None)
    found = measure_gradient_norms(
        plain_model(), torch.nn.functional.mse_loss, samples(), [torch.arange(8)], alone
    )
    assert found is None
