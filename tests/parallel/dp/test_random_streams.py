from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parallel.ddp.one_process import Checkpointed, perceptron
from tests.parallel.dp.modules import batch, parallel

ONES = torch.ones(64, 40)
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "feature dropout": lambda x: F.dropout2d(x.view(-1, 40, 1, 1)),
    "attention": lambda x: F.scaled_dot_product_attention(
        x.view(-1, 5, 8), x.view(-1, 5, 8), x.view(-1, 5, 8), dropout_p=0.5
    ),
    "rand": lambda x: torch.rand(x.shape),
    "randint": lambda x: torch.randint(3, 1000, x.shape).float(),
    "normal": lambda x: torch.distributions.Normal(0.0, 1.0).sample(x.shape),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_differ_between_replicas_and_repeat_with_the_seed(
    draw: Callable[[Tensor], Tensor],
) -> None:
    module = nn.Module()
    module.forward = draw
    wrapper = parallel(module, 2)
    runs = []
    for _ in range(5):
        torch.manual_seed(3)
        runs.append([wrapper(ONES), wrapper(ONES), torch.rand(2)])
    first, second, after = runs[0]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    assert not torch.equal(first, second)
    assert not torch.equal(*first.chunk(2))
    torch.manual_seed(3)
    assert not torch.equal(torch.rand(2), after)


def test_a_module_that_draws_nothing_leaves_the_default_generator_alone() -> None:
    wrapper, before = parallel(perceptron(), 2), torch.get_rng_state()
    for _ in range(3):
        wrapper(batch(4))
        assert torch.equal(torch.get_rng_state(), before)


def test_dropout_that_would_have_to_be_repeated_in_the_backward_is_refused() -> None:
    module = Checkpointed()
    module.b = nn.Dropout(0.5)
    wrapper = parallel(module, 2)
    with pytest.raises(RuntimeError, match="checkpointing cannot repeat the random numbers"):
        wrapper(batch(4).requires_grad_())
