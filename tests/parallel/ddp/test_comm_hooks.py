"""A communication hook replaces the all-reduce of each bucket; torch's own are run by
tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    assert_same,
    check_steps,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.worlds import World

world = World(backend="gloo")
Future = torch.futures.Future


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
    assert_same(gradients(ddp), mean_gradients(perceptron))
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
def a_hook_may_replace_the_buffer_by_one_of_another_dtype(rank: int) -> None:
    ddp = Ddp(perceptron())
    hook = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    ddp.register_comm_hook(None, hook)
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron), tolerance=1e-3)


@world.body
def a_failing_hook_raises_where_it_fails(rank: int) -> None:
    def fails(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        raise ArithmeticError(f"from bucket {bucket.index()}")

    def no_future(state: object, bucket: dist.GradBucket) -> None: ...

    def fails_later(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        def divide(future: Future[Any]) -> Tensor:
            raise ArithmeticError("from the future of bucket 0")

        return default_hooks.allreduce_hook(None, bucket).then(divide)

    for hook, kind, words in (
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
    check_steps(perceptron, lambda m, r: step(m, 0, r), rank)


test_on_ranks = world.test()
