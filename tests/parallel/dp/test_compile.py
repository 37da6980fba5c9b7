"""torch.compile within replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench.parallel import DataParallel
from tests.parallel.ddp.one_process import gradients
from tests.parallel.dp.modules import F64, check_like_alone, parallel, square_mean

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns of much that is torch's own


class Net(nn.Linear):
    """Its forward is not one of torch's own, which the compiler leaves alone."""

    dropout = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x).tanh(), self.dropout)


@pytest.fixture(autouse=True)
def compiler() -> None:
    torch.compiler.reset()


def by_method(module: nn.Module, backend: Any) -> nn.Module:
    module.compile(backend=backend)
    return module


@pytest.mark.parametrize("compiled", [by_method, torch.compile])
def test_a_module_is_compiled_once_for_all_replicas_and_steps(compiled: Any) -> None:
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def run(module: nn.Module) -> Tensor:
        is_wrapped = isinstance(module, DataParallel)
        with torch.compiler.set_stance("default" if is_wrapped else "force_eager"):
            return square_mean(module, 6)

    check_like_alone(compiled(Net(6, 4, dtype=F64), backend=counting), 3, run)
    assert len(graphs) == 1


def test_compiled_replicas_draw_masks_that_differ_and_repeat_with_the_seed() -> None:
    module = Net(6, 16, dtype=F64)
    module.dropout = 0.5
    by_method(module, "inductor")
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
