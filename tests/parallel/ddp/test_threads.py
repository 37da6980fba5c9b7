"""Two backwards at once, in two threads, give what one after the other gives."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import assert_equal_everywhere, assert_same, gradients
from tests.parallel.ranks import run_ranks

pytestmark = pytest.mark.slow

LAYERS = 20
STEPS = 15
CAP_MB = 0.3  # several buckets, most of them with gradients of one half only


class Halves(nn.Module):
    """Two towers that share nothing, so that their backwards are independent."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(*(nn.Linear(128, 128) for _ in range(LAYERS)))
        self.b = nn.Sequential(*(nn.Linear(128, 128) for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after a few instructions, so that what can interleave does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(*functions: Callable[[], object]) -> None:
    """Call each function in a thread of its own; raise what the first one raises."""
    failures: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(4, 128, generator=torch.Generator().manual_seed(10 * step + rank))


def expected(step: int) -> dict[str, Tensor | None]:
    size = dist.get_world_size()
    whole = Halves()
    for rank in range(size):
        a, b = whole(batch(step, rank))
        ((a.pow(2).mean() + b.pow(2).mean()) / size).backward()
    return gradients(whole)


def check_backwards_at_once(ddp: Ddp, rank: int) -> None:
    with switching_often():
        for step in range(STEPS):
            ddp.zero_grad()
            a, b = ddp(batch(step, rank))
            at_once(a.pow(2).mean().backward, b.pow(2).mean().backward)
            assert_same(gradients(ddp), expected(step), 1e-4)
            assert_equal_everywhere(ddp)


def two_backwards_at_once_are_averaged(rank: int) -> None:
    check_backwards_at_once(Ddp(Halves(), bucket_cap_mb=CAP_MB), rank)


def a_comm_hook_gets_each_bucket_once_and_in_order(rank: int) -> None:
    seen: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        seen.append(bucket.index())
        mean = bucket.buffer() / dist.get_world_size()
        return dist.all_reduce(mean, async_op=True).get_future()  # type: ignore[union-attr,no-any-return]

    ddp = Ddp(Halves(), bucket_cap_mb=CAP_MB)
    ddp.register_comm_hook(None, hook)
    check_backwards_at_once(ddp, rank)
    count = max(seen) + 1
    assert count > 4
    assert seen[-count:] == list(range(count))
    assert len(seen) == STEPS * count


def a_backward_may_end_while_another_takes_a_large_gradient(rank: int) -> None:
    ddp = Ddp(Halves(), static_graph=True)
    for step in range(2):  # from then on, most parameters have no hook
        ddp.zero_grad()
        a, b = ddp(batch(step, rank))
        (a.pow(2).mean() + b.pow(2).mean()).backward()
    ddp.zero_grad()
    both_have_begun = threading.Barrier(2, timeout=20)
    has_come, first_has_ended = threading.Event(), threading.Event()
    for half in (ddp.module.a, ddp.module.b):
        half[-1].bias.register_hook(_meeting(both_have_begun))
    ddp.module.a[0].bias.register_hook(_waiting(has_come))
    ddp.module.b[1].weight.register_post_accumulate_grad_hook(
        _waiting(first_has_ended, tell=has_come)
    )
    a, b = ddp(batch(2, rank))
    first = partial(_backward_and_tell, a.pow(2).mean(), first_has_ended)
    at_once(first, b.pow(2).mean().backward)
    assert_same(gradients(ddp), expected(2), 1e-4)


def _backward_and_tell(loss: Tensor, event: threading.Event) -> None:
    loss.backward()
    event.set()


def _meeting(barrier: threading.Barrier) -> Callable[[Tensor], None]:
    def hook(_: Tensor) -> None:
        barrier.wait()

    return hook


def _waiting(
    event: threading.Event, tell: threading.Event | None = None
) -> Callable[[Tensor], None]:
    def hook(_: Tensor) -> None:
        if tell is not None:
            tell.set()
        assert event.wait(20)

    return hook


def each_backward_returns_with_averages_if_it_was_the_last(rank: int) -> None:
    ddp = Ddp(Halves(), bucket_cap_mb=CAP_MB)
    for step in range(4):
        ddp.zero_grad()
        a, b = ddp(batch(step, rank))
        first, second = (a, b) if step % 2 else (b, a)
        at_once(first.pow(2).mean().backward)
        second.pow(2).mean().backward()
        assert_same(gradients(ddp), expected(step), 1e-4)


SCENARIOS = [
    two_backwards_at_once_are_averaged,
    a_backward_may_end_while_another_takes_a_large_gradient,
    a_comm_hook_gets_each_bucket_once_and_in_order,
    each_backward_returns_with_averages_if_it_was_the_last,
]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_backwards_in_several_threads_are_averaged(tmp_path: Path, backend: str) -> None:
    run_ranks(SCENARIOS, tmp_path / "store", backend=backend, timeout=100)
