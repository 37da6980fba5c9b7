"""Training on several hosts: torch's DistributedDataParallel and ours, against gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from dpbench.parallel import DistributedDataParallel
from tests.parallel.ranks import on_ranks, run_ranks
from tests.parallel.shm.cases import same_bits

STEPS = 3


def _gradients(
    rank: int, wrapper: type, group: dist.ProcessGroup, *, steps: int = STEPS, hook: Any = None
) -> list[Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30_000), nn.ReLU(), nn.Linear(30_000, 5))
    model = wrapper(module, process_group=group, bucket_cap_mb=1)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    gradients = []
    for _ in range(steps):
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


@on_ranks(4, backend="shm+gloo", hosts=(0, 0, 1, 1))
def test_gradients_compressed_to_bf16_stay_within_its_roundings(rank: int) -> None:
    world = dist.distributed_c10d._get_default_group()
    expected = _gradients(rank, DistributedDataParallel, world, steps=1)
    found = _gradients(rank, DistributedDataParallel, world, steps=1, hook=bf16_compress_hook)
    for one, other in zip(found, expected, strict=True):
        # Three roundings of at most 2^-9: of each operand, of a host's sum, and of the whole.
        limit = 3 * 2**-9 * float(other.abs().max()) * dist.get_world_size()
        torch.testing.assert_close(one, other, rtol=0, atol=limit)
        assert not same_bits(one, other)
