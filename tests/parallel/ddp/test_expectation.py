"""Gradients that do not arrive are an error on all ranks, which names them; nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    batches,
    check_steps,
    everywhere,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def skips(ddp: Ddp, use: str, rank: int) -> str:
    """What is raised by a step that uses only some layers, or by the next forward."""
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012
        ddp(batches(0)[rank], use).sum().backward()
        ddp(batches(0)[rank], "abc")
    return str(caught.value)


def an_unused_parameter_is_named_on_all_ranks(rank: int) -> None:
    for cap in (None, TINY):
        for use in ("ab", "ab"), ("abc", "ac"), ("b", "abc"):
            ddp = Ddp(Branches(), bucket_cap_mb=cap)
            ddp(batches(0)[rank], "abc").sum().backward()
            words = skips(ddp, use[rank], rank)
            missing = {name for name in "abc" if name not in use[rank]} or {
                name for name in "abc" if name not in use[1 - rank]
            }
            assert "finished reduction in the prior iteration" in words
            assert "find_unused_parameters=True" in words
            for name in "abc":
                assert (f"{name}.weight" in words) == (name in missing), words
    ddp = Ddp(Branches())
    ddp(batches(0)[rank], "abc").sum().backward()
    assert ddp.reductions == 1


def the_last_step_is_no_exception(rank: int) -> None:
    """The rank that lacks a gradient makes no further forward: its optimizer's step tells."""
    ddp = Ddp(Branches(), bucket_cap_mb=TINY)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    before = [parameter.detach().clone() for parameter in ddp.parameters()]
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012
        ddp(batches(0)[rank], "ab" if rank else "abc").sum().backward()
        other.step()  # of no concern to the module
        optimizer.step()
    assert "c.weight" in str(caught.value)
    assert "a.weight" not in str(caught.value)
    assert all(map(torch.equal, before, ddp.parameters()))


def fails(gradient: Tensor) -> Tensor:
    raise ArithmeticError("of rank 1")


def passes(gradient: Tensor) -> Tensor:
    return gradient


def a_backward_that_fails_on_one_rank_is_an_error_on_all(rank: int) -> None:
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        module = perceptron()
        ddp = Ddp(module, bucket_cap_mb=TINY, **options)
        step(ddp, 0, rank)
        handle = module[0].weight.register_hook(fails if rank else passes)
        with pytest.raises(ArithmeticError if rank else RuntimeError):
            step(ddp, 0, rank)
        if rank:
            with pytest.raises(RuntimeError, match="finished reduction"):
                ddp(batches(0)[rank])
        handle.remove()
        del ddp
        check_steps(perceptron, lambda m, r: step(m, 0, r), rank)


def a_changed_parameter_is_named_before_any_communication(rank: int) -> None:
    ddp = Ddp(Branches())
    step(ddp, 0, rank)
    ddp.module.float()
    with pytest.raises(RuntimeError, match=r"parameter 'a\.\w+' .*wrap the module again"):
        ddp(batches(0)[rank])
    ddp = Ddp(Branches())
    ddp.module.load_state_dict(Branches().state_dict(), assign=True)
    with pytest.raises(RuntimeError, match=r"parameter 'a\.\w+' was replaced .*module again"):
        ddp(batches(0)[rank])
    module = Branches()
    module.b.requires_grad_(False)
    ddp = Ddp(module)
    module.b.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"parameter 'b\.weight' did not .*wrap the mod"):
        ddp(batches(0)[rank])
    assert everywhere(rank) == [0, 1]


SCENARIOS = [
    an_unused_parameter_is_named_on_all_ranks,
    the_last_step_is_no_exception,
    a_backward_that_fails_on_one_rank_is_an_error_on_all,
    a_changed_parameter_is_named_before_any_communication,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_gradient_that_is_missing_is_an_error_on_all_ranks(tmp_path: Path, backend: str) -> None:
    run_ranks(SCENARIOS, tmp_path / "store", backend=backend)
