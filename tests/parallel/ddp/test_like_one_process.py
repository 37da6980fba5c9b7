"""Gradients are those of one process: a table of what modules and backwards do, times options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    Checkpointed,
    Gradients,
    Run,
    assert_same,
    bare,
    batches,
    check_steps,
    gradients,
    mean_gradients,
    one_step,
    perceptron,
    step,
)
from tests.parallel.ranks import World

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


def sample(rank: int, seed: int = 0) -> Tensor:
    return batches(seed, dist.get_world_size())[rank]


def autocast(module: nn.Module, rank: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(sample(rank).float()).float().pow(2).mean()
    loss.backward()


def without_sync(module: nn.Module) -> Any:
    return module.no_sync() if isinstance(module, Ddp) else nullcontext()


def accumulates(module: nn.Module, rank: int) -> None:
    with without_sync(module):
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


def changes_the_output(module: nn.Module, rank: int) -> None:
    module(sample(rank)).mul_(2).pow(2).mean().backward()


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


def frozen() -> Branches:
    module = Branches()
    module.b.requires_grad_(False)
    return module


def frozen_for_now(module: nn.Module, rank: int) -> None:
    bare(module).c.requires_grad_(False)
    step(module, 0, rank)
    bare(module).c.requires_grad_(True)


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
    with without_sync(module):
        uses("a", "ab")(module, rank)
    uses("a", "a")(module, rank)


class Keeps(Branches):
    """Returns its outputs in containers, and keeps one of them."""

    def forward(self, x: Tensor, use: str = "") -> dict[str, object]:
        self.kept = self.b(x)
        return {"a": self.a(x), "rest": [(self.b(x), None), "text", {"c": self.c(x)}]}


def leaves_outputs_out(module: nn.Module, rank: int) -> None:
    out = module(sample(rank))
    (out["a"].sum() + (out["rest"][0][0].pow(2).sum() if rank else 0)).backward()


def ignores_the_output(module: nn.Module, rank: int) -> None:
    module(sample(rank))
    bare(module).kept.pow(2).mean().backward()


reentrant = partial(Checkpointed, reentrant=True)
CASES: dict[str, tuple[Callable[[], nn.Module], Run, list[Options]]] = {
    "a perceptron": (perceptron, one_step, PLAIN + UNUSED),
    "accumulation in no_sync": (perceptron, accumulates, PLAIN + UNUSED[:2]),
    "two forwards, one backward": (perceptron, two_forwards, PLAIN + UNUSED),
    "a gradient penalty": (perceptron, penalizes_its_slope, PLAIN + UNUSED),
    "autocast": (lambda: perceptron().float(), autocast, PLAIN),
    "shared gradients": (Shared, one_step, PLAIN),
    "mixed tensors": (Mixed, one_step, PLAIN + UNUSED),
    "frozen from the start": (frozen, one_step, PLAIN + UNUSED),
    "frozen for a step": (Branches, frozen_for_now, UNUSED[:2]),
    "an output changed in place": (perceptron, changes_the_output, UNUSED),
    "sparse rows": (Words, rows((2, 5), (1, 2, 2)), PLAIN + UNUSED),
    "sparse rows on one rank": (Words, rows((), (3,)), UNUSED),
    "sparse rows on no rank": (Words, rows((), ()), UNUSED),
    "other layers on each rank": (Branches, uses("bc", "ab"), UNUSED),
    "a layer that nobody uses": (Branches, uses("a", "ab"), UNUSED),
    "unused except in no_sync": (Branches, uses_more_without_sync, UNUSED[:2]),
    "outputs outside the loss": (Keeps, leaves_outputs_out, UNUSED),
    "a loss outside the output": (Keeps, ignores_the_output, UNUSED),
    "checkpoints": (partial(Checkpointed, times=2), one_step, PLAIN + UNUSED),
    "a reentrant checkpoint": (reentrant, one_step, PLAIN + UNUSED[2:]),
    "a layer in several": (partial(reentrant, times=3), one_step, UNUSED[2:]),
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
    for name, (make, run, options) in CASES.items():
        for variant in variants(options, every=name in EVERY):
            try:
                check_steps(make, run, rank, **variant)
            except BaseException as error:
                error.add_note(f"{name}, {variant}")
                raise


@world.body_on(3)
def three_ranks_agree(rank: int) -> None:
    for options in variants(UNUSED, every=True):
        ddp = check_steps(Branches, uses("a", "ab", "a"), rank, **options)
        assert ddp.module.c.weight.grad is None


def images() -> nn.Sequential:
    """Gradients so large that each is copied into the bucket by itself."""
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 4096, (1, 2)), nn.Linear(4096, 2)
    return nn.Sequential(nn.Unflatten(1, (3, 1, 2)), first, nn.Flatten(), last).double()


def channels_last(module: nn.Module) -> None:
    module.to(memory_format=torch.channels_last)


def gradients_in_other_memory(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad.data = parameter.grad.data.clone()


def steps_after(change: Callable[[nn.Module], None], ddp: nn.Module, rank: int) -> list[Gradients]:
    """The gradients of steps after two steps and a change of the module."""
    for _ in range(2):
        ddp.zero_grad()
        one_step(ddp, rank)
    change(ddp.module)
    found = []
    for set_to_none in (False, True, True):
        ddp.zero_grad(set_to_none=set_to_none)
        one_step(ddp, rank)
        found.append(gradients(ddp))
    return found


@world.body_on(2)
def gradients_stay_exact_when_memory_changes_after_wrapping(rank: int) -> None:
    """docs/parallel.md says so, and that those of torch's class do not."""
    expected = mean_gradients(images)
    changes = (channels_last, gradients_in_other_memory)
    for change, group, as_view in product(changes, (None, shm()), (False, True)):
        ddp = Ddp(images(), process_group=group, gradient_as_bucket_view=as_view)
        for found in steps_after(change, ddp, rank):
            assert_same(found, expected)
        # Fused optimizers take the memory of both as it is.
        assert all(one.grad.stride() == one.stride() for one in ddp.parameters())
    for as_view in (False, True):
        torchs = nn.parallel.DistributedDataParallel(images(), gradient_as_bucket_view=as_view)
        got = steps_after(channels_last, torchs, rank)[-1]["1.weight"]
        assert not torch.allclose(got, expected["1.weight"], rtol=1e-3, atol=1e-5)


test_on_ranks = world.test()
