"""The wrapped module may do what any module does: return anything, compile, checkpoint, cast."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_same,
    batches,
    check_steps,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Output:
    loss: Tensor
    extra: object


class Shapes(nn.Module):
    """Returns what `build` makes of its output."""

    def __init__(self, build: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers = perceptron()
        self.build = build

    def forward(self, x: Tensor) -> Any:
        return self.build(self.layers(x))


def outputs_of_any_nesting_come_out_as_they_are(rank: int) -> None:
    builds: list[tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = [
        (lambda y: y, lambda out: out),
        (lambda y: (y, y.shape), lambda out: out[0]),
        (lambda y: [y, y], lambda out: out[1]),
        (lambda y: y.max(0), lambda out: out.values),
        (lambda y: Pair(None, {"deep": [(y,)]}), lambda out: out.second["deep"][0][0]),
        (lambda y: Output(y.sum(), {1, 2}), lambda out: out.loss),
        (lambda y: OrderedDict(a=y, b=()), lambda out: out["a"]),
        (lambda y: nn.utils.rnn.pack_sequence([y]), lambda out: out.data),
    ]
    for build, pick in builds:

        def run(module: nn.Module, rank: int, pick: Callable[[Any], Tensor] = pick) -> None:
            pick(module(batches(0)[rank])).pow(2).mean().backward()

        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            ddp = check_steps(lambda b=build: Shapes(b), run, rank, steps=2, **options)
            got, bare = ddp(batches(0)[rank]), ddp.module(batches(0)[rank])
            assert type(got) is type(bare)
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        assert Ddp(Shapes(lambda y: None), **options)(batches(0)[rank]) is None


def keyword_arguments_and_hooks_pass_once(rank: int) -> None:
    ddp = Ddp(Branches())
    calls: list[str] = []
    ddp.register_forward_hook(lambda *_: calls.append("wrapper"))
    ddp.module.register_forward_hook(lambda *_: calls.append("module"))
    ddp(x=batches(0)[rank], use="abc").sum().backward()
    assert calls == ["module", "wrapper"]
    with pytest.raises(AttributeError):
        ddp.a  # noqa: B018


def autocast_changes_nothing_but_the_forward(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(batches(0)[rank].float()).float().pow(2).mean()
        loss.backward()

    check_steps(lambda: perceptron().float(), run, rank)


def an_overflow_on_one_rank_skips_the_step_on_all(rank: int) -> None:
    ddp = Ddp(perceptron().float())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [p.detach().clone() for p in ddp.parameters()]
    for overflows in (True, False):
        optimizer.zero_grad()
        loss = ddp(batches(0)[rank].float()).pow(2).mean()
        scaler.scale(loss * (float("inf") if overflows and rank == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0
        unchanged = [torch.equal(p, old) for p, old in zip(ddp.parameters(), before, strict=True)]
        assert all(unchanged) == overflows
    assert len({str(value) for value in everywhere([p.tolist() for p in ddp.parameters()])}) == 1


def functional_calls_inside_are_reduced(rank: int) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            doubled = {name: 2 * p for name, p in self.layers.named_parameters()}
            return torch.func.functional_call(self.layers, doubled, x)

    check_steps(Functional, lambda module, rank: step(module, 0, rank), rank)


def compiled_modules_are_reduced(rank: int) -> None:
    ddp = Ddp(torch.compile(perceptron(), backend="eager"), bucket_cap_mb=TINY)
    for seed in range(3):
        ddp.zero_grad()
        step(ddp, seed, rank)
        got = {name.removeprefix("_orig_mod."): grad for name, grad in gradients(ddp).items()}
        expected = mean_gradients(perceptron, lambda m, r, seed=seed: step(m, seed, r))
        assert_same(got, expected)


def a_compiled_graph_is_divided_where_buckets_end(rank: int) -> None:
    """Else its backward pass would hand out every gradient at its end, and overlap nothing."""

    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        sizes = [6, *[420] * 4, 4]  # 1.3 MiB a layer: the first bucket closes at 1 MiB
        return nn.Sequential(*(nn.Linear(a, b).double() for a, b in pairwise(sizes)))

    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    ddp = Ddp(torch.compile(layers(), backend=counting), bucket_cap_mb=1)
    step(ddp, 0, rank)
    assert len(graphs) >= 4
    got = {name.removeprefix("_orig_mod."): grad for name, grad in gradients(ddp).items()}
    assert_same(got, mean_gradients(layers, lambda m, r: step(m, 0, r)))
    inside = len(graphs)
    torch.compile(layers(), backend=counting)(torch.ones(2, 6).double())
    assert len(graphs) == inside + 1, "outside of ddp nothing is divided"


def checkpoints_inside_are_reduced(rank: int) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, *, reentrant: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = (nn.Linear(6, 6).double() for _ in range(2))
            self.reentrant = reentrant

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.b, self.a(x).tanh(), use_reentrant=self.reentrant)

    for reentrant in (True, False):
        for cap in (None, TINY):
            check_steps(
                lambda r=reentrant: Checkpointed(reentrant=r),
                lambda module, rank: step(module, 0, rank),
                rank,
                bucket_cap_mb=cap,
            )


def trains_as_one_process_does(rank: int) -> None:
    for build_first in (True, False):
        module, alone = perceptron(), perceptron()
        if build_first:
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        ddp = Ddp(module)
        if not build_first:
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        other = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        for seed in range(4):
            optimizer.zero_grad(set_to_none=seed % 2 == 0)
            step(ddp, seed, rank)
            optimizer.step()
            other.zero_grad()
            alone(batches(seed).flatten(0, 1)).pow(2).mean().backward()
            other.step()
        assert_same(dict(module.named_parameters()), dict(alone.named_parameters()))


SCENARIOS = [
    outputs_of_any_nesting_come_out_as_they_are,
    keyword_arguments_and_hooks_pass_once,
    autocast_changes_nothing_but_the_forward,
    an_overflow_on_one_rank_skips_the_step_on_all,
    functional_calls_inside_are_reduced,
    checkpoints_inside_are_reduced,
    compiled_modules_are_reduced,
    a_compiled_graph_is_divided_where_buckets_end,
    trains_as_one_process_does,
]


def test_whatever_the_module_does_is_reduced(tmp_path: Path) -> None:
    run_ranks(SCENARIOS, tmp_path / "store")
