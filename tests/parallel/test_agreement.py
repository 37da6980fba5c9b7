"""Ranks average gradients by hand, take the values of one of them, tell each other messages, decide
together, and name what differs between them."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import RanksDiffer, any_rank, check_sync
from dpbench.parallel.agreement import broadcast_checkpoint, sync_gradients, tensors_sha256
from dpbench.parallel.groups import gather_values
from tests.parallel.ddp.one_process import (
    assert_same,
    error_everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import World

world = World(backend="gloo")


def model(seed: int = 0) -> nn.Module:
    """Layers with parameters and buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@world.body
def averaged_gradients_are_those_of_one_process(rank: int) -> None:
    module = perceptron()
    step(module, 0, rank)
    sync_gradients(module)
    assert_same(gradients(module), mean_gradients(perceptron))


@world.body
def no_gradient_is_zero_unless_nobody_has_one(rank: int) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float32]
    weights = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
    for number, weight in enumerate(weights[:-1]):
        if number % 2 == rank:
            weight.grad = torch.full_like(weight, 2.0)
    sync_gradients(nn.ParameterList(weights))
    for weight, dtype in zip(weights[:-1], dtypes, strict=False):
        assert (weight.grad.dtype, weight.grad.tolist()) == (dtype, [1.0, 1.0])
    assert weights[-1].grad is None
    table = nn.Embedding(3, 1, sparse=True)
    if rank == 0:
        table(torch.tensor([1])).sum().backward()
    words = error_everywhere(lambda: sync_gradients(table))
    assert "parameter 'weight' is sparse on a rank" in words


@world.body
def a_wrapped_module_is_refused(rank: int) -> None:
    wrapped = nn.parallel.DistributedDataParallel(perceptron())
    for module in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(RuntimeError, match="is or contains a DistributedDataParallel"):
            sync_gradients(module)


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


@world.body
def all_ranks_hold_what_the_source_held(rank: int) -> None:
    for source in range(2):
        module = model(seed=rank)
        expected = [t.clone() for t in model(seed=source).state_dict().values()]
        broadcast_checkpoint(module, src=source)
        assert all(map(torch.equal, module.state_dict().values(), expected))
    for wrap in (nn.DataParallel, Ddp):  # one rank has a bare module
        module = model(seed=rank)
        wrapped = wrap(module) if rank or wrap is Ddp else module
        with torch.no_grad():
            module[0].weight += rank
        broadcast_checkpoint(wrapped, src=1)
        check_sync(module)


@world.body
def tensors_of_any_kind_are_sent(rank: int) -> None:
    fill = rank + 1.0
    module = holding(
        brief=torch.full((5,), fill, dtype=torch.bfloat16),
        long_=torch.tensor([torch.nan, fill], dtype=torch.float64),
        count=torch.tensor(rank),
        flags=torch.tensor([rank == 0, True]),
        wave=torch.full((2,), fill * 1j),
        empty=torch.empty(0, 3),
        transposed=torch.full((3, 4), fill).t(),
        strided=torch.full((6,), fill)[::2],
    )
    broadcast_checkpoint(module)
    check_sync(module)
    assert module.count == 0
    assert not module.transposed.is_contiguous()


@world.body
def what_differs_is_named_and_nothing_is_changed(rank: int) -> None:
    module = model(seed=rank)
    if rank:
        module[2] = nn.Linear(4, 3)
    before = module[0].weight.clone()
    words = error_everywhere(lambda: broadcast_checkpoint(module))
    assert "all ranks, but rank 0 has parameter '2.weight': (2, 4) torch.float32" in words
    assert "rank 1 has parameter '2.weight': (3, 4) torch.float32" in words
    assert torch.equal(module[0].weight, before)
    holds = holding(a=torch.ones(1)) if rank else holding()
    words = error_everywhere(lambda: broadcast_checkpoint(holds))
    assert "rank 0 has nothing more, while rank 1 has buffer 'a': (1,) torch.float32" in words
    words = error_everywhere(lambda: broadcast_checkpoint(model(), src=rank))
    assert "rank 0 has option 'src': 0, while rank 1 has option 'src': 1" in words
    for source in (2, -1, True):
        with pytest.raises(ValueError, match=f"got src={source}, expected a rank .*: 0 to 1"):
            broadcast_checkpoint(model(), src=source)


@world.body
def messages_of_any_length_arrive_in_the_order_of_the_ranks(rank: int) -> None:
    group = dist.group.WORLD
    for lengths in ((0, 0), (3, 0), (1024, 1), (1025, 0), (5, 100_000)):
        sent = [chr(65 + other) * length for other, length in enumerate(lengths)]
        assert gather_values(sent[rank], group) == sent
    assert gather_values("ends with zeros\0\0", group)[1] == "ends with zeros\0\0"


class RunsOutOfMemory(nn.Linear):
    """At the second forward of rank 1."""

    forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.forwards == 2 and dist.get_rank() == 1:
            raise torch.OutOfMemoryError("a batch that is too large")
        return super().forward(inputs)


@world.body
def a_batch_that_fails_on_one_rank_is_skipped_on_all(rank: int) -> None:
    for wrap in (Ddp, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        module = wrap(RunsOutOfMemory(3, 2))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        taken = []
        for number in range(4):
            loss = None
            with suppress(torch.OutOfMemoryError):
                loss = module(torch.full((2, 3), float(rank + number))).mean()
            if any_rank(loss is None):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(number)
        assert taken == [0, 2, 3]
        check_sync(module, gradients=True)


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(count)))


@world.body_on(3)
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


@world.body_on(3)
def equal_modules_pass(rank: int) -> None:
    module = model()
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    check_sync(module, gradients=True)
    nn.utils.parameters_to_vector(module.parameters()).sum().backward()  # type: ignore[no-untyped-call]
    check_sync(module, gradients=True)


@world.body_on(3)
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


@world.body_on(3)
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


test_on_ranks = world.test()
