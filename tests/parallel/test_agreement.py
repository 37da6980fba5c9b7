"""Ranks whose models or options differ all say so, and name the first difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import everywhere
from tests.parallel.ranks import run_ranks


def message(make: Callable[[], nn.Module], kind: type[Exception] = RuntimeError, **options) -> str:
    with pytest.raises(kind) as caught:
        Ddp(make(), **options)
    return str(caught.value)


def same_message(make: Callable[[], nn.Module], **options) -> str:
    words = message(make, **options)
    assert set(everywhere(words)) == {words}
    return words


def with_buffer(buffer: Tensor | None) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", buffer)
    return module


def frozen(*names: str) -> nn.Module:
    module = nn.Linear(2, 2)
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def parameters_that_differ_are_named(rank: int) -> None:
    words = same_message(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3 + rank)))
    assert "parameter '1.weight': (3, 3) torch.float32" in words
    assert "rank 1 has parameter '1.weight': (4, 3)" in words
    words = same_message(lambda: nn.Linear(2, 2, dtype=(torch.float32, torch.float64)[rank]))
    assert "'weight': (2, 2) torch.float32" in words
    assert "torch.float64" in words
    words = same_message(lambda: frozen("bias") if rank else frozen())
    assert "parameter 'bias': (2,) torch.float32 requires_grad=True" in words
    layout = torch.channels_last if rank else torch.contiguous_format
    words = same_message(lambda: nn.Conv2d(2, 3, 2).to(memory_format=layout))
    assert "'weight': (3, 2, 2, 2) strides (8, 1, 4, 2)" in words


def counts_that_differ_are_named(rank: int) -> None:
    for count in (1 + rank, 2 - rank):
        words = same_message(lambda c=count: nn.Sequential(*[nn.Linear(3, 3) for _ in range(c)]))
        counts = (2, 4) if count == 1 + rank else (4, 2)
        assert f"Rank 0 has {counts[0]} params, while rank 1 has inconsistent {counts[1]}" in words
        assert "parameter '1.weight'" in words
        assert "nothing more" in words


def buffers_that_differ_are_named(rank: int) -> None:
    words = same_message(lambda: with_buffer(torch.zeros(2 + rank)))
    assert "buffer 'mask': (2,) torch.float32" in words
    words = same_message(lambda: with_buffer(torch.zeros(2).long() if rank else torch.zeros(2)))
    assert "buffer 'mask': (2,) torch.int64" in words
    words = same_message(lambda: with_buffer(torch.zeros(2) if rank else None))
    assert "rank 0 has nothing more" in words
    Ddp(with_buffer(torch.zeros(2 + rank)), broadcast_buffers=False)


def options_that_differ_are_named(rank: int) -> None:
    assert "option 'bucket caps'" in same_message(lambda: nn.Linear(2, 2), bucket_cap_mb=1 + rank)
    for name in ("find_unused_parameters", "static_graph", "forward_sync_buffers"):
        assert f"option '{name}'" in same_message(lambda: nn.Linear(2, 2), **{name: rank == 1})


def what_only_one_rank_ignores_is_named(rank: int) -> None:
    def make() -> nn.Module:
        module = nn.Linear(2, 2)
        if rank:
            module._ddp_params_and_buffers_to_ignore = ["weight"]
        return module

    assert "parameter 'weight'" in same_message(make)


def a_module_that_only_one_rank_cannot_train_is_an_error_on_all(rank: int) -> None:
    words = message(lambda: frozen("weight", "bias") if rank else frozen())
    assert "'weight': (2, 2) torch.float32 requires_grad=True" in words
    words = message(lambda: nn.LazyLinear(2) if rank else nn.Linear(2, 2))
    assert "weight" in words
    batch = [nn.Linear(2, 2), nn.SyncBatchNorm(2) if rank else nn.BatchNorm1d(2)]
    kind = ValueError if rank else RuntimeError
    words = message(lambda: nn.Sequential(*batch), kind)
    assert "SyncBatchNorm layers only work with GPU modules" in words
    assert ("rank 1" in words) == (rank == 0)


def without_init_sync_nothing_is_compared_or_sent(rank: int) -> None:
    torch.manual_seed(rank)
    ddp = Ddp(nn.Linear(2, 2), init_sync=False)
    weights = everywhere(ddp.module.weight.tolist())
    assert weights[0] != weights[1]


SCENARIOS = [
    parameters_that_differ_are_named,
    counts_that_differ_are_named,
    buffers_that_differ_are_named,
    options_that_differ_are_named,
    what_only_one_rank_ignores_is_named,
    a_module_that_only_one_rank_cannot_train_is_an_error_on_all,
    without_init_sync_nothing_is_compared_or_sent,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_difference_between_ranks_is_named_on_all_of_them(tmp_path: Path, backend: str) -> None:
    run_ranks(SCENARIOS, tmp_path / "store", backend=backend)


def names_the_ranks_that_differ(rank: int) -> None:
    words = same_message(lambda: nn.Linear(2, 2 if rank == 0 else 3))
    assert "while rank 1 has parameter 'weight': (3, 2)" in words
    assert words.endswith("(not as on rank 0: ranks 1 and 2)")
    assert "too" not in same_message(lambda: nn.Linear(2, 3 if rank == 1 else 2))


def test_the_ranks_that_differ_from_the_first_are_listed(tmp_path: Path) -> None:
    run_ranks(names_the_ranks_that_differ, tmp_path / "store", world_size=3)
