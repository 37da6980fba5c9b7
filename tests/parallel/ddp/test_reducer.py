"""Gradients of all kinds of graphs and parameters are the mean over the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.ddp import buckets
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_same,
    batches,
    check_steps,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import run_ranks


def reference(seed: int = 0) -> dict[str, Tensor | None]:
    return mean_gradients(perceptron, lambda module, rank: step(module, seed, rank))


# Which backward reduces, and when.


def every_size_of_bucket_gives_the_mean(rank: int) -> None:
    for caps in ({"bucket_cap_mb": 25}, {"bucket_cap_mb": TINY}, {"bucket_cap_mb_list": [TINY, 1]}):
        ddp = Ddp(perceptron(), **caps)
        for seed in range(4):
            ddp.zero_grad(set_to_none=seed % 2 == 0)
            step(ddp, seed, rank)
            assert_same(gradients(ddp), reference(seed))
        assert ddp.reduced_bytes == 4 * sum(p.nbytes for p in ddp.parameters())
        assert ddp.reductions == 4 * {25: 1, TINY: 4}.get(caps.get("bucket_cap_mb"), 2)


def without_overlap_the_same_gradients_are_reduced_at_the_end(rank: int) -> None:
    found = []
    for overlap in (True, False):
        sent: list[int] = []
        module = perceptron()
        ddp = Ddp(module, bucket_cap_mb=TINY, overlap=overlap)
        step(ddp, 0, rank)  # afterwards buckets are in the order of the gradients
        last = next(module.parameters())
        last.register_hook(lambda _, ddp=ddp, sent=sent: sent.append(ddp.reductions))
        before = ddp.reductions
        step(ddp, 0, rank)
        found.append((gradients(module), sent[0] - before, ddp.reductions - before))
    (during, early, all_of_them), (after, none, as_many) = found
    assert (early > 0, none) == (True, 0)
    assert all_of_them == as_many > 1
    assert_same(after, during, tolerance=0.0)


def a_stretch_without_sync_is_reduced_as_a_whole(rank: int) -> None:
    ddp = Ddp(perceptron())
    for _ in range(2):
        before = ddp.reductions
        ddp.zero_grad()
        with ddp.no_sync():
            for seed in range(3):
                with ddp.no_sync():
                    step(ddp, seed, rank)
        step(ddp, 3, rank)
        assert ddp.reductions == before + 1
        expected = mean_gradients(perceptron, lambda m, r: [step(m, seed, r) for seed in range(4)])
        assert_same(gradients(ddp), expected)


def the_flag_counts_at_forward_and_is_restored(rank: int) -> None:
    ddp = Ddp(perceptron())
    try:
        with ddp.no_sync():
            loss = ddp(batches(0)[rank]).pow(2).mean()
            raise KeyError
    except KeyError:
        loss.backward()
    assert ddp.reductions == 0
    ddp.zero_grad()
    loss = ddp(batches(0)[rank]).pow(2).mean()
    with ddp.no_sync():
        loss.backward()
    assert_same(gradients(ddp), reference())


def a_second_backward_adds_to_the_local_gradients(rank: int) -> None:
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        ddp, alone = Ddp(perceptron(), **options), perceptron()
        loss = ddp(batches(0)[rank]).pow(2).mean()
        loss.backward(retain_graph=True)
        loss.backward()
        step(alone, 0, rank)
        local = gradients(alone)
        assert_same(gradients(ddp), {name: g + local[name] for name, g in reference().items()})
        assert ddp.reductions == 1


def one_backward_reduces_two_forwards(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        first, second = (module(batches(seed)[rank]).pow(2).mean() for seed in range(2))
        (first + second).backward()

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        check_steps(perceptron, run, rank, **options)


def two_backwards_of_one_forward_are_one_reduction(rank: int) -> None:
    class Heads(Branches):
        def forward(self, x: Tensor, use: str = "") -> list[Tensor]:
            return [self.a(x), self.b(x), self.c(x)]

    def run(module: nn.Module, rank: int) -> None:
        for out in module(batches(0)[rank]):
            out.pow(2).mean().backward()

    ddp = check_steps(Heads, run, rank)
    assert ddp.reductions == 3


def an_output_that_is_dropped_reduces_nothing(rank: int) -> None:
    ddp = Ddp(perceptron())
    ddp(batches(0)[rank])
    torch.autograd.grad(ddp(batches(0)[rank]).sum(), list(ddp.parameters()))
    with torch.no_grad():
        ddp(batches(0)[rank])
    assert ddp.reductions == 0
    step(ddp, 0, rank)
    assert_same(gradients(ddp), reference())


def two_wrapped_modules_can_share_a_graph(rank: int) -> None:
    class Both(nn.Module):
        def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
            super().__init__()
            self.generator = wrap(nn.Sequential(perceptron(1), nn.Linear(4, 6).double()))
            self.critic = wrap(perceptron(2))

    def run(both: nn.Module, rank: int) -> None:
        fake = both.generator(batches(0)[rank])
        both.critic(fake.detach()).pow(2).mean().backward()
        both.critic(fake).pow(2).mean().backward()

    expected = mean_gradients(lambda: Both(lambda module: module), run)
    both = Both(lambda module: Ddp(module, bucket_cap_mb=TINY))
    for _ in range(3):
        both.zero_grad()
        run(both, rank)
        got = {name.replace(".module", ""): grad for name, grad in gradients(both).items()}
        # The second backward reduces the first one's gradients of the critic a second time.
        assert_same(got, expected)


def create_graph_is_averaged_with_a_warning(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[rank]).pow(2).mean().backward(create_graph=True)

    ddp = Ddp(perceptron())
    for set_to_none in (True, False, True):
        ddp.zero_grad(set_to_none=set_to_none)
        with pytest.warns(UserWarning, match="create_graph=True"):
            run(ddp, rank)
        assert ddp.module[0].weight.grad.requires_grad
        assert_same(gradients(ddp), reference())
    sum(p.grad.pow(2).sum() for p in ddp.parameters()).backward()
    ddp.zero_grad()
    step(ddp, 0, rank)
    assert_same(gradients(ddp), reference())


# What gradients and parameters there are.


def users_hooks_run_before_the_reduction(rank: int) -> None:
    def clamp(p: Tensor) -> None:
        p.grad.clamp_(-0.1, 0.1)

    def run(module: nn.Module, rank: int) -> None:
        bare = module.module if isinstance(module, Ddp) else module
        handles = [
            handle
            for p in bare.parameters()
            for handle in (
                p.register_hook(lambda grad: 3 * grad),
                p.register_post_accumulate_grad_hook(clamp),
            )
        ]
        step(module, 0, rank)
        for handle in handles:
            handle.remove()

    for cap in (None, TINY):
        check_steps(perceptron, run, rank, bucket_cap_mb=cap)


class Mixed(nn.Module):
    """All floating dtypes, complex, tied, frozen, scalar, empty, channels last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.tied = self.conv
        self.scalar = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.half_ = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
        self.complex_ = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        convolved = self.conv(x).sum() + self.tied(x).sum()
        others = self.half_.sum() + self.brain.sum() + self.empty.sum() + self.frozen.sum()
        return (convolved + others * x.mean() + (self.complex_ * x.sum()).real.sum()) * self.scalar


def parameters_of_every_kind_are_reduced(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(torch.full((1, 2, 3, 3), rank + 1.0)).backward()

    for options in ({}, {"bucket_cap_mb": TINY}, {"find_unused_parameters": True}):
        ddp = check_steps(Mixed, run, rank, **options)
        for p in ddp.parameters():
            if p.requires_grad:
                assert p.grad.dtype == p.dtype
                assert p.grad.stride() == p.stride() or not p.numel()


def one_scalar_is_enough(rank: int) -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x

    for options in ({}, {"bucket_cap_mb": TINY}, {"static_graph": True}):
        check_steps(
            Scalar, lambda module, rank: module(batches(0)[rank]).sum().backward(), rank, **options
        )


def expanded_and_shared_gradient_buffers_are_reduced(rank: int) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b).sum() * x.sum()

    for cap in (None, TINY):
        check_steps(
            Sums, lambda module, rank: module(batches(0)[rank]).backward(), rank, bucket_cap_mb=cap
        )


def gradients_are_views_that_stay(rank: int) -> None:
    ddp = Ddp(perceptron())
    for seed in range(3):  # the second builds the buckets for good
        step(ddp, seed, rank)
    assert len({p.grad.untyped_storage().data_ptr() for p in ddp.parameters()}) == 1
    kept = [p.grad for p in ddp.parameters()]
    ddp.zero_grad(set_to_none=False)
    step(ddp, 3, rank)
    assert all(p.grad is old for p, old in zip(ddp.parameters(), kept, strict=True))
    assert_same(gradients(ddp), reference(3))
    for p in ddp.parameters():
        p.grad = None if p.ndim == 1 else torch.zeros_like(p)
    step(ddp, 1, rank)
    assert_same(gradients(ddp), reference(1))


def clipping_and_scaling_change_the_views(rank: int) -> None:
    ddp, alone = Ddp(perceptron()), perceptron()
    for name, grad in reference().items():
        alone.get_parameter(name).grad = grad
    for _ in range(2):
        ddp.zero_grad()
        step(ddp, 0, rank)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
    nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
    assert_same(gradients(ddp), gradients(alone))


def other_group_sizes_average_over_their_members(rank: int) -> None:
    group = dist.new_group([2, 1])
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        check_steps(perceptron, lambda m, r: step(m, 0, r), rank, bucket_cap_mb=TINY, **options)
        if rank:
            ddp = Ddp(perceptron(), process_group=group, **options)
            for _ in range(3):
                ddp.zero_grad()
                step(ddp, 0, rank)
                expected = mean_gradients(perceptron, lambda m, r: step(m, 0, r + 1), ranks=2)
                assert_same(gradients(ddp), expected)
    if rank == 0:
        with pytest.raises(RuntimeError, match="not a member"):
            Ddp(perceptron(), process_group=group)


def a_group_of_one_leaves_gradients_as_they_are(rank: int) -> None:
    def run(module: nn.Module, rank: int) -> None:
        module(batches(0)[0], "ab").pow(2).mean().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"find_unused_parameters": True}, {"static_graph": True}):
            ddp = check_steps(Branches, run, rank, **options)
            assert ddp.module.c.weight.grad is None
            assert ddp.reduced_bytes == 0
            kept = ddp.module.a.weight.grad
            run(ddp, rank)
            assert ddp.module.a.weight.grad is kept
    ddp = Ddp(Branches())
    ddp(batches(0)[0], "ab").sum().backward()
    with pytest.raises(RuntimeError, match=r"rank 0: c\.weight"):
        ddp(batches(0)[0])
    called = []
    ddp = Ddp(Branches())
    ddp.register_comm_hook(None, lambda state, bucket: _noted(called, bucket))
    step(ddp, 0, rank)
    assert called == [0]
    assert_same(gradients(ddp), mean_gradients(Branches, lambda m, r: step(m, 0, r)))


def _noted(called: list[int], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    called.append(bucket.index())
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def one_bucket_is_one_collective_in_any_precision(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            ddp = Ddp(Branches().to(dtype), **options)
            use = "ab" if options else "abc"
            for number in range(3):
                ddp.zero_grad()
                out = ddp(batches(number)[rank].to(dtype), use)
                before = group._get_sequence_number_for_group()
                out.sum().backward()
                assert group._get_sequence_number_for_group() == before + 1
                weight = ddp.module.c.weight
                assert (weight.grad is None) == (use == "ab")
                assert weight.grad is None or weight.grad.dtype == dtype


def a_dtype_without_elements_is_no_obstacle(rank: int) -> None:
    module = perceptron()
    module.nothing = nn.Parameter(torch.empty(0, 3, dtype=torch.float16))
    module.register_forward_hook(lambda m, _, out: out + m.nothing.sum())
    ddp = Ddp(module)
    for _ in range(3):
        ddp.zero_grad()
        step(ddp, 0, rank)
        assert ddp.module.nothing.grad.shape == (0, 3)
        expected = reference()
        assert_same({name: gradients(ddp)[name] for name in expected}, expected)


def every_gradient_is_large(rank: int) -> None:
    """For the scenarios after it: each bucket copies its gradients one by one, when they come."""
    buckets.LARGE_BYTES = 1


def a_large_gradient_is_in_its_bucket_before_the_next_one_comes(rank: int) -> None:
    for options in ({}, {"static_graph": True}):
        module = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
        ddp = Ddp(module, **options)
        last, seen = module[1].weight, set[int]()

        def look(_: Tensor, last: nn.Parameter = last, seen: set[int] = seen) -> None:
            seen.add(last.grad.data_ptr())

        for number in range(4):
            if number == 3:
                module[0].weight.register_hook(look)
            ddp.zero_grad()
            ddp(torch.ones(2, 256)).sum().backward()
        assert seen == {last.grad.data_ptr()}


BACKWARDS = [
    without_overlap_the_same_gradients_are_reduced_at_the_end,
    every_size_of_bucket_gives_the_mean,
    a_stretch_without_sync_is_reduced_as_a_whole,
    the_flag_counts_at_forward_and_is_restored,
    a_second_backward_adds_to_the_local_gradients,
    one_backward_reduces_two_forwards,
    two_backwards_of_one_forward_are_one_reduction,
    an_output_that_is_dropped_reduces_nothing,
    two_wrapped_modules_can_share_a_graph,
    create_graph_is_averaged_with_a_warning,
]
KINDS = [
    a_dtype_without_elements_is_no_obstacle,
    users_hooks_run_before_the_reduction,
    parameters_of_every_kind_are_reduced,
    one_scalar_is_enough,
    expanded_and_shared_gradient_buffers_are_reduced,
    gradients_are_views_that_stay,
    clipping_and_scaling_change_the_views,
]
both = pytest.mark.parametrize("backend", ["gloo", "shm"])


@both
def test_a_backward_reduces_once_and_only_if_its_forward_said_so(
    tmp_path: Path, backend: str
) -> None:
    run_ranks(BACKWARDS, tmp_path / "store", backend=backend)


def test_no_message_goes_beside_the_bucket(tmp_path: Path) -> None:
    run_ranks(one_bucket_is_one_collective_in_any_precision, tmp_path / "store")


@both
def test_gradients_of_every_kind_are_averaged(tmp_path: Path, backend: str) -> None:
    run_ranks(KINDS, tmp_path / "store", backend=backend)


@both
def test_gradients_that_are_copied_one_by_one_are_averaged_too(
    tmp_path: Path, backend: str
) -> None:
    each = a_large_gradient_is_in_its_bucket_before_the_next_one_comes
    scenarios = [each, every_gradient_is_large, *BACKWARDS, *KINDS]
    run_ranks(scenarios, tmp_path / "store", backend=backend)


@both
def test_three_ranks_and_subgroups_average_over_their_members(tmp_path: Path, backend: str) -> None:
    run_ranks(
        other_group_sizes_average_over_their_members,
        tmp_path / "store",
        world_size=3,
        backend=backend,
    )


@both
def test_a_group_of_one_sends_nothing(tmp_path: Path, backend: str) -> None:
    run_ranks(
        a_group_of_one_leaves_gradients_as_they_are,
        tmp_path / "store",
        world_size=1,
        backend=backend,
    )
