"""Operations in flight: none waits for another group's, nor for a rank that computes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.futures import Future

from dpbench.parallel.shm import arena_of
from tests.parallel.ranks import run_ranks


def _two_groups_in_opposite_orders(rank: int) -> None:
    groups = [dist.group.WORLD, dist.new_group(backend="shm")]
    if rank == 1:
        groups.reverse()
    for numel in (10, 200_000):
        tensors = [torch.ones(numel) for _ in groups]
        works = [
            dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups, strict=True)
        ]
        # One rank waits for the first issued, the other for the last.
        for work in works:
            work.wait()
        assert all((tensor == 2).all() for tensor in tensors)
    # A synchronous one on one group while the other rank needs an asynchronous one on the other.
    pending = dist.all_reduce(one := torch.ones(200_000), group=groups[0], async_op=True)
    dist.all_reduce(two := torch.ones(200_000), group=groups[1])
    pending.wait()
    assert (one == 2).all()
    assert (two == 2).all()


def test_groups_may_be_used_in_different_orders(tmp_path: Path) -> None:
    run_ranks(_two_groups_in_opposite_orders, tmp_path / "store", 2, backend="shm")


def _one_computes_while_the_other_waits(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1_000_000)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        # No call of ours here: only the thread can do this rank's part.
        store.wait(["done"])
    else:
        dist.all_reduce(tensor)
        store.set("done", "1")
        work = None
    if work is not None:
        work.wait()
    assert (tensor == 2).all()


def test_a_rank_that_computes_holds_nobody_up(tmp_path: Path) -> None:
    run_ranks(_one_computes_while_the_other_waits, tmp_path / "store", 2, backend="shm")


def _futures(rank: int) -> None:
    work = dist.all_reduce(torch.full((100_000,), float(rank + 1)), async_op=True)
    halved = work.get_future().then(lambda f: f.value()[0] / 2)

    def reduce_again(future: Future[torch.Tensor]) -> torch.Tensor:
        inner = dist.all_reduce(future.value(), async_op=True)
        return inner.get_future().wait()[0]

    assert (halved.then(reduce_again).wait() == 3).all()
    assert work.is_completed()
    assert work.is_success()
    assert (work.result()[0] == 3).all()
    finished: list[int] = []
    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(5)]
    for number, work in enumerate(works):
        work.get_future().add_done_callback(lambda _, n=number: finished.append(n))
    works[-1].wait()
    # As with torch's futures, the thread that finished a work calls back after waking who waits.
    deadline = time.monotonic() + 10
    while len(finished) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(finished) == list(range(5))


def test_futures_can_be_chained(tmp_path: Path) -> None:
    run_ranks(_futures, tmp_path / "store", 2, backend="shm")


def _no_thread_until_needed(rank: int) -> None:
    before = threading.active_count()
    for _ in range(10):
        dist.all_reduce(torch.ones(100_000))
    assert threading.active_count() == before
    # Nothing is pending: the thread, if there is one, takes no time.
    dist.all_reduce(torch.ones(100_000), async_op=True).wait()
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.1


def test_an_idle_group_costs_nothing(tmp_path: Path) -> None:
    run_ranks(_no_thread_until_needed, tmp_path / "store", 2, backend="shm")


def _polling(rank: int) -> None:
    arena = arena_of(dist.group.WORLD)
    assert arena is not None
    works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(4)]
    while not works[-1].is_completed():
        arena.poll()
    for work in works:
        work.wait()


def test_polling_alone_gets_operations_done(tmp_path: Path) -> None:
    run_ranks(_polling, tmp_path / "store", 2, backend="shm")
