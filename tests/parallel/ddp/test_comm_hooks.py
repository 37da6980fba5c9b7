"""Torch's own communication hooks give here what they give in torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    assert_equal_everywhere,
    assert_same,
    batches,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.worlds import World

world = World(backend="gloo")

TorchDdp = nn.parallel.DistributedDataParallel
Future = torch.futures.Future


def single() -> nn.Module:
    """In float32, which PowerSGD needs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 4))


def trained(
    wrap: Callable[..., nn.Module], hook: Callable[..., Any], state: object, rank: int
) -> list[dict[str, Tensor | None]]:
    """The gradients of four steps."""
    ddp = wrap(single())
    ddp.register_comm_hook(state, hook)
    each = []
    for seed in range(4):
        ddp.zero_grad()
        ddp(batches(seed)[rank].float()).pow(2).mean().backward()
        each.append(gradients(ddp))
    return each


@world.body
def torchs_hooks_match(rank: int) -> None:
    """A wrapper around PowerSGD sets the buffer, and reads the gradients from it. With one bucket
    in both classes, what is random or kept per bucket is the same."""

    def power_sgd_state() -> powerSGD_hook.PowerSGDState:
        return powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2
        )

    # Not the batched one, which fails in torch itself as of 2.13, as quantization does on gloo.
    both = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    for hook, state in ((default_hooks.fp16_compress_hook, lambda: None), (both, power_sgd_state)):
        ours = trained(Ddp, hook, state(), rank)
        for mine, theirs in zip(ours, trained(TorchDdp, hook, state(), rank), strict=True):
            assert_same(mine, theirs, tolerance=1e-6)


class Seen:
    """Averages, and notes what each bucket told."""

    def __init__(self) -> None:
        self.buckets: list[tuple[int, bool, int, int]] = []

    def __call__(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        sizes = [p.numel() for p in bucket.parameters()]
        assert [g.numel() for g in bucket.gradients()] == sizes
        assert bucket.buffer().numel() == sum(sizes)
        self.buckets.append((bucket.index(), bucket.is_last(), len(sizes), sum(sizes)))
        return default_hooks.allreduce_hook(None, bucket)


@world.body
def a_hook_gets_the_buckets_in_order(rank: int) -> None:
    ddp, seen = Ddp(perceptron(), bucket_cap_mb=TINY), Seen()
    ddp.register_comm_hook(None, seen)
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))
    sizes = [4, 32, 8, 48]
    assert seen.buckets == [(i, i == 3, 1, size) for i, size in enumerate(sizes)]
    with pytest.raises(RuntimeError, match="can only be called once"):
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    sparse = Ddp(nn.Embedding(2, 1, sparse=True))
    sparse.register_comm_hook(None, seen)  # it has nothing to do
    sparse(torch.tensor([rank])).sum().backward()
    assert sparse.module.weight.grad.to_dense().tolist() == [[0.5], [0.5]]
    assert len(seen.buckets) == len(sizes)


@world.body
def a_failing_hook_raises_where_it_fails(rank: int) -> None:
    def fails(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        raise ArithmeticError(f"from bucket {bucket.index()}")

    def no_future(state: object, bucket: dist.GradBucket) -> None: ...

    def fails_later(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        def divide(future: Future[Any]) -> Tensor:
            raise ArithmeticError("from the future of bucket 0")

        return default_hooks.allreduce_hook(None, bucket).then(divide)

    def too_small(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer().sum().reshape(1))
        return future

    for hook, kind, words in (
        (too_small, RuntimeError, r"shape '\[92\]' is invalid"),
        (fails_later, Exception, "from the future of bucket 0"),
        (fails, ArithmeticError, "from bucket 0"),
        (no_future, RuntimeError, "must return a torch.futures.Future object, but got NoneType"),
    ):
        ddp = Ddp(perceptron())
        ddp.register_comm_hook(None, hook)
        with pytest.raises(kind, match=words):
            step(ddp, 0, rank)
        del ddp
        assert everywhere(rank) == [0, 1]
    again = Ddp(perceptron())
    step(again, 0, rank)
    assert_same(gradients(again), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))
    assert_equal_everywhere(again)


test_on_ranks = world.test()
