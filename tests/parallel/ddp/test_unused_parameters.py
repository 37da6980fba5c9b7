"""find_unused_parameters: what took no part counts as zero, or is left alone if nobody used it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_equal_everywhere,
    assert_same,
    batches,
    check_steps,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def unused(make: type[nn.Module] = Branches, cap: float | None = None) -> Ddp:
    return Ddp(make(), find_unused_parameters=True, bucket_cap_mb=cap)


def each_rank_uses_other_layers(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[rank], "ab" if rank else "bc").pow(2).mean().backward()

    for cap in (None, TINY):
        check_steps(Branches, run, rank, find_unused_parameters=True, bucket_cap_mb=cap)


def use_changes_from_step_to_step(rank: int) -> None:
    ddp = unused()
    for use in (("a", "a"), ("abc", "c"), ("b", "ac"), ("c", "c"), ("abc", "abc")):

        def run(module: nn.Module, rank: int, use: tuple[str, str] = use) -> None:
            module(batches(0)[rank], use[rank]).pow(2).mean().backward()

        ddp.zero_grad()
        run(ddp, rank)
        assert_same(gradients(ddp), mean_gradients(Branches, run))


def what_nobody_uses_keeps_its_gradient_bit_for_bit(rank: int) -> None:
    for cap in (None, TINY):
        ddp = unused(cap=cap)
        old = torch.full((4,), 0.1 * (rank + 1), dtype=torch.float64)
        ddp.module.b.bias.grad = old.clone()
        for _ in range(3):
            ddp(batches(0)[rank], "a").pow(2).mean().backward()
            assert torch.equal(ddp.module.b.bias.grad, old)
            assert ddp.module.b.weight.grad is None
            assert ddp.module.c.weight.grad is None


def an_old_gradient_counts_where_another_rank_has_a_new_one(rank: int) -> None:
    for keep in (True, False):
        ddp = unused()
        step(ddp, 0, rank)
        ddp.zero_grad(set_to_none=not keep)
        ddp(batches(0)[rank], "ab" if rank else "a").pow(2).mean().backward()

        def run(module: nn.Module, rank: int) -> None:
            module(batches(0)[rank], "ab" if rank else "a").pow(2).mean().backward()

        expected = mean_gradients(Branches, run)
        if keep:
            zeros = torch.zeros_like(ddp.module.c.weight)
            expected |= {"c.weight": zeros, "c.bias": zeros[:, 0]}
        assert_same(gradients(ddp), expected)


def use_in_a_stretch_without_sync_counts(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        with module.no_sync() if isinstance(module, Ddp) else nullcontext():
            module(batches(0)[rank], "ab" if rank else "a").pow(2).mean().backward()
        module(batches(1)[rank], "a").pow(2).mean().backward()

    for set_to_none in (True, False):
        ddp = unused()
        for _ in range(3):
            ddp.zero_grad(set_to_none=set_to_none)
            run(ddp, rank)
            assert_same(gradients(ddp), mean_gradients(Branches, run))


def a_rank_that_uses_nothing_takes_part(rank: int) -> None:
    class Skips(Branches):
        def forward(self, x: Tensor, use: str = "abc") -> Tensor:
            return super().forward(x, use) if use else x.sum() * 0

    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[rank].requires_grad_(), "ab" if rank else "").sum().backward()

    for cap in (None, TINY):
        check_steps(Skips, run, rank, find_unused_parameters=True, bucket_cap_mb=cap)


class Nested(Branches):
    def forward(self, x: Tensor, use: str = "") -> dict[str, object]:
        return {"a": self.a(x), "rest": [(self.b(x), None), "text", {"c": self.c(x)}]}


def an_output_outside_the_loss_is_unused(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        out = module(batches(0)[rank])
        loss = out["a"].sum() + (out["rest"][0][0].pow(2).sum() if rank else 0)
        loss.backward()

    check_steps(Nested, run, rank, find_unused_parameters=True)
    ddp = unused(Nested)
    run(ddp, rank)
    assert ddp.module.c.weight.grad is None


def a_loss_may_change_the_output_in_place(rank: int) -> None:
    class Returns(nn.Module):
        """Its output is what an activation needs in backward."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).sigmoid()

    def run(module: nn.Module, rank: int) -> None:
        out = module(batches(0)[rank])
        out = out.clone() if not isinstance(module, Ddp) else out
        out.mul_(2).pow(2).mean().backward()

    check_steps(Returns, run, rank, find_unused_parameters=True)


def an_output_without_a_graph_or_dropped_is_harmless(rank: int) -> None:
    ddp = unused()
    assert not ddp(batches(0)[rank], "").requires_grad
    ddp(batches(0)[rank], "a")
    with torch.no_grad():
        ddp(batches(0)[rank], "a")
    assert ddp.reductions == 0
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(Branches, lambda m, r: step(m, 0, r)))


def autograd_grad_reduces_nothing(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        x = batches(0)[rank].requires_grad_()
        loss = module(x).pow(2).mean()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.pow(2).sum()).backward()

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        check_steps(perceptron, run, rank, **options)


def three_ranks_agree_on_what_nobody_used(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(0, 3)[rank], ("a", "ab", "a")[rank]).pow(2).mean().backward()

    ddp = check_steps(Branches, run, rank, find_unused_parameters=True)
    assert ddp.module.c.weight.grad is None
    old = torch.rand(4, 6, dtype=torch.float64)
    ddp.module.c.weight.grad = old.clone()
    run(ddp, rank)
    assert torch.equal(ddp.module.c.weight.grad, old)
    assert_equal_everywhere(ddp.module.b)


def a_second_backward_through_what_was_counted_as_unused_is_an_error(rank: int) -> None:
    ddp = unused(Nested)
    out = ddp(batches(0)[rank])
    out["a"].sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"'b\.\w+' got a gradient after the reduction"):
        out["rest"][0][0].sum().backward()
    ddp.zero_grad()
    with ddp.no_sync():  # here it is what is asked for
        out = ddp(batches(0)[rank])
        out["a"].sum().backward(retain_graph=True)
        out["rest"][0][0].sum().backward()


def what_the_graph_does_not_reach_holds_up_no_bucket(rank: int) -> None:
    events: list[str] = []
    ddp = Ddp(Branches(), find_unused_parameters=True, bucket_cap_mb=TINY)

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        events.append("sent")
        return dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future()  # type: ignore[union-attr,no-any-return]

    ddp.register_comm_hook(None, hook)
    ddp.module.a.weight.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))

    def run(module: nn.Module, rank: int) -> None:
        # The layers of c are the first buckets, and c is unused.
        module(batches(0)[rank], "ab").pow(2).mean().backward()

    for number in range(3):
        ddp.zero_grad()
        events.clear()
        run(ddp, rank)
        assert_same(gradients(ddp), mean_gradients(Branches, run))
        if number:  # the first backward shows that the graph can be believed
            assert events.index("sent") < events.index("gradient")


def a_bucket_that_is_used_after_all_is_an_error(rank: int) -> None:
    """A reentrant checkpoint runs nodes that the graph of the outer backward does not show."""

    class Sometimes(Branches):
        reentrant = False

        def forward(self, x: Tensor, use: str = "abc") -> Tensor:
            out = self.a(x)
            return out + checkpoint(self.b, x, use_reentrant=True) if self.reentrant else out

    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[rank].requires_grad_()).pow(2).mean().backward()

    ddp = unused(Sometimes)
    run(ddp, rank)
    ddp.module.reentrant = True
    with pytest.raises(RuntimeError, match="Expected to mark a variable ready only once"):
        run(ddp, rank)
    always = type("Always", (Sometimes,), {"reentrant": True})
    check_steps(always, run, rank, find_unused_parameters=True)


def a_backward_that_failed_may_be_repeated(rank: int) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()
            self.fails = False

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x)
            out.register_hook(self._fail)
            return out * 1

        def _fail(self, gradient: Tensor) -> None:
            if self.fails:
                self.fails = False
                raise ArithmeticError("on purpose")

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        ddp = Ddp(Fails(), **options)
        for _ in range(3):
            ddp.zero_grad()
            loss = ddp(batches(0)[rank]).pow(2).mean()
            ddp.module.fails = True
            with pytest.raises(ArithmeticError, match="on purpose"):
                loss.backward(retain_graph=True)
            loss.backward()
            assert_same(gradients(ddp), mean_gradients(Fails, lambda m, r: step(m, 0, r)))


class Pair:
    """An output in which no tensors are found."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b


def outputs_and_graphs_may_differ_between_ranks(rank: int) -> None:
    class Outputs(Branches):
        opaque = False

        def forward(self, x: Tensor, use: str = "abc") -> object:
            parts = self.a(x), self.b(x)
            return Pair(*parts) if self.opaque else parts

    def run(module: nn.Module, rank: int) -> None:
        (module.module if isinstance(module, Ddp) else module).opaque = rank == 1
        out = module(batches(0)[rank])
        a, b = (out.a, out.b) if rank else out
        (a + b).pow(2).mean().backward()

    def regularised_on_one_rank(module: nn.Module, rank: int) -> None:
        inner = module.module if isinstance(module, Ddp) else module
        loss = module(batches(0)[rank], "a").pow(2).mean()
        (loss + inner.b.weight.pow(2).sum() if rank == 0 else loss).backward()

    for make, what in ((Outputs, run), (Branches, regularised_on_one_rank)):
        check_steps(
            make,
            what,
            rank,
            find_unused_parameters=True,
            bucket_cap_mb=TINY,
        )


def a_layer_may_be_trained_by_itself_after_the_reduction(rank: int) -> None:
    ddp = unused(Branches)
    for _ in range(2):
        ddp.zero_grad()
        ddp(batches(0)[rank], "a").pow(2).mean().backward()
        ddp.module.b(batches(0)[rank]).pow(2).mean().backward()
        mine = ddp.module.b.weight.grad.clone()
        alone = Branches()
        alone.b(batches(0)[rank]).pow(2).mean().backward()
        assert torch.equal(mine, alone.b.weight.grad)


KNOWN_UNUSED = [
    a_backward_that_failed_may_be_repeated,
    outputs_and_graphs_may_differ_between_ranks,
    a_layer_may_be_trained_by_itself_after_the_reduction,
    a_second_backward_through_what_was_counted_as_unused_is_an_error,
    what_the_graph_does_not_reach_holds_up_no_bucket,
    a_bucket_that_is_used_after_all_is_an_error,
]
USE = [
    each_rank_uses_other_layers,
    use_changes_from_step_to_step,
    what_nobody_uses_keeps_its_gradient_bit_for_bit,
    an_old_gradient_counts_where_another_rank_has_a_new_one,
    use_in_a_stretch_without_sync_counts,
    a_rank_that_uses_nothing_takes_part,
]
OUTPUTS = [
    an_output_outside_the_loss_is_unused,
    a_loss_may_change_the_output_in_place,
    an_output_without_a_graph_or_dropped_is_harmless,
    autograd_grad_reduces_nothing,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_what_a_rank_does_not_use_counts_as_zero(tmp_path: Path, backend: str) -> None:
    run_ranks(USE, tmp_path / "store", backend=backend)


def test_what_counts_as_used_is_what_the_loss_reaches(tmp_path: Path) -> None:
    run_ranks(OUTPUTS, tmp_path / "store")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize("scenario", KNOWN_UNUSED, ids=lambda scenario: scenario.__name__)
def test_what_is_known_to_be_unused_costs_little(
    tmp_path: Path, backend: str, scenario: Callable[[int], None]
) -> None:
    run_ranks(scenario, tmp_path / "store", backend=backend)


def test_what_no_rank_of_three_uses_is_left_alone(tmp_path: Path) -> None:
    run_ranks(three_ranks_agree_on_what_nobody_used, tmp_path / "store", world_size=3)
