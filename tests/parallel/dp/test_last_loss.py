from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import accumulate
from tests.parallel.dp.modules import (
    F64,
    Losses,
    assert_same,
    batch,
    gradients,
    parallel,
    perceptron,
)

X, Y = batch(10), torch.ones(10, 4, dtype=F64)
Pair = namedtuple("Pair", "penalty loss")


def dict_of(penalty: Tensor, loss: Tensor) -> dict[str, Tensor]:
    return {"penalty": penalty, "loss": loss}


@pytest.mark.parametrize(
    ("kind", "key"), [(Pair, "loss"), (lambda *parts: [*parts], 1), (dict_of, "loss")]
)
def test_the_loss_can_be_named(kind: Callable[..., Any], key: str | int) -> None:
    class TwoScalars(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()

        def forward(self, x: Tensor) -> Any:
            y = self.inner(x)
            return kind(y.abs().mean(), y.pow(2).mean())

    module = TwoScalars()
    module.inner(X).pow(2).mean().backward()
    expected = gradients(module)
    module.zero_grad()
    wrapper = parallel(module, 4, loss_key=key)
    wrapper(X)
    wrapper.backward()
    assert_same(gradients(module), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_losses_that_are_not_gathered_have_a_backward(reduction: Any, replicas: int) -> None:
    module = Losses(reduction)
    loss = module(X, targets=Y)[1]
    (0.5 * loss).backward()
    expected = gradients(module)
    module.zero_grad()
    wrapper = parallel(module, replicas, output_device="none", loss_reduction=reduction)
    outputs = wrapper(X, targets=Y)
    assert [len(logits) for logits, _ in outputs] == {1: [10], 4: [3, 3, 2, 2]}[replicas]
    torch.testing.assert_close(wrapper.backward(0.5), loss.detach(), rtol=1e-12, atol=1e-12)
    assert_same(gradients(module), expected)


def test_backward_gives_the_reason_when_it_is_not_possible() -> None:
    wrapper = parallel(Losses(), 2)
    with pytest.raises(RuntimeError, match="no forward yet"):
        wrapper.backward()
    with torch.no_grad():
        wrapper(X, targets=Y)
    with pytest.raises(RuntimeError, match="no_grad"):
        wrapper.backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        wrapper(X[:, :5], targets=Y)
    with pytest.raises(RuntimeError, match="the last forward failed"):
        wrapper.backward()
    wrapper(X, targets=Y)
    for scale in (float("nan"), float("inf"), "1", True, None):
        with pytest.raises(ValueError, match=f"got scale={scale!r}"):
            wrapper.backward(scale)  # type: ignore[arg-type]
    wrapper.backward()
    with pytest.raises(RuntimeError, match="it has had its backward"):
        wrapper.backward()
    plain = parallel(perceptron(), 2)
    plain(X)
    with pytest.raises(RuntimeError, match="0 0-dim"):
        plain.backward()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_two_routes_together_would_count_twice_and_are_refused(replicas: int) -> None:
    module = Losses()
    wrapper = parallel(module, replicas)
    [_, loss] = wrapper(X, targets=Y)
    loss.backward()
    once = gradients(module)
    with pytest.raises(RuntimeError, match="second time"):
        wrapper.backward()
    [_, loss] = wrapper(X, targets=Y)
    module.zero_grad()
    wrapper.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert_same(gradients(module), once)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(4, 4, 2), (1, 9), (10,)])
def test_unequal_micro_batches_equal_the_large_batch(
    reduction: Any, sizes: tuple[int, ...]
) -> None:
    module = Losses(reduction)
    expected_loss = module(X, targets=Y)[1]
    expected_loss.backward()
    expected = gradients(module)
    wrapper = parallel(module, 3, loss_reduction=reduction)
    parts = zip(X.split(sizes), Y.split(sizes), strict=True)
    batches = [{"x": x, "targets": y} for x, y in parts]
    for _ in range(2):
        module.zero_grad()
        loss = accumulate(wrapper, batches)
        torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-12, atol=1e-12)
        assert not loss.requires_grad
        assert_same(gradients(module), expected)
    with pytest.raises(ValueError, match=r"got batches of \[10, 0\] samples"):
        accumulate(wrapper, [batches[0] | {"x": X, "targets": Y}, {"x": X[:0], "targets": Y[:0]}])


def test_equal_steps_by_hand_equal_the_large_batch() -> None:
    module, steps = Losses(), 5
    wrapper = parallel(module, 2)
    module(X, targets=Y)[1].backward()
    expected = gradients(module)
    for _ in range(2):
        module.zero_grad()
        for part, targets in zip(X.chunk(steps), Y.chunk(steps), strict=True):
            wrapper(part, targets=targets)
            wrapper.backward(scale=1.0 / steps)
        assert_same(gradients(module), expected)
