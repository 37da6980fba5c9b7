"""Training on several hosts: torch's DistributedDataParallel and ours, against gloo."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel
from tests.parallel.ranks import run_ranks
from tests.parallel.shm.cases import same_bits

STEPS = 3


def _gradients(rank: int, wrapper: type, group: dist.ProcessGroup) -> list[Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30_000), nn.ReLU(), nn.Linear(30_000, 5))
    model = wrapper(module, process_group=group, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    gradients = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        gradients += [parameter.grad.clone() for parameter in model.parameters()]
    return gradients


def _as_on_gloo(rank: int) -> None:
    gloo = dist.new_group(backend="gloo")
    expected = _gradients(rank, nn.parallel.DistributedDataParallel, gloo)
    for wrapper in (nn.parallel.DistributedDataParallel, DistributedDataParallel):
        found = _gradients(rank, wrapper, dist.distributed_c10d._get_default_group())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            # Two operands have one order, so that even the last bits agree.
            assert dist.get_world_size() > 2 or same_bits(one, other)


def test_gradients_of_two_hosts_with_a_rank_each_are_gloos_bit_for_bit(tmp_path: Path) -> None:
    run_ranks(_as_on_gloo, tmp_path / "store", 2, backend="shm+gloo", hosts=(0, 1))


def test_gradients_of_uneven_hosts_are_gloos(tmp_path: Path) -> None:
    run_ranks(_as_on_gloo, tmp_path / "store", 3, backend="shm+gloo", hosts=(0, 1, 0))
