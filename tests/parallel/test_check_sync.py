"""Every way in which ranks can hold different tensors is found and named, on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel.check_sync import RanksDiffer, check_sync
from tests.parallel.ddp.one_process import everywhere
from tests.parallel.ranks import run_ranks


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)


def message(module: nn.Module, *, gradients: bool = False) -> str:
    """What check_sync says on this rank; it must say the same on every rank."""
    with pytest.raises(RanksDiffer) as caught:
        check_sync(module, gradients=gradients)
    words = str(caught.value)
    assert set(everywhere(words)) == {words}
    return words


def equal_modules_pass(rank: int) -> None:
    module = model()
    found = check_sync(module, gradients=True)
    assert found.tensors == 6 + 3 + 6  # parameters, buffers, gradients that are all None
    assert found.nbytes == 4 * (12 + 4 + 4 + 4 + 8 + 2 + 4 + 4) + 8  # and an int64 counter
    nn.utils.parameters_to_vector(module.parameters()).sum().backward()  # type: ignore[no-untyped-call]
    assert check_sync(module, gradients=True).nbytes == found.nbytes + 4 * (12 + 4 * 3 + 8 + 2)


def a_weight_that_differs_is_named(rank: int) -> None:
    module = model()
    with torch.no_grad():
        module[2].weight[1, 2] += 0.5 * (rank == 1)
        module[0].bias[0] -= 0.25 * (rank > 0)
    words = message(module)
    assert "2 of 9 tensors differ from rank 0" in words
    assert "parameter '0.bias', (4,) torch.float32: ranks 1 and 2, max abs difference 0.25" in words
    assert "parameter '2.weight', (2, 4) torch.float32: rank 1, max abs difference 0.5" in words


def buffers_and_gradients_count(rank: int) -> None:
    module = model()
    module[1].num_batches_tracked += rank
    assert "buffer '1.num_batches_tracked', () torch.int64: ranks 1 and 2" in message(module)
    module[1].num_batches_tracked.zero_()
    module[0].weight.grad = torch.full((4, 3), float(rank == 2))
    assert check_sync(module).tensors == 9
    words = message(module, gradients=True)
    assert "gradient of '0.weight', (4, 3) torch.float32: rank 2, max abs difference 1" in words


def what_is_missing_or_of_another_kind_is_told(rank: int) -> None:
    module = model()
    if rank == 1:
        module[0].weight.grad = torch.zeros(4, 3)
        module.register_buffer("extra", torch.zeros(2))
        module[2].bias = nn.Parameter(torch.zeros(3))
        module[2].weight = nn.Parameter(module[2].weight.detach().double())
    words = message(module, gradients=True)
    assert "gradient of '0.weight': none on rank 0, (4, 3) torch.float32 on rank 1" in words
    assert "buffer 'extra': absent on rank 0, (2,) torch.float32 on rank 1" in words
    assert "'2.bias': (2,) torch.float32 on rank 0, (3,) torch.float32 on rank 1" in words
    assert "'2.weight': (2, 4) torch.float32 on rank 0, (2, 4) torch.float64 on rank 1" in words


def a_nan_equals_the_same_nan_and_differs_from_a_number(rank: int) -> None:
    module = model()
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
    check_sync(module)
    with torch.no_grad():
        module[0].weight[0, 1] = torch.nan if rank == 2 else 1.0
    assert "'0.weight', (4, 3) torch.float32: rank 2, max abs difference nan" in message(module)


def a_difference_in_the_last_bit_is_one(rank: int) -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.complex64):
        module = nn.Module()
        module.register_buffer("one", torch.ones(5, dtype=dtype))
        check_sync(module)
        if rank == 1:
            module.one.view(torch.uint8)[0] ^= 1  # type: ignore[operator, union-attr]
        assert f"buffer 'one', (5,) {dtype}: rank 1" in message(module)


def strides_do_not_count_and_values_do(rank: int) -> None:
    module = model()
    grid = torch.arange(12.0).view(3, 4)
    module[0].weight.data = grid.t() if rank == 0 else grid.t().contiguous()
    check_sync(module)


def many_differences_are_counted(rank: int) -> None:
    module = nn.ParameterList(torch.full((1,), float(rank)) for _ in range(30))
    words = message(module)
    assert "30 of 30 tensors" in words
    assert words.endswith("and 10 more")


def a_sub_group_compares_its_own_ranks(rank: int) -> None:
    group = dist.new_group([0, 2])
    module = model()
    with torch.no_grad():
        module[0].bias += float(rank == 1)
    if rank != 1:
        check_sync(module, process_group=group)
    else:
        with pytest.raises(RuntimeError, match="check_sync: this process is not a member"):
            check_sync(module, process_group=group)


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_three_ranks_compare_what_they_hold(tmp_path: Path, backend: str) -> None:
    checks = [
        equal_modules_pass,
        a_weight_that_differs_is_named,
        buffers_and_gradients_count,
        what_is_missing_or_of_another_kind_is_told,
        a_nan_equals_the_same_nan_and_differs_from_a_number,
        a_difference_in_the_last_bit_is_one,
        strides_do_not_count_and_values_do,
        many_differences_are_counted,
        a_sub_group_compares_its_own_ranks,
    ]
    run_ranks(checks, tmp_path / "store", world_size=3, backend=backend)


def test_it_needs_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="check_sync needs a process group; call torch"):
        check_sync(model())
