"""Operations in flight: none waits for another group's, nor for a rank that computes."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from dpbench.parallel.shm import arena_of
from tests.parallel.ranks import on_ranks


@on_ranks(2, backend="shm")
def test_groups_may_be_used_in_different_orders(rank: int) -> None:
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


@on_ranks(2, backend="shm")
def test_a_rank_that_computes_holds_nobody_up(rank: int) -> None:
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


@on_ranks(2, backend="shm")
def test_futures_can_be_chained(rank: int) -> None:
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


@on_ranks(2, backend="shm")
def test_callbacks_may_wait_for_operations_at_any_depth(rank: int) -> None:
    """Callbacks that wait for operations whose callbacks wait for operations."""

    def reduce_again(depth: int) -> Callable[[Future[list[torch.Tensor]]], torch.Tensor]:
        def called_back(future: Future[list[torch.Tensor]]) -> torch.Tensor:
            tensor = future.value()[0] + 1
            if depth == 0:
                work = dist.all_reduce(tensor, async_op=True)
                assert work is not None
                work.wait()
                return tensor
            dist.all_reduce(tensor)
            work = dist.all_reduce(tensor.clone(), async_op=True)
            assert work is not None
            result: torch.Tensor = work.get_future().then(reduce_again(depth - 1)).wait()
            return result

        return called_back

    for numel in (5, 100_000):
        work = dist.all_reduce(torch.ones(numel), async_op=True)
        assert work is not None
        assert (work.get_future().then(reduce_again(4)).wait() == _nested(2.0, 4)).all()


def _nested(value: float, depth: int) -> float:
    value = 2 * (value + 1)
    return value if depth == 0 else _nested(2 * value, depth - 1)


@on_ranks(2, backend="shm")
def test_threads_may_use_groups_at_once(rank: int) -> None:
    """Each with a group of its own and one that takes turns in the world; all at once."""
    # So that threads change within operations, and not only between them.
    sys.setswitchinterval(1e-5)
    size = dist.get_world_size()
    groups = [dist.new_group(backend="shm") for _ in range(3)]
    errors: list[BaseException] = []

    def work_on(number: int) -> None:
        try:
            generator = random.Random(number)
            for step in range(150):
                numel = generator.choice((1, 1000, 40_000))
                tensor = torch.full((numel,), rank + number + step, dtype=torch.int64)
                kind = generator.randrange(4)
                work = dist.all_reduce(tensor, group=groups[number], async_op=kind != 0)
                if work is not None and kind == 1:
                    work.get_future().wait()
                elif work is not None and kind == 2:
                    arena_of(groups[number]).poll()
                    work.wait()
                elif work is not None:
                    work.wait()
                assert (tensor == sum(range(size)) + size * (number + step)).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work_on, args=(n,)) for n in range(len(groups))]
    for thread in threads:
        thread.start()
    for _ in range(50):
        dist.all_reduce(tensor := torch.ones(1000))
        assert (tensor == size).all()
    for thread in threads:
        thread.join()
    assert not errors, errors


@on_ranks(2, backend="shm")
def test_several_threads_may_wait_for_one_group(rank: int) -> None:
    """Two threads wait for operations of one group, of which either may drive."""
    store = dist.distributed_c10d._get_default_store()
    tensors = [torch.ones(50_000) for _ in range(6)]
    if rank == 1:
        store.wait(["issued"])
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    store.set("issued", "") if rank == 0 else None
    threads = [threading.Thread(target=work.wait) for work in reversed(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((tensor == 2).all() for tensor in tensors)


@on_ranks(2, backend="shm")
def test_an_interrupted_wait_can_be_waited_for_again(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["interrupted"])
    work = dist.all_reduce(tensor := torch.ones(50_000), async_op=True)
    assert work is not None
    if rank == 0:
        # The server that forked this process has blocked it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        store.set("interrupted", "")
    work.wait()
    assert (tensor == 2).all()
    dist.all_reduce(tensor)
    assert (tensor == 4).all()


@on_ranks(2, backend="shm")
def test_an_idle_group_costs_nothing(rank: int) -> None:
    before = threading.active_count()
    for _ in range(10):
        dist.all_reduce(torch.ones(100_000))
    assert threading.active_count() == before
    # Nothing is pending: the thread, if there is one, takes no time.
    dist.all_reduce(torch.ones(100_000), async_op=True).wait()
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.1


@on_ranks(2, backend="shm")
def test_polling_alone_gets_operations_done(rank: int) -> None:
    arena = arena_of(dist.group.WORLD)
    assert arena is not None
    works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(4)]
    while not works[-1].is_completed():
        arena.poll()
    for work in works:
        work.wait()
