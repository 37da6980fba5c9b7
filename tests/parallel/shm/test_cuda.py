"""CUDA tensors in collectives of shm; on one GPU, which both ranks share."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.parallel.ranks import run_ranks

pytestmark = pytest.mark.gpu


def _as_on_the_cpu(rank: int) -> None:
    gpu, size = torch.device("cuda", 0), dist.get_world_size()
    for numel, later in product((5, 300_000), (False, True)):
        given = torch.arange(float(numel)) + rank
        on_gpu = (given.to(gpu) - 1).add_(1)  # still being computed when the collective is called
        work = dist.all_reduce(on_gpu, async_op=later)
        if work is not None:
            work.wait()
        doubled = on_gpu * 2  # on a stream that has to wait for the result
        dist.all_reduce(given)
        assert torch.equal(doubled.cpu(), given * 2)
        strided = torch.zeros(2 * numel, device=gpu)[::2]
        outputs = [strided, torch.zeros(numel, device=gpu)]
        dist.all_gather(outputs, torch.full((numel,), float(rank), device=gpu))
        assert [tensor[-1].item() for tensor in outputs] == list(range(size))
        dist.broadcast(outputs[0], 1)
        assert (outputs[0] == 0).all()
    with torch.inference_mode():
        dist.all_reduce(inside := torch.ones(5, device=gpu))
        assert (inside == size).all()


def test_cuda_tensors_get_what_tensors_on_the_cpu_get(tmp_path: Path) -> None:
    run_ranks(_as_on_the_cpu, tmp_path / "store", 2, backend="shm", timeout=100)
