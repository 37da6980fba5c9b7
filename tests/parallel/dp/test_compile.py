"""torch.compile, and functions that hold on to their module, within replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parallel.dp.modules import F64, assert_same, batch, gradients, parallel

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns of much that is torch's own


class Net(nn.Module):
    """Its forward is not one of torch's own, which the compiler leaves alone."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16, dtype=F64)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, 4, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.dropout(self.first(x).tanh()))
        return y


class Graphs:
    """A backend of the compiler that counts what it is given, and runs it as it is."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def by_method(module: nn.Module, backend: Any) -> nn.Module:
    module.compile(backend=backend)
    return module


def by_function(module: nn.Module, backend: Any) -> nn.Module:
    compiled: nn.Module = torch.compile(module, backend=backend)  # type: ignore[assignment]
    return compiled


def a_part(module: nn.Module, backend: Any) -> nn.Module:
    return nn.Sequential(by_method(module, backend), nn.Tanh())


@pytest.mark.parametrize("compiled", [by_method, by_function, a_part])
def test_a_compiled_module_gets_the_gradients_that_it_has_alone(
    compiled: Callable[[nn.Module, Any], nn.Module],
) -> None:
    graphs = Graphs()
    module, x = compiled(Net(), graphs), batch(6)
    wrapper = parallel(module, 3)
    for _ in range(3):
        module.zero_grad()
        wrapper(x).pow(2).mean().backward()
        got = gradients(module)
        assert graphs.count == 1  # for all replicas and all steps
        with torch.compiler.set_stance("force_eager"):
            module.zero_grad()
            module(x).pow(2).mean().backward()
        assert_same(got, gradients(module))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(0.9)


def test_compiled_replicas_draw_masks_that_differ_and_repeat_with_the_seed() -> None:
    module = by_method(Net(dropout=0.5), "inductor")
    wrapper, x = parallel(module, 2), torch.ones(2, 6, dtype=F64)
    runs = []
    for _ in range(3):
        torch.manual_seed(5)
        output = wrapper(x)
        module.zero_grad()
        output.sum().backward()
        assert None not in gradients(module)
        runs.append(output)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(*runs[0])


class Branches(nn.Module):
    """Chooses one of two linear maps by the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positive, self.negative = nn.Linear(6, 4).to(F64), nn.Linear(6, 4).to(F64)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        branches = (lambda y: self.positive(y)), (lambda y: self.negative(y))
        y: Tensor = torch.cond(x.sum() > 0, *branches, (self.dropout(x),))
        return y


def test_higher_order_operators_run_in_replicas() -> None:
    module, x = Branches(), torch.cat([batch(3).abs(), -batch(3).abs()])
    wrapper = parallel(module, 2)
    module.positive(x[:3]).sum().add(module.negative(x[3:]).sum()).backward()
    expected = gradients(module)
    for _ in range(3):
        module.zero_grad()
        wrapper(x).sum().backward()
        assert_same(gradients(module), expected)


class Closures(nn.Module):
    """Calls itself through functions that hold on to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4, dtype=F64)
        self.scale = nn.Parameter(torch.full((4,), 2.0, dtype=F64))
        self.scaled = lambda y: y * self.scale
        self.shifted = partial(torch.add, self.scale)
        later: Callable[[Tensor], Tensor]

        def twice(y: Tensor) -> Tensor:
            return later(y) + later(y)

        self.twice = twice
        if self.training:
            later = self.scaled

    def forward(self, x: Tensor) -> Tensor:
        return self.shifted(self.twice(self.linear(x)))


def test_functions_that_hold_on_to_the_module_use_the_replicas_parameters() -> None:
    module, x = Closures(), batch(5)
    module(x).pow(2).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    parallel(module, 2)(x).pow(2).sum().backward()
    assert_same(gradients(module), expected)
