"""torch.compile within replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DataParallel
from tests.parallel.ddp.one_process import gradients
from tests.parallel.dp.modules import F64, check_like_alone, parallel, square_mean

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
def test_a_module_is_compiled_once_for_all_replicas_and_steps(
    compiled: Callable[[nn.Module, Any], nn.Module],
) -> None:
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def run(module: nn.Module) -> Tensor:
        is_wrapped = isinstance(module, DataParallel)
        with torch.compiler.set_stance("default" if is_wrapped else "force_eager"):
            return square_mean(module, 6)

    check_like_alone(compiled(Net(), counting), 3, run)
    assert len(graphs) == 1


def test_compiled_replicas_draw_masks_that_differ_and_repeat_with_the_seed() -> None:
    module = by_method(Net(dropout=0.5), "inductor")
    wrapper, x = parallel(module, 2), torch.ones(2, 6, dtype=F64)
    runs = []
    for _ in range(3):
        torch.manual_seed(5)
        output = wrapper(x)
        module.zero_grad()
        output.sum().backward()
        assert None not in gradients(module).values()
        runs.append(output)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(*runs[0])
