"""static_graph: the first backward is recorded, and the others must be like it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_same,
    batches,
    check_steps,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def uses_ab(module: nn.Module, rank: int) -> None:
    module(batches(0)[rank], "ab").pow(2).mean().backward()


def what_is_never_used_keeps_its_gradient(rank: int) -> None:
    for cap in (None, TINY):
        ddp = check_steps(Branches, uses_ab, rank, static_graph=True, bucket_cap_mb=cap)
        assert ddp.module.c.weight.grad is None
        old = torch.full((4,), 0.1 * (rank + 1), dtype=torch.float64)
        ddp.module.c.bias.grad = old.clone()
        uses_ab(ddp, rank)
        assert torch.equal(ddp.module.c.bias.grad, old)


def ranks_may_have_different_graphs(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[rank], "ab" if rank else "a").pow(2).mean().backward()

    for cap in (None, TINY):
        check_steps(Branches, run, rank, static_graph=True, bucket_cap_mb=cap)


def parameters_may_be_used_outside_of_forward(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        bare = module.module if isinstance(module, Ddp) else module
        (module(batches(0)[rank], "ab").mean() + bare.a.weight.pow(2).sum()).backward()

    check_steps(Branches, run, rank, static_graph=True)


def gradients_accumulate_before_the_first_reduction(rank: int) -> None:
    ddp = Ddp(Branches(), static_graph=True)
    for _ in range(3):
        ddp.zero_grad()
        with ddp.no_sync():
            step(ddp, 1, rank)
        step(ddp, 0, rank)
        expected = mean_gradients(Branches, lambda m, r: [step(m, seed, r) for seed in (1, 0)])
        assert_same(gradients(ddp), expected)
    assert ddp.reductions == 3


def set_static_graph_is_for_the_time_before_training(rank: int) -> None:
    ddp = Ddp(Branches())
    ddp._set_static_graph()
    uses_ab(ddp, rank)
    assert ddp.module.c.weight.grad is None
    with pytest.warns(UserWarning, match="static already"):
        ddp._set_static_graph()
    late = Ddp(Branches())
    step(late, 0, rank)
    with pytest.raises(RuntimeError, match="before training loop starts"):
        late._set_static_graph()


class FailsOnce(Branches):
    """Its first backward fails, after some hooks have fired."""

    fails = True

    def forward(self, x: Tensor, use: str = "abc") -> Tensor:
        out = torch.tanh(self.b(x))
        if self.fails:
            self.fails = False
            out.register_hook(self._fail)
        return self.c(x) + out

    def _fail(self, gradient: Tensor) -> None:
        raise ArithmeticError("on purpose")


def a_first_backward_that_fails_is_not_the_graph(rank: int) -> None:
    ddp = Ddp(FailsOnce(), static_graph=True)
    with pytest.raises(ArithmeticError, match="on purpose"):
        step(ddp, 0, rank)

    def works(module: nn.Module, rank: int) -> None:
        module.fails = False  # type: ignore[assignment]
        step(module, 1, rank)

    for _ in range(4):
        ddp.zero_grad()
        try:
            works(ddp, rank)
        except RuntimeError as error:
            assert "finished reduction in the prior iteration" in str(error)  # noqa: PT017
            continue
        assert_same(gradients(ddp), mean_gradients(FailsOnce, works))


def with_find_unused_parameters_too_it_is_as_right(rank: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that one of them is enough
        check_steps(Branches, uses_ab, rank, static_graph=True, find_unused_parameters=True)


def hooks(ddp: Ddp) -> int:
    return len(ddp._reducer._hooks._handles)


def one_hook_is_left_per_bucket(rank: int) -> None:
    for cap, left in ((None, 1), (TINY, 4)):
        ddp = check_steps(Branches, lambda m, r: step(m, 0, r), rank, static_graph=True)
        assert hooks(ddp) == 1
        ddp = check_steps(Branches, uses_ab, rank, static_graph=True, bucket_cap_mb=cap)
        assert hooks(ddp) == left + len(["c.weight", "c.bias"])


def gradients_may_be_cleared_between_forward_and_backward(rank: int) -> None:
    ddp = Ddp(Branches(), static_graph=True)
    expected = mean_gradients(Branches, lambda m, r: step(m, 0, r))
    for _ in range(4):
        loss = ddp(batches(0)[rank]).pow(2).mean()
        ddp.zero_grad()
        loss.backward()
        assert_same(gradients(ddp), expected)
    assert hooks(ddp) == 1


def gradients_that_are_there_bring_the_hooks_back(rank: int) -> None:
    ddp = check_steps(Branches, lambda m, r: step(m, 0, r), rank, static_graph=True)
    assert hooks(ddp) == 1
    ddp.zero_grad()
    with ddp.no_sync():
        step(ddp, 1, rank)
    step(ddp, 0, rank)
    accumulated = mean_gradients(Branches, lambda m, r: [step(m, seed, r) for seed in (1, 0)])
    assert_same(gradients(ddp), accumulated)
    assert hooks(ddp) == 6
    ddp.zero_grad()
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(Branches, lambda m, r: step(m, 0, r)))


def a_gradient_of_the_output_alone_reduces_nothing(rank: int) -> None:
    ddp = check_steps(Branches, lambda m, r: step(m, 0, r), rank, static_graph=True)
    before = ddp.reductions
    ddp.zero_grad()
    out = ddp(batches(0)[rank])
    torch.autograd.grad(out.sum(), ddp.module.a.weight, retain_graph=True)
    assert ddp.reductions == before
    out.pow(2).mean().backward()
    assert_same(gradients(ddp), mean_gradients(Branches, lambda m, r: step(m, 0, r)))
    assert hooks(ddp) == 1


def a_step_whose_graph_lacks_a_layer_is_refused_though_its_gradients_are_cleared(rank: int) -> None:
    ddp = Ddp(Branches(), static_graph=True)
    for _ in range(3):
        ddp.zero_grad()
        step(ddp, 0, rank)
    assert hooks(ddp) == 1
    with pytest.raises(RuntimeError, match="training graph has changed") as caught:  # noqa: PT012
        for _ in range(2):
            ddp.zero_grad()
            ddp(batches(0)[rank], "a" if rank else "abc").pow(2).mean().backward()
    assert "b.weight" in str(caught.value)


def a_later_backward_that_fails_is_refused_on_all_ranks(rank: int) -> None:
    module = FailsOnce()
    module.fails = False
    ddp = Ddp(module, static_graph=True)
    for _ in range(3):
        ddp.zero_grad()
        step(ddp, 0, rank)
    assert hooks(ddp) == 1 + len(["a.weight", "a.bias"])
    module.fails = rank == 1
    with pytest.raises((ArithmeticError, RuntimeError)) as caught:
        step(ddp, 0, rank)
    if rank == 1:
        assert isinstance(caught.value, ArithmeticError)
        ddp.zero_grad()
        with pytest.raises(RuntimeError, match="finished reduction in the prior iteration"):
            ddp(batches(0)[rank])


def what_is_added_after_a_bucket_was_sent_is_refused(rank: int) -> None:
    first = 280 / 2**20  # both gradients of the last layer
    ddp = Ddp(perceptron(), static_graph=True, bucket_cap_mb_list=[first, 1])
    for _ in range(3):
        ddp.zero_grad()
        step(ddp, 0, rank)
    assert hooks(ddp) == 2
    hooked = ddp._reducer._hooks._handles
    unhooked = next(p for i, p in enumerate(ddp.module.parameters()) if i >= 2 and i not in hooked)

    def add_once_more(_: Tensor) -> None:
        with torch.enable_grad():
            unhooked.sum().backward()

    ddp.module[1].register_forward_hook(lambda _, __, out: out.register_hook(add_once_more) and out)
    ddp.zero_grad()
    with pytest.raises(RuntimeError, match=r"training graph has changed.*parameter 2\."):
        step(ddp, 0, rank)


def failure(ddp: Ddp, use: str, rank: int) -> str:
    """What a step whose graph has changed, and the one after it, raise on this rank."""
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012
        ddp(batches(0)[rank], use).pow(2).mean().backward()
        ddp(batches(0)[rank], "ab")
    return str(caught.value)


def a_graph_that_changes_on_all_ranks_is_named_on_all(rank: int) -> None:
    for use, named in (("a", "b.weight"), ("abc", "c.")):
        ddp = Ddp(Branches(), static_graph=True)
        for _ in range(2):
            uses_ab(ddp, rank)
        words = failure(ddp, use, rank)
        assert "training graph has changed" in words
        assert named in words


def a_graph_that_lacks_a_layer_on_one_rank_is_named_on_all(rank: int) -> None:
    ddp = Ddp(Branches(), static_graph=True)
    uses_ab(ddp, rank)
    words = failure(ddp, "a" if rank else "ab", rank)
    assert "training graph has changed" in words
    assert "b.weight" in words
    assert len(set(everywhere(rank))) == 2  # both are here, and can go on with a new wrapper
    del ddp
    check_steps(Branches, uses_ab, rank, static_graph=True)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, 6).double() for _ in range(3))
        self.reentrant, self.times = reentrant, times

    def forward(self, x: Tensor) -> Tensor:
        """Leaves out c."""
        x = self.a(x)
        for _ in range(self.times):
            x = checkpoint(self.b, x.tanh(), use_reentrant=self.reentrant)
        return x


def checkpoints_give_the_same_gradients(rank: int) -> None:
    for options in ({"static_graph": True}, {"find_unused_parameters": True}):
        for reentrant, times in ((True, 1), (True, 3), (False, 3)):
            if reentrant and times > 1 and "static_graph" not in options:
                continue
            check_steps(
                lambda r=reentrant, t=times: Checkpointed(reentrant=r, times=t),
                lambda module, rank: step(module, 0, rank),
                rank,
                bucket_cap_mb=TINY,
                **options,
            )


def a_reentrant_checkpoint_used_twice_is_refused_without_it(rank: int) -> None:
    for options in ({}, {"find_unused_parameters": True}):
        ddp = Ddp(Checkpointed(reentrant=True, times=2), **options)
        with pytest.raises(RuntimeError, match=r"mark a variable ready only once.*name b\.") as got:
            step(ddp, 0, rank)
        assert "static_graph=True" in str(got.value)


GRAPHS = [
    what_is_never_used_keeps_its_gradient,
    ranks_may_have_different_graphs,
    parameters_may_be_used_outside_of_forward,
    gradients_accumulate_before_the_first_reduction,
    set_static_graph_is_for_the_time_before_training,
    a_first_backward_that_fails_is_not_the_graph,
    with_find_unused_parameters_too_it_is_as_right,
    one_hook_is_left_per_bucket,
    gradients_may_be_cleared_between_forward_and_backward,
    gradients_that_are_there_bring_the_hooks_back,
    a_gradient_of_the_output_alone_reduces_nothing,
]
CHANGES = [
    a_graph_that_changes_on_all_ranks_is_named_on_all,
    a_graph_that_lacks_a_layer_on_one_rank_is_named_on_all,
    a_step_whose_graph_lacks_a_layer_is_refused_though_its_gradients_are_cleared,
    a_later_backward_that_fails_is_refused_on_all_ranks,
    what_is_added_after_a_bucket_was_sent_is_refused,
]
CHECKPOINTS = [
    checkpoints_give_the_same_gradients,
    a_reentrant_checkpoint_used_twice_is_refused_without_it,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_graph_that_stays_the_same_may_leave_out_parameters(tmp_path: Path, backend: str) -> None:
    run_ranks(GRAPHS, tmp_path / "store", backend=backend)


def test_a_graph_that_changes_raises_on_all_ranks(tmp_path: Path) -> None:
    run_ranks(CHANGES, tmp_path / "store")


def test_activation_checkpoints_of_both_kinds_are_reduced_once(tmp_path: Path) -> None:
    run_ranks(CHECKPOINTS, tmp_path / "store")
