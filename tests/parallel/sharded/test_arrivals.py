"""With `overlap`, a step returns before the others' parameters are here, and no forward uses old
ones."""

from __future__ import annotations

import copy
import gc
import io
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import ShardedOptimizer
from tests.parallel.ranks import run_ranks

pytestmark = pytest.mark.slow

WIDTH = 8
STEPS = 4
LATE_SECONDS = 0.05
"""How much later than the other ranks rank 1 steps: a forward that did not wait would be over."""
_numbers = count()


class Tied(nn.Module):
    """Uses a parameter of a module that it has called before, one of a module that it never calls,
    some in a list, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.never_called = nn.Linear(WIDTH, WIDTH)
        self.listed = nn.ParameterList([torch.ones(WIDTH), torch.zeros(WIDTH)])
        self.own = nn.Parameter(torch.ones(WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) * self.own + self.never_called.weight.sum(0) + self.never_called.bias
        hidden = hidden * self.listed[0] + self.listed[1]
        return nn.functional.linear(self.last(hidden), self.first.weight)


class Choosing(nn.Module):
    """Calls one of two modules, as the samples have it."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ways[int(x[0, 0] > 0)](x)
        return out


class FrozenNorm(nn.Sequential):
    """Evaluates a module inside it while it trains itself."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self[1].eval()


def attention() -> nn.Module:
    """It never calls the `out_proj` inside it."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Unflatten(0, (3, 5)), encoder, nn.Flatten(0, 1))


class Fusing(nn.Module):
    """Calls the layer inside it only while it trains with gradients, as fused kernels have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            out: Tensor = self.layer(x)
            return out
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)


def with_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(old, nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))),
    "tied": Tied,
    "choosing": Choosing,
    "frozen norm": FrozenNorm,
    "attention": attention,
    "weight norm": with_weight_norm,
}


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def wrapped(make: Callable[[], nn.Module]) -> tuple[Ddp, ShardedOptimizer]:
    several_buckets = 600 / 2**20
    model = Ddp(built(make), bucket_cap_mb=several_buckets, find_unused_parameters=make is Choosing)
    plain = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, ShardedOptimizer(model, plain, overlap=True)


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 5, WIDTH, generator=generator, dtype=torch.float64).flatten(0, 1)


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return (model(batch(step, rank)) * torch.arange(WIDTH)).square().mean()


def step_late(rank: int, optimizer: ShardedOptimizer) -> None:
    """Step; rank 1 does when the others have returned from it, which they could not by waiting."""
    store, key = dist.distributed_c10d._get_default_store(), f"stepped {next(_numbers)}"
    if rank == 1:
        store.wait([f"{key} 0"], timedelta(seconds=10))
        time.sleep(LATE_SECONDS)
    optimizer.step()
    store.set(f"{key} {rank}", "")


class Reference:
    """One process that trains on the batches of all ranks."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self.model = built(make)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        for rank in range(dist.get_world_size()):
            (loss(self.model, step, rank) / dist.get_world_size()).backward()
        self.optimizer.step()


def assert_close(ours: Any, theirs: Any, name: str = "") -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=lambda m: f"{name}: {m}")


def train(rank: int, model: Ddp, optimizer: ShardedOptimizer, step: int) -> Tensor:
    optimizer.zero_grad()
    found = loss(model, step, rank)
    found.backward()
    step_late(rank, optimizer)
    return found.detach()


def every_forward_uses_the_new_parameters(rank: int) -> None:
    for name, make in MODELS.items():
        model, optimizer = wrapped(make)
        reference = Reference(make)
        for step in range(STEPS):
            expected = loss(reference.model, step, rank).detach()
            assert_close(train(rank, model, optimizer, step), expected, name)
            reference.step(step)
        optimizer.settle()
        ours = dict(model.module.named_parameters())
        assert_close(ours, dict(reference.model.named_parameters()), name)


def an_evaluation_waits_for_all(rank: int) -> None:
    model, optimizer = wrapped(Fusing)
    reference = Reference(Fusing)
    for step, (trains, has_gradients) in enumerate([(True, True), (False, True), (True, False)]):
        train(rank, model, optimizer, step)
        reference.step(step)
        for one in (model, reference.model):
            one.train(trains)
        with torch.set_grad_enabled(has_gradients):
            found, expected = loss(model.module, step, rank), loss(reference.model, step, rank)
        assert_close(found.detach(), expected.detach(), f"{trains=} {has_gradients=}")
        for one in (model, reference.model):
            one.train()


def what_is_saved_and_loaded_is_new(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    reference = Reference(MODELS["layers"])
    for step in range(STEPS):
        train(rank, model, optimizer, step)
        reference.step(step)
        assert_close(model.module.state_dict(), reference.model.state_dict())
    train(rank, model, optimizer, STEPS)
    layer = {name: torch.zeros_like(value) for name, value in model.module[0].state_dict().items()}
    train(rank, model, optimizer, STEPS + 1)
    model.module[0].load_state_dict(layer)
    optimizer.settle()
    assert not any(value.any() for value in model.module[0].state_dict().values())


def copies_of_the_module_are_free(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    optimizer.settle()
    copied = copy.deepcopy(model.module)
    stored = io.BytesIO()
    torch.save(model.module, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    train(rank, model, optimizer, 1)
    for one in (copied, loaded):
        loss(one, 0, rank).backward()
        assert not any("Arrivals" in str(vars(part)) for part in one.modules())
    optimizer.settle()


def modules_are_as_before_when_the_optimizer_is_gone(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    train(rank, model, optimizer, 0)
    module = model.module
    expected = optimizer.gradients()  # only so that all ranks are past their step
    flat = weakref.ref(optimizer._shares[0].bucket.gradients)
    gc.disable()
    try:
        del optimizer
        assert not any(one._forward_pre_hooks for one in module.modules())
        del model, expected
        assert flat() is None
    finally:
        gc.enable()


def compiled_modules_have_no_hooks(rank: int) -> None:
    module = built(MODELS["layers"])
    module[0].compile(backend="eager")
    model = Ddp(module)
    optimizer = ShardedOptimizer(model, optim.SGD(model.parameters(), lr=0.1), overlap=True)
    assert not any(one._forward_pre_hooks for one in module.modules())
    optimizer.zero_grad()
    loss(model, 0, rank).backward()
    optimizer.step()


CASES = [
    every_forward_uses_the_new_parameters,
    an_evaluation_waits_for_all,
    what_is_saved_and_loaded_is_new,
    copies_of_the_module_are_free,
    modules_are_as_before_when_the_optimizer_is_gone,
    compiled_modules_have_no_hooks,
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_arrive_in_the_next_forward(tmp_path: Path, ranks: int) -> None:
    run_ranks(CASES, tmp_path / "store", ranks, timeout=120.0)


def nothing_is_under_way(rank: int) -> None:
    model, optimizer = wrapped(MODELS["layers"])
    loss(model, 0, rank).backward()
    optimizer.step()
    assert not any(one._forward_pre_hooks for one in model.module.modules())


def test_nothing_is_under_way_where_ranks_share_memory(tmp_path: Path) -> None:
    run_ranks(nothing_is_under_way, tmp_path / "store", backend="shm")
