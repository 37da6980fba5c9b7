from __future__ import annotations

from typing import Any

import pytest
import torch

from dpbench.parallel.dp.accumulation import accumulate
from tests.parallel.dp.modules import (
    F64,
    Losses,
    assert_same,
    batch,
    gradients,
    parallel,
    perceptron,
)

X, Y = batch(10), torch.linspace(0, 1, 40, dtype=F64).view(10, 4)


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


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "got no batches"),
        ([X, ("text",)], "batch 1 has no samples"),
        ([X[:0]], "batch 0 has no samples"),
    ],
)
def test_batches_that_cannot_be_weighed_are_refused(batches: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accumulate(parallel(perceptron(), 2), batches)
