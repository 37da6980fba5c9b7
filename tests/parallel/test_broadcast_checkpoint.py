"""After a broadcast all ranks hold what the source holds; what does not fit is said by all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpbench.parallel import DistributedDataParallel, check_sync
from dpbench.parallel.synchronization import broadcast_checkpoint
from tests.parallel.ddp.one_process import everywhere
from tests.parallel.ranks import model
from tests.parallel.worlds import World

world = World(backend="gloo")


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def message(module: nn.Module, kind: type[Exception] = RuntimeError, **options: Any) -> str:
    """What is said on this rank; it must be said on every rank."""
    with pytest.raises(kind) as caught:
        broadcast_checkpoint(module, **options)
    words = str(caught.value).removeprefix("broadcast_checkpoint: ")
    assert set(everywhere(words)) == {words}
    return words


@world.body
def all_ranks_hold_what_the_source_held(rank: int) -> None:
    for source in range(2):
        module = model(seed=rank)
        expected = [t.clone() for t in model(seed=source).state_dict().values()]
        assert broadcast_checkpoint(module, src=source) == 4 * (12 + 4 + 4 + 4 + 8 + 2 + 4 + 4) + 8
        assert all(map(torch.equal, module.state_dict().values(), expected))
        check_sync(module)


@world.body
def tensors_of_any_kind_travel(rank: int) -> None:
    fill = rank + 1.0
    grid = torch.full((3, 4), fill)
    module = holding(
        brief=torch.full((5,), fill, dtype=torch.bfloat16),
        long_=torch.tensor([torch.nan, fill], dtype=torch.float64),
        count=torch.tensor(rank),
        flags=torch.tensor([rank == 0, True]),
        small=torch.full((3,), rank, dtype=torch.uint8),
        wave=torch.full((2,), fill * 1j),
        empty=torch.empty(0, 3),
        transposed=grid.t(),
        strided=torch.full((6,), fill)[::2],
    )
    broadcast_checkpoint(module)
    check_sync(module)
    assert module.count == 0
    assert not module.transposed.is_contiguous()


@world.body
def wrapped_and_bare_modules_meet(rank: int) -> None:
    for wrap in (nn.DataParallel, DistributedDataParallel):
        module = model(seed=rank)
        wrapped = wrap(module) if rank or wrap is DistributedDataParallel else module
        with torch.no_grad():
            module[0].weight += rank
        broadcast_checkpoint(wrapped, src=1)
        check_sync(module)


@world.body
def what_differs_is_named_and_nothing_is_changed(rank: int) -> None:
    module = model(seed=rank)
    if rank:
        module[2] = nn.Linear(4, 3)
    before = module[0].weight.clone()
    words = message(module)
    assert "all ranks, but rank 0 has parameter '2.weight': (2, 4) torch.float32" in words
    assert "rank 1 has parameter '2.weight': (3, 4) torch.float32" in words
    assert torch.equal(module[0].weight, before)
    words = message(holding(a=torch.ones(1)) if rank else holding())
    assert "rank 0 has nothing more, while rank 1 has buffer 'a': (1,) torch.float32" in words


@world.body
def a_source_that_is_none_is_refused(rank: int) -> None:
    for source in (2, -1, True):
        words = message(model(0), ValueError, src=source)
        assert words == f"got src={source}, expected a rank of the group: 0 to 1"
    words = message(model(0), src=rank)
    assert "rank 0 has option 'src': 0, while rank 1 has option 'src': 1" in words


test_on_ranks = world.test()
