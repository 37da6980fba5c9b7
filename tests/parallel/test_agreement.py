"""Ranks whose models or options differ all say so, and name the first difference."""

from __future__ import annotations

import torch
from torch import nn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.agreement import RanksDiffer, check_sync, tensors_sha256
from tests.parallel.ddp.one_process import error_everywhere
from tests.parallel.ranks import model
from tests.parallel.worlds import World

world = World(backend="gloo", sizes=(3,))
MODEL_BYTES = 4 * (12 + 4 + 4 + 4 + 8 + 2 + 4 + 4) + 8  # of `model`, which has an int64 counter


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(count)))


@world.body
def modules_that_differ_are_refused_with_parameter_and_ranks(rank: int) -> None:
    dtype = torch.float64 if rank else torch.float32
    layout = torch.channels_last if rank else torch.contiguous_format
    for module, words in (
        (
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4 if rank else 3)),
            "rank 0 has parameter '1.weight': (3, 3) torch.float32 requires_grad=True, while rank "
            "1 has parameter '1.weight': (4, 3) torch.float32 requires_grad=True (not as on rank "
            "0: ranks 1 and 2)",
        ),
        (nn.Linear(2, 2, dtype=dtype), "rank 1 has parameter 'weight': (2, 2) torch.float64"),
        (
            nn.Conv2d(2, 3, 2).to(memory_format=layout),
            "rank 1 has parameter 'weight': (3, 2, 2, 2) strides (8, 1, 4, 2)",
        ),
        (layers(1 + (rank == 1)), "has nothing more, while rank 1 has parameter '1.weight'"),
        (layers(2 - (rank == 2)), "while rank 2 has nothing more (not as on rank 0: rank 2)"),
    ):
        assert words in error_everywhere(lambda module=module: Ddp(module))


@world.body
def equal_modules_pass(rank: int) -> None:
    module = model()
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    assert check_sync(module, gradients=True) == MODEL_BYTES + 16
    nn.utils.parameters_to_vector(module.parameters()).sum().backward()  # type: ignore[no-untyped-call]
    assert check_sync(module, gradients=True) == MODEL_BYTES + 16 + 4 * (12 + 4 * 3 + 8 + 2)


@world.body
def tensors_that_differ_are_named_with_ranks_and_distance(rank: int) -> None:
    module = model()
    with torch.no_grad():
        module[2].weight[1, 2] += 0.5 * (rank == 1)
        module[0].bias[0] -= 0.25 * (rank > 0)
    module[1].num_batches_tracked += rank
    module[0].weight.grad = torch.full((4, 3), float(rank == 2))
    words = error_everywhere(lambda: check_sync(module), RanksDiffer)
    assert "3 of 9 tensors differ from rank 0" in words
    assert "parameter '0.bias', (4,) torch.float32: ranks 1 and 2, max abs difference 0.25" in words
    assert "parameter '2.weight', (2, 4) torch.float32: rank 1, max abs difference 0.5" in words
    assert "buffer '1.num_batches_tracked', () torch.int64: ranks 1 and 2" in words
    words = error_everywhere(lambda: check_sync(module, gradients=True), RanksDiffer)
    assert "gradient of '0.weight', (4, 3) torch.float32: rank 2, max abs difference 1" in words


@world.body
def what_is_missing_or_of_another_kind_is_named(rank: int) -> None:
    module = model()
    if rank == 1:
        module[0].weight.grad = torch.zeros(4, 3)
        module.register_buffer("extra", torch.zeros(2))
        module[2].bias = nn.Parameter(torch.zeros(3))
        module[2].weight = nn.Parameter(module[2].weight.detach().double())
    words = error_everywhere(lambda: check_sync(module, gradients=True), RanksDiffer)
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
