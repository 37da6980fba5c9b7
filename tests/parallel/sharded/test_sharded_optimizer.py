"""Sharded steps give the parameters and the state of the plain optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import ShardedOptimizer
from dpbench.parallel.groups import gather_values, member_group
from dpbench.parallel.sharded.optimizer import ELEMENTWISE
from tests.parallel.ranks import World

world = World(backend="gloo", sizes=(2, 3))
Make = Callable[[Iterable[Any]], optim.Optimizer]
# Kernels that step each parameter alone: their results do not depend on how elements are grouped.
EXACT: dict[str, Make] = {
    "momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, foreach=False),
    "Adam": lambda params: optim.Adam(params, lr=0.01, amsgrad=True, foreach=False),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1, foreach=False),
}
OTHERS: tuple[Make, ...] = (
    lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    lambda params: optim.AdamW(params, lr=0.01),
    lambda params: optim.AdamW(params, lr=0.01, foreach=True),
    lambda params: optim.Adadelta(params, lr=0.5),
    lambda params: optim.Adagrad(params, lr=0.05, initial_accumulator_value=0.1),
    lambda params: optim.Adamax(params, lr=0.01),
    lambda params: optim.NAdam(params, lr=0.01),
    lambda params: optim.RAdam(params, lr=0.01),
    lambda params: optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    lambda params: optim.Rprop(params, lr=0.01),
)


class Model(nn.Module):
    """Layers of several shapes and dtypes, a single number, and one that calls may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 9)
        self.second = nn.Linear(9, 11, bias=False)
        self.side = nn.Linear(9, 11)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.norm = nn.LayerNorm(11).double()

    def forward(self, x: Tensor, side: bool = True) -> Tensor:
        hidden = torch.tanh(self.first(x)) * self.scale
        out = self.second(hidden)
        return self.norm((out + self.side(hidden) if side else out).double())


def loss(module: nn.Module, seed: int, **options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    x = torch.randn(5, 6, generator=generator)
    return (module(x, **options) * torch.arange(11)).square().mean() / 100


Sides = tuple[tuple[nn.Module, Any], ...]


def pairs(make: Make, **options: Any) -> Iterator[Sides]:
    """A model with a ShardedOptimizer and one with the plain optimizer, on gloo and on shm."""
    for group in (None, dist.new_group(backend="shm")):
        sharded = Ddp(Model(), process_group=group, gradient_as_bucket_view=True, **options)
        plain = Ddp(Model(), process_group=group, **options)
        yield (
            (sharded, ShardedOptimizer(sharded, make(sharded.parameters()))),
            (plain, make(plain.parameters())),
        )


def assert_same(sides: Sides, *, exactly: bool) -> None:
    tolerance = 0.0 if exactly else 1e-5
    expected, *found = ([*model.parameters()] for model, _ in sides)
    for got in found:
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def train(sides: Sides, steps: Iterable[int]) -> None:
    """Steps with gradients accumulated and dropped in four ways, and steps that are skipped."""
    for (model, optimizer), seed in product(sides, steps):
        optimizer.zero_grad(set_to_none=seed % 2 == 0)
        if seed % 5 == 1:
            with model.no_sync():
                loss(model, seed + 100).backward()
        loss(model, seed).backward()
        if seed % 7 == 3:
            for parameter in model.parameters():
                parameter.grad = None
        if seed % 7 == 4:
            model.zero_grad()
        if seed % 7 == 5:
            model.module.side.weight.grad = None
        if seed % 4 == 3:
            continue
        optimizer.step()  # uses up nothing without zero_grad


@world.body
def twenty_steps_are_those_of_the_plain_optimizer(rank: int) -> None:
    for make in EXACT.values():
        for sides in pairs(make, bucket_cap_mb=3e-4):
            train(sides, range(20))
            on_two = dist.get_world_size() == 2  # of more, gloo sums the parts in another order
            assert_same(sides, exactly=on_two)


@world.body_on(2)
def every_optimizer_that_is_offered_makes_the_plain_steps(rank: int) -> None:
    for make in OTHERS:
        for sides in pairs(make):
            train(sides, range(4))
            assert_same(sides, exactly=False)
    tried = {type(make([nn.Parameter(torch.zeros(1))])) for make in (*EXACT.values(), *OTHERS)}
    assert tried == set(ELEMENTWISE)


@world.body
def clipping_takes_the_norm_of_all_shares(rank: int) -> None:
    for norm_type in (2.0, 1.0, float("inf")):
        for sides in pairs(EXACT["momentum"]):
            (sharded_model, sharded), (plain_model, plain) = sides
            for seed, limit in ((0, 0.5), (1, 1e9)):
                for model, optimizer in sides:
                    optimizer.zero_grad()
                    for more in (0, 10):  # two backwards that reduce add up
                        loss(model, seed + more).backward()
                norm = sharded.clip_grad_norm_(limit, norm_type)
                expected = nn.utils.clip_grad_norm_(plain_model.parameters(), limit, norm_type)
                torch.testing.assert_close(norm.double(), expected.double(), rtol=1e-5, atol=1e-7)
                averages = sharded.gradients()
                found = [averages[parameter] for parameter in sharded_model.parameters()]
                gradients = [parameter.grad for parameter in plain_model.parameters()]
                torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-7)
                sharded.step()
                plain.step()
            assert_same(sides, exactly=False)


@world.body_on(2)
def parameters_may_be_unused_frozen_and_in_groups(rank: int) -> None:
    def make(params: Iterable[nn.Parameter]) -> optim.Optimizer:
        listed = list(params)
        groups = [
            {"params": [p for p in listed if p.dim() > 1], "weight_decay": 0.3},
            {"params": [p for p in listed if p.dim() <= 1], "lr": 0.1, "betas": (0.5, 0.9)},
        ]
        return optim.AdamW(groups, lr=0.01, foreach=False)

    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        for sides in pairs(make, **options):
            for model, optimizer in sides:
                schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
                for seed in range(5):
                    optimizer.zero_grad()
                    is_static = "static_graph" in options
                    side = seed in (1, 2) and not is_static
                    model.module.first.bias.requires_grad_(is_static or seed != 3)
                    loss(model, seed, side=side).backward()
                    optimizer.step()
                    schedule.step()
            assert_same(sides, exactly=True)
            (_, sharded), (_, plain) = sides
            if state := sharded.state_dict():
                torch.testing.assert_close(state["state"], plain.state_dict()["state"])


@world.body
def states_are_whole_and_load_anywhere(rank: int) -> None:
    """The plain optimizer's state dict fits, so it does not depend on the number of ranks."""
    for make in EXACT.values():
        for sides in pairs(make):
            (model, sharded), (plain_model, plain) = sides
            train(sides, range(3))
            saved, weights = sharded.state_dict(), model.module.state_dict()
            assert (saved == {}) == (rank > 0)
            state = gather_values(saved, member_group(None, "test"))[0]
            assert state["param_groups"] == plain.state_dict()["param_groups"]
            other = Ddp(Model())
            other.module.load_state_dict(weights)
            resumed = make(other.parameters())
            resumed.load_state_dict(state)
            continued = ShardedOptimizer(other, resumed)
            plain_model.module.load_state_dict(weights)
            plain.load_state_dict(copy.deepcopy(state))
            sharded.load_state_dict(plain.state_dict())
            sides = ((plain_model, plain), (model, sharded), (other, continued))
            train(sides, range(3, 6))
            assert_same(sides, exactly=dist.get_world_size() == 2)


@world.body_on(2)
def what_makes_no_sense_is_refused(rank: int) -> None:
    adamw = EXACT["AdamW"]
    model = Ddp(Model())
    torchs = nn.parallel.DistributedDataParallel(Model())
    plain = adamw(model.parameters())
    some = list(model.parameters())[:-1]
    more = [*model.parameters(), nn.Parameter(torch.zeros(3))]
    for wrapper, optimizer, kind, words in (
        (model.module, plain, TypeError, r"got a .*Model, expected a dpbench.DistributedData"),
        (torchs, plain, TypeError, "got a torch.nn.parallel.distributed.*expected a dpbench"),
        (model, optim.LBFGS(some), TypeError, r"got LBFGS, expected one of .* SGD, Adam, AdamW"),
        (model, adamw(some), ValueError, "exactly the parameters that the model reduces"),
        (model, adamw(more), ValueError, "exactly the parameters that the model reduces"),
    ):
        with pytest.raises(kind, match=words):
            ShardedOptimizer(wrapper, optimizer)
    optimizer = ShardedOptimizer(model, plain)
    with pytest.raises(RuntimeError, match="can only be called once"):
        ShardedOptimizer(model, adamw(model.parameters()))
    for call in (plain.step, plain.state_dict, lambda: plain.load_state_dict({})):
        with pytest.raises(RuntimeError, match="stepped by a ShardedOptimizer"):
            call()
    with model.no_sync():
        loss(model, 0).backward()
    with pytest.raises(RuntimeError, match="no backward has reduced"):
        optimizer.step()
    for _ in range(2):
        optimizer.zero_grad()
        loss(model, 0).backward()
        optimizer.step()
    model.module.scale.data = model.module.scale.data.clone()
    loss(model, 0).backward()
    with pytest.raises(RuntimeError, match="other memory"):
        optimizer.step()


test_on_ranks = world.test()
