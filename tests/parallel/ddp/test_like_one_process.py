"""Gradients are those of one process: a table of what modules and backwards do, times options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    Run,
    batches,
    check_steps,
    perceptron,
    step,
)
from tests.parallel.worlds import World

world = World(backend="gloo")
Options = dict[str, Any]
PLAIN: list[Options] = [
    {},
    {"bucket_cap_mb": TINY},
    {"bucket_cap_mb_list": [TINY, 1]},
    {"overlap": False, "bucket_cap_mb": TINY},
]
UNUSED: list[Options] = [
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "bucket_cap_mb": TINY},
    {"static_graph": True},
    {"static_graph": True, "bucket_cap_mb": TINY},
]
STATIC: list[Options] = [option for option in UNUSED if "static_graph" in option]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module, and what one iteration does with it."""

    make: Callable[[], nn.Module]
    run: Run
    options: list[Options]


def sample(rank: int, seed: int = 0) -> Tensor:
    return batches(seed, dist.get_world_size())[rank]


def one_step(module: nn.Module, rank: int) -> None:
    step(module, 0, rank)


def autocast(module: nn.Module, rank: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(sample(rank).float()).float().pow(2).mean()
    loss.backward()


def accumulates(module: nn.Module, rank: int) -> None:
    with module.no_sync() if hasattr(module, "no_sync") else nullcontext():
        for seed in range(1, 3):
            step(module, seed, rank)
    step(module, 0, rank)


def two_forwards(module: nn.Module, rank: int) -> None:
    sum(module(sample(rank, seed)).pow(2).mean() for seed in range(2)).backward()


def penalizes_its_slope(module: nn.Module, rank: int) -> None:
    x = sample(rank).requires_grad_()
    loss = module(x).pow(2).mean()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.pow(2).sum()).backward()


class Shared(nn.Module):
    """Autograd gives several of its parameters one tensor as their gradient, expanded or shared."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(4).double()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a + self.b).sum() * x.sum() + self.c.sum()


class Mixed(nn.Module):
    """Several dtypes, a complex one, a memory format, a single number and nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 4)
        self.second = nn.Linear(4, 4).double()
        self.wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.image = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x.float()).double() * self.scale)
        image = self.image(hidden[:2, :, None].float().repeat(2, 1, 3).view(2, 2, 2, 6))
        return hidden.sum() + (hidden * self.wave).abs().sum() + image.sum() + self.nothing.sum()


class Frozen(Branches):
    """One layer is frozen from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.b.requires_grad_(False)


def frozen_for_now(module: nn.Module, rank: int) -> None:
    bare = module.module if hasattr(module, "module") else module
    bare.c.requires_grad_(False)
    step(module, 0, rank)
    bare.c.requires_grad_(True)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Linear(6, 6).double() for _ in range(2))
        self.reentrant, self.times = reentrant, times

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(self.times):
            x = checkpoint(self.b, x.tanh(), use_reentrant=self.reentrant)
        return x


class Words(nn.Module):
    """Adds the rows of two sparse tables, where words are given, to a dense input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 6, sparse=True).double()
        self.bags = nn.EmbeddingBag(7, 6, sparse=True, mode="sum").double()
        self.layer = nn.Linear(6, 4).double()

    def forward(self, x: Tensor, *words: int) -> Tensor:
        if words:
            index = torch.tensor(words)
            x = x + self.words(index).sum(0) + self.bags(index.unsqueeze(0))
        return self.layer(x)


def rows(*by_rank: tuple[int, ...]) -> Run:
    return lambda module, rank: module(sample(rank), *by_rank[rank]).pow(2).mean().backward()


def uses(*by_rank: str) -> Run:
    return lambda module, rank: module(sample(rank), by_rank[rank]).pow(2).mean().backward()


def uses_more_without_sync(module: nn.Module, rank: int) -> None:
    with module.no_sync() if hasattr(module, "no_sync") else nullcontext():
        uses("a", "ab")(module, rank)
    uses("a", "a")(module, rank)


class Nested(Branches):
    def forward(self, x: Tensor, use: str = "") -> dict[str, object]:
        return {"a": self.a(x), "rest": [(self.b(x), None), "text", {"c": self.c(x)}]}


def leaves_outputs_out(module: nn.Module, rank: int) -> None:
    out = module(sample(rank))
    (out["a"].sum() + (out["rest"][0][0].pow(2).sum() if rank else 0)).backward()


def changes_the_output(module: nn.Module, rank: int) -> None:
    module(sample(rank)).mul_(2).pow(2).mean().backward()


CASES: dict[str, Case] = {
    "a perceptron": Case(make=perceptron, run=one_step, options=PLAIN + UNUSED),
    "accumulation in no_sync": Case(make=perceptron, run=accumulates, options=PLAIN + UNUSED[:2]),
    "two forwards, one backward": Case(make=perceptron, run=two_forwards, options=PLAIN + UNUSED),
    "a gradient penalty": Case(make=perceptron, run=penalizes_its_slope, options=PLAIN + UNUSED),
    "autocast": Case(make=lambda: perceptron().float(), run=autocast, options=PLAIN),
    "shared gradients": Case(make=Shared, run=one_step, options=PLAIN),
    "mixed tensors": Case(make=Mixed, run=one_step, options=PLAIN + UNUSED),
    "frozen from the start": Case(make=Frozen, run=one_step, options=PLAIN + UNUSED),
    "frozen for a step": Case(make=Branches, run=frozen_for_now, options=UNUSED[:2]),
    "an output changed in place": Case(make=perceptron, run=changes_the_output, options=UNUSED),
    "sparse rows": Case(make=Words, run=rows((2, 5), (1, 2, 2)), options=PLAIN + UNUSED),
    "sparse rows on one rank": Case(make=Words, run=rows((), (3,)), options=UNUSED),
    "sparse rows on no rank": Case(make=Words, run=rows((), ()), options=UNUSED),
    "other layers on each rank": Case(make=Branches, run=uses("bc", "ab"), options=UNUSED),
    "a layer that nobody uses": Case(make=Branches, run=uses("a", "ab"), options=UNUSED),
    "unused except in no_sync": Case(make=Branches, run=uses_more_without_sync, options=UNUSED[:2]),
    "outputs outside the loss": Case(make=Nested, run=leaves_outputs_out, options=UNUSED),
    "checkpoints": Case(
        make=lambda: Checkpointed(reentrant=False, times=2), run=one_step, options=PLAIN + UNUSED
    ),
    "a reentrant checkpoint": Case(
        make=lambda: Checkpointed(reentrant=True, times=1), run=one_step, options=PLAIN + STATIC
    ),
    "a layer in several reentrant checkpoints": Case(
        make=lambda: Checkpointed(reentrant=True, times=3), run=one_step, options=STATIC
    ),
}


EVERY = ("a perceptron", "sparse rows")
"""Cases that run in every setting."""


def variants(options: list[Options], *, every: bool) -> Iterator[Options]:
    """Options on gloo and on shm, with gradients in the bucket and outside; each in one of these
    settings, or in every one."""
    settings = list(product([None, shm()], (False, True)))
    for number, option in enumerate(options):
        for group, as_view in settings if every else [settings[number % len(settings)]]:
            yield {**option, "process_group": group, "gradient_as_bucket_view": as_view}


@cache
def shm() -> dist.ProcessGroup:
    """A group of all ranks on shm."""
    group: dist.ProcessGroup = dist.new_group(backend="shm")
    return group


@world.body_on(2)
def gradients_are_those_of_one_process(rank: int) -> None:
    for name, case in CASES.items():
        for options in variants(case.options, every=name in EVERY):
            try:
                check_steps(case.make, case.run, rank, **options)
            except BaseException as error:
                error.add_note(f"{name}, {options}")
                raise


@world.body_on(3)
def three_ranks_agree(rank: int) -> None:
    for options in variants(UNUSED, every=True):
        ddp = check_steps(Branches, uses("a", "ab", "a"), rank, **options)
        assert ddp.module.c.weight.grad is None


test_on_ranks = world.test()
