"""Which parts of a model are sharded by themselves, and what a rank then holds."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dpbench.measure.implementations import wrap
from dpbench.measure.implementations.fsdp2 import sharded_blocks
from tests.builders import configuration
from tests.measure.implementations.architectures import Rows, TwoTowers
from tests.parallel.ranks import run_ranks


def names(module: nn.Module) -> list[str]:
    by_identity = {id(child): name for name, child in module.named_modules()}
    return [by_identity[id(block)] for block in sharded_blocks(module)]


def test_members_of_lists_are_blocks_if_their_parameters_are_theirs_alone() -> None:
    twice = nn.Linear(2, 2)
    assert names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ["0", "2"]
    assert names(TwoTowers()) == ["layers.0", "layers.2"]
    assert names(nn.Sequential(twice, nn.Linear(2, 2), twice)) == ["1"]


def held(rank: int) -> tuple[int, int, int]:
    torch.manual_seed(0)
    module = Rows().build_model()
    whole = sum(p.numel() for p in module.parameters())
    model = wrap(module, configuration(implementation="fsdp2"), rank)
    shards = sum(p.to_local().numel() for p in module.parameters())  # type: ignore[operator]
    inputs = torch.randn(3, 4)
    with model.accumulate_only():
        model.backward(model.forward(inputs).sum())
    unreduced = sum(p.grad is not None for p in module.parameters())
    model.backward(model.forward(inputs).sum())
    assert all(p.grad is not None for p in module.parameters())
    return whole, shards, unreduced


def test_ranks_hold_the_parameters_between_them(tmp_path: Path) -> None:
    (whole, first, unreduced), (_, second, _) = run_ranks(held, tmp_path / "store")
    assert first + second == whole
    assert 0 < second < whole / 2 + 2
    assert unreduced == 0
