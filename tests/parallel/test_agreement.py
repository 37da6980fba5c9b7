"""Ranks whose models or options differ all say so, and name the first difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.agreement import RanksDiffer, check_sync, tensors_sha256
from tests.parallel.ddp.one_process import everywhere
from tests.parallel.ranks import model
from tests.parallel.worlds import World

world = World(backend="gloo")


def message(make: Callable[[], nn.Module], kind: type[Exception] = RuntimeError, **options) -> str:
    with pytest.raises(kind) as caught:
        Ddp(make(), **options)
    return str(caught.value)


def same_message(make: Callable[[], nn.Module], **options) -> str:
    words = message(make, **options)
    assert set(everywhere(words)) == {words}
    return words


@world.body
def parameters_that_differ_are_named(rank: int) -> None:
    words = same_message(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3 + rank)))
    assert "parameter '1.weight': (3, 3) torch.float32" in words
    assert "rank 1 has parameter '1.weight': (4, 3)" in words
    words = same_message(lambda: nn.Linear(2, 2, dtype=(torch.float32, torch.float64)[rank]))
    assert "'weight': (2, 2) torch.float32" in words
    assert "torch.float64" in words
    layout = torch.channels_last if rank else torch.contiguous_format
    words = same_message(lambda: nn.Conv2d(2, 3, 2).to(memory_format=layout))
    assert "'weight': (3, 2, 2, 2) strides (8, 1, 4, 2)" in words


@world.body
def counts_that_differ_are_named(rank: int) -> None:
    for count in (1 + rank, 2 - rank):
        words = same_message(lambda c=count: nn.Sequential(*[nn.Linear(3, 3) for _ in range(c)]))
        assert "parameter '1.weight'" in words
        assert "nothing more" in words


@world.body_on(3)
def names_the_ranks_that_differ(rank: int) -> None:
    words = same_message(lambda: nn.Linear(2, 2 if rank == 0 else 3))
    assert "while rank 1 has parameter 'weight': (3, 2)" in words
    assert words.endswith("(not as on rank 0: ranks 1 and 2)")


def difference(module: nn.Module, *, gradients: bool = False) -> str:
    """What check_sync says on this rank; it must say the same on every rank."""
    with pytest.raises(RanksDiffer) as caught:
        check_sync(module, gradients=gradients)
    words = str(caught.value)
    assert set(everywhere(words)) == {words}
    return words


@world.body_on(3)
def equal_modules_pass(rank: int) -> None:
    module = model()
    nbytes = check_sync(module, gradients=True)
    assert nbytes == 4 * (12 + 4 + 4 + 4 + 8 + 2 + 4 + 4) + 8  # and an int64 counter
    nn.utils.parameters_to_vector(module.parameters()).sum().backward()  # type: ignore[no-untyped-call]
    assert check_sync(module, gradients=True) == nbytes + 4 * (12 + 4 * 3 + 8 + 2)


@world.body_on(3)
def a_weight_that_differs_is_named(rank: int) -> None:
    module = model()
    with torch.no_grad():
        module[2].weight[1, 2] += 0.5 * (rank == 1)
        module[0].bias[0] -= 0.25 * (rank > 0)
    words = difference(module)
    assert "2 of 9 tensors differ from rank 0" in words
    assert "parameter '0.bias', (4,) torch.float32: ranks 1 and 2, max abs difference 0.25" in words
    assert "parameter '2.weight', (2, 4) torch.float32: rank 1, max abs difference 0.5" in words


@world.body_on(3)
def buffers_and_gradients_count(rank: int) -> None:
    module = model()
    module[1].num_batches_tracked += rank
    assert "buffer '1.num_batches_tracked', () torch.int64: ranks 1 and 2" in difference(module)
    module[1].num_batches_tracked.zero_()
    module[0].weight.grad = torch.full((4, 3), float(rank == 2))
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    check_sync(module)
    words = difference(module, gradients=True)
    assert "gradient of '0.weight', (4, 3) torch.float32: rank 2, max abs difference 1" in words


@world.body_on(3)
def what_is_missing_or_of_another_kind_is_told(rank: int) -> None:
    module = model()
    if rank == 1:
        module[0].weight.grad = torch.zeros(4, 3)
        module.register_buffer("extra", torch.zeros(2))
        module[2].bias = nn.Parameter(torch.zeros(3))
        module[2].weight = nn.Parameter(module[2].weight.detach().double())
    words = difference(module, gradients=True)
    assert "gradient of '0.weight', absent or (4, 3) torch.float32: rank 1" in words
    assert "buffer 'extra', absent or (2,) torch.float32: rank 1" in words
    assert "'2.bias', (2,) torch.float32 or (3,) torch.float32: rank 1" in words
    assert "'2.weight', (2, 4) torch.float32 or (2, 4) torch.float64: rank 1" in words


test_on_ranks = world.test()


def sha256(tensor: torch.Tensor, name: str = "t") -> str:
    return tensors_sha256([(name, tensor)])


def test_a_hash_tells_a_bit_a_name_a_shape_and_a_dtype_apart_and_ignores_the_layout() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    nearly = ones.clone()
    nearly[2] = torch.nextafter(ones[2], torch.tensor(2.0, dtype=torch.float64))
    others = (nearly, ones.reshape(2, 2), ones.view(torch.int64))
    assert len({sha256(ones), sha256(ones, "u"), *map(sha256, others)}) == 5
    table = torch.arange(12.0).reshape(3, 4)
    for one, same in (
        (table.t(), table.t().contiguous()),
        (torch.eye(3).to_sparse(), torch.eye(3)),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (nn.Parameter(ones), ones),
    ):
        assert sha256(one) == sha256(same)
