"""Activation checkpointing around the wrapper: the tensors of each replica come back to it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DataParallel
from tests.parallel.dp.modules import F64, Losses, assert_same, batch, gradients, parallel


def network(dropout: float) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 6), nn.Sigmoid()]
    return nn.Sequential(*layers).to(F64)


def step(wrapped: Any, module: nn.Module, retain: bool = False) -> list[Tensor | None]:
    module.zero_grad()
    torch.manual_seed(5)
    x = batch(9).requires_grad_()
    loss = wrapped(x).pow(2).sum()
    if retain:
        loss.backward(retain_graph=True)
    loss.backward()
    return [*gradients(module), x.grad]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_wrapper_has_the_gradients_of_one_that_is_not(
    dropout: float, reentrant: bool
) -> None:
    module = network(dropout)
    wrapper = parallel(module, 3)
    for _ in range(3):
        expected = step(wrapper, module)
        found = step(lambda x: checkpoint(wrapper, x, use_reentrant=reentrant), module)
        assert_same(found, expected)


def test_checkpointed_wrappers_in_a_row_and_in_each_other_keep_their_gradients() -> None:
    first, second = network(0.0), network(0.0)
    plain = nn.Sequential(first, second)
    expected = step(plain, plain, retain=True)
    wrappers = parallel(first, 2), parallel(parallel(second, 2), 2)

    def forward(x: Tensor) -> Any:
        for wrapper in wrappers:
            x = checkpoint(wrapper, x, use_reentrant=False)
        return x

    assert_same(step(forward, plain, retain=True), expected)


def test_nothing_that_replicas_save_outlives_a_checkpointed_forward() -> None:
    module = network(0.0)
    wrapper = parallel(module, 2)
    calls: list[int] = []
    module.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    loss = checkpoint(wrapper, batch(9), use_reentrant=False).sum()
    assert sorted(calls) == [4, 5]
    loss.backward()
    assert sorted(calls) == [4, 4, 5, 5]  # each chunk once more, not once for each replica


def test_the_loss_of_a_repeated_forward_is_not_the_last_one() -> None:
    wrapper = parallel(Losses(), 2)
    targets = torch.ones(9, 4, dtype=F64)
    checkpoint(lambda x: wrapper(x, targets=targets), batch(9), use_reentrant=False)
    wrapper.backward()
    with pytest.raises(RuntimeError, match="the last forward has had its backward"):
        wrapper.backward()


def test_a_replica_may_call_its_own_wrapper() -> None:
    class Twice(nn.Module):
        wrapper: list[DataParallel]

        def __init__(self) -> None:
            super().__init__()
            self.inner = network(0.0)
            self.deeper = threading.local()

        def forward(self, x: Tensor) -> Tensor:
            if getattr(self.deeper, "entered", False):
                return self.inner(x)
            self.deeper.entered = True
            try:
                return self.wrapper[0](x)
            finally:
                self.deeper.entered = False

    module = Twice()
    wrapper = parallel(module, 2)
    module.wrapper = [wrapper]
    expected = step(module.inner, module)
    done = threading.Event()
    threading.Thread(target=lambda: (wrapper(batch(4)), done.set()), daemon=True).start()
    assert done.wait(60)
    assert_same(step(wrapper, module), expected)
