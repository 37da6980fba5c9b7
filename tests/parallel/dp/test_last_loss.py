from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2, 2), (4, 4, 2), (1, 9)])
def test_scaled_micro_batches_equal_the_large_batch(sizes: tuple[int, ...]) -> None:
    module = Losses()
    wrapper = parallel(module, 2)
    module(X, targets=Y)[1].backward()
    expected = gradients(module)
    for _ in range(2):
        module.zero_grad()
        for part, targets in zip(X.split(sizes), Y.split(sizes), strict=True):
            wrapper(part, targets=targets)
            wrapper.backward(scale=len(part) / len(X))
        assert_same(gradients(module), expected)
