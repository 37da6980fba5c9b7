"""Transforms of torch.func, forward-mode AD, and calls with other parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from tests.parallel.dp.modules import assert_same, batch, gradients, parallel, perceptron

X, DIRECTION = batch(6), batch(6, seed=1)


def dual_numbers(wrapped: nn.Module) -> None:
    with forward_ad.dual_level():
        wrapped(forward_ad.make_dual(X, DIRECTION))


USES: dict[str, Callable[[nn.Module], object]] = {
    "jvp": lambda wrapped: jvp(wrapped, (X,), (DIRECTION,)),
    "dual numbers": dual_numbers,
    "vmap": lambda wrapped: vmap(wrapped)(X.view(2, 3, 6)),
    "grad": lambda wrapped: grad(lambda x: wrapped(x).sum())(X),
}


# Forward-mode AD compiles its rules with torch.jit at first use, of which torch itself warns.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_transforms_are_refused(use: Callable[[nn.Module], object]) -> None:
    with pytest.raises(RuntimeError, match=r"belong to one thread.*call its module instead"):
        use(parallel(perceptron(), 2))


@pytest.mark.parametrize("make", [perceptron, lambda: perceptron()[0]])
def test_a_call_with_other_parameters_uses_them(make: Callable[[], nn.Module]) -> None:
    module = make()

    def step(wrapped: nn.Module) -> list[Tensor | None]:
        module.zero_grad()
        doubled = {name: 2 * p for name, p in wrapped.named_parameters()}
        functional_call(wrapped, doubled, (X,)).pow(2).sum().backward()
        return gradients(module)

    wrapper = parallel(module, 2)
    before = list(module.parameters())
    assert_same(step(wrapper), step(module))
    assert all(one is other for one, other in zip(module.parameters(), before, strict=True))


def test_the_names_of_parameters_buffers_and_submodules_lead_to_them_and_no_others() -> None:
    module: Any = perceptron()
    module.register_buffer("mean", torch.ones(1))
    module.note = "not a part"
    wrapper = parallel(module, 2)
    for name, parameter in wrapper.named_parameters():
        assert wrapper.get_parameter(name) is parameter
    assert wrapper.mean is module.mean
    with pytest.raises(AttributeError, match="no attribute 'note'"):
        _ = wrapper.note
