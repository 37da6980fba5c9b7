"""Groups, the tensors they take, their memory and their threads."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.futures import Future

from dpbench.parallel.shm import ShmProcessGroup, allocate_group_zeros, backend, memory
from tests.parallel.ranks import World, finish
from tests.waiting import wait_until

SMALL, LARGE = 5, 300_000
CPU = torch.device("cpu")

world = World(backend="shm")
warnings.simplefilter("ignore")  # of forks in threads, and much that is of the compiler


def test_memory_needs_no_function_of_os_that_some_pythons_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    descriptor = memory.create_memory(2)
    # It has no name in /dev/shm that a killed process could leave behind.
    name = Path(f"/proc/self/fd/{descriptor}").readlink()
    assert str(name) == "/memfd:dpbench-shm (deleted)"
    os.close(descriptor)


@world.body
def another_backend_beside_it_is_refused(rank: int) -> None:
    for config in ("cpu:shm,cuda:gloo", "cpu:gloo,cuda:shm"):
        group = dist.new_group(backend=config)
        with pytest.raises(ValueError, match=r"takes all devices, got .*cpu:.* two groups"):
            dist.all_reduce(torch.ones(3), group=group)


@world.body
def a_rank_that_cannot_share_memory_is_an_error_on_every_rank(rank: int) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    files = _resources()[0]
    for module, name, fake, words in (
        (memory, "open_memory", refuse, r"share memory: rank 1: \[Errno 13\] Permission"),
        (backend, "host_key", lambda: "far-away", "rank 1 is on another host .*use gloo"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(module, name, fake)
            with pytest.raises(RuntimeError, match=words):
                dist.new_group(backend="shm")
    wait_until(lambda: _resources()[0] <= files)


@world.body
def bad_arguments_are_errors_of_one_rank_and_the_group_goes_on(rank: int) -> None:
    floats, three = torch.ones(4), torch.ones(3)
    float8, integers = floats.to(torch.float8_e5m2), floats.long()
    avg, band = dist.ReduceOp.AVG, dist.ReduceOp.BAND
    calls: dict[str, Callable[[], object]] = {
        "takes dense .* got torch.sparse_coo": lambda: dist.broadcast(three.to_sparse(), 0),
        "got torch.strided on meta": lambda: dist.broadcast(three.to("meta"), 0),
        "got 1 tensors, expected one of 3 ×": lambda: dist.all_gather([three], three),
        "got 2 tensors, expected one of 3 ×": lambda: dist.all_gather([floats, floats], three),
        "got 2 tensors .*expected 1": lambda: dist.all_reduce_coalesced([three, three]),
        "got rank -1 as the root": lambda: dist.broadcast(three, group_src=-1),
        "cannot reduce torch.float32 with BAND": lambda: dist.all_reduce(floats, band),
        "cannot reduce torch.int64 with AVG": lambda: dist.all_reduce(integers, avg, async_op=True),
        "cannot reduce torch.float8_e5m2 with SUM": lambda: dist.all_reduce(float8),
        "no messages between two ranks": lambda: dist.send(three, 1),
        "all_to_all": lambda: dist.all_to_all_single(floats, floats),
        "reduce, scatter": lambda: dist.reduce(floats, 1),
    }
    for words, call in calls.items():
        if rank == 0:
            with pytest.raises((ValueError, NotImplementedError), match=words):
                call()
        dist.all_reduce(tensor := torch.ones(3))
        assert (tensor == 2).all()


@world.body
def inference_mode_changes_nothing(rank: int) -> None:
    with torch.inference_mode():
        group = dist.new_group(backend="shm")
        kept = allocate_group_zeros(group, LARGE, torch.float32, CPU)
    for numel, later in product((SMALL, LARGE), (False, True)):
        with torch.inference_mode():
            tensors = torch.ones(numel), torch.ones(2 * numel)[::2], torch.ones(numel, 1)
            for tensor in tensors:
                finish(dist.all_reduce(tensor, group=group, async_op=later))
        # What the group keeps from then on serves outside the mode as well.
        for tensor in (*tensors, kept[:numel].fill_(2), torch.full((numel,), 2.0)):
            finish(dist.all_reduce(tensor, group=group, async_op=later))
            assert (tensor == 4).all()


@world.body
def odd_tensors_are_taken(rank: int) -> None:
    negative = torch.full((SMALL,), 1 + 2j).conj().imag
    assert negative.is_neg()
    leaf = torch.ones(4, 3, requires_grad=True).t()
    channels_last = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    flags = torch.tensor([True, rank == 0, False])
    for tensor in (negative, leaf, scalar := torch.tensor(1.0), torch.empty(0, 3), channels_last):
        finish(dist.all_reduce(tensor, async_op=True))
    dist.all_reduce(flags)
    assert (negative == -4).all()
    assert (leaf == 2).all()
    assert scalar == 2
    assert (channels_last == 2).all()
    assert flags.tolist() == [True, True, False]
    # What only gives values may repeat them.
    received = [torch.empty(3) for _ in range(2)]
    dist.all_gather(received, torch.tensor([float(rank)]).expand(3))
    assert [tensor.tolist() for tensor in received] == [[0.0] * 3, [1.0] * 3]


@world.body
def memory_is_freed_with_its_tensors(rank: int) -> None:
    """Ranks drop their tensors in different orders; no two that live may share memory."""
    common, own = random.Random(1), random.Random(rank)
    before = _mapped()
    alive: list[tuple[int, torch.Tensor]] = []
    for number in range(80):
        numel = common.choice((0, 1, 4096, 5000, 70_000, 2_000_000))
        space = allocate_group_zeros(dist.group.WORLD, numel, torch.uint8, CPU)
        assert not space.any()
        alive.append((number, space.fill_(number)))
        while len(alive) > 20 or (alive and own.random() < 0.3):
            dropped, tensor = alive.pop(own.randrange(len(alive)))
            assert (tensor == dropped).all()
    assert all((tensor == number).all() for number, tensor in alive)
    alive.clear()
    del space, tensor
    wait_until(lambda: _mapped() <= before)


def _mapped() -> int:
    """Regions of memory that groups share; a thread may hold one for a moment."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:dpbench-shm")


@world.body
def memory_that_cannot_be_had_is_an_error_on_every_rank(rank: int) -> None:
    group = dist.new_group(backend="shm")
    with pytest.raises(dist.DistBackendError, match=r"allocate\(100 .*allocate\(101 "):
        allocate_group_zeros(group, 100 + rank, torch.uint8, CPU)
    group = dist.new_group(backend="shm")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        allocate_group_zeros(group, 2**61, torch.uint8, CPU)


@world.body
def a_rank_that_computes_holds_nobody_up(rank: int) -> None:
    store = dist.group.WORLD.get_group_store()
    tensor = torch.ones(1_000_000)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        # No call of the group here: only its thread can do this rank's part.
        store.wait(["done"])
        finish(work)
    else:
        dist.all_reduce(tensor)
        store.set("done", "1")
    assert (tensor == 2).all()


@world.body
def the_timeout_of_a_call_counts(rank: int) -> None:
    group, store = dist.new_group(backend="shm"), dist.group.WORLD.get_group_store()
    if rank == 0:
        options = dist.BarrierOptions()
        options.timeout = timedelta(seconds=0.2)
        with pytest.raises(RuntimeError, match=r"^barrier\(\): Timed out waiting 200ms for rank 1"):
            group.barrier(options).wait()
        store.set("timed out", "1")
    else:
        store.wait(["timed out"])


@world.body
def callbacks_may_wait_for_operations(rank: int) -> None:
    def again(future: Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = future.value()[0].clone()
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        doubled: torch.Tensor = work.get_future().then(lambda done: 2 * done.value()[0]).wait()
        return doubled

    for numel in (SMALL, LARGE):
        first = dist.all_reduce(torch.ones(numel), async_op=True)
        # Queued behind the first, whose callbacks may not keep it waiting.
        second = dist.all_reduce(torch.ones(numel), async_op=True)
        assert (first.get_future().then(again).wait() == 2**4).all()
        assert (second.get_future().wait()[0] == 2).all()
        assert second.is_completed()
        assert second.is_success()
        assert (second.result()[0] == 2).all()
        # A thread that waits for an operation runs its callbacks, which may wait too.
        third = dist.all_reduce(torch.ones(numel), async_op=True)
        future = third.get_future().then(again)
        third.wait()
        assert (future.wait() == 2**4).all()


@world.body
def threads_may_use_groups_at_once(rank: int) -> None:
    """Each has a group of its own, and one the world."""
    interval = sys.getswitchinterval()
    # So that threads change within operations, and not only between them.
    sys.setswitchinterval(1e-5)
    groups = [dist.group.WORLD, *(dist.new_group(backend="shm") for _ in range(3))]

    def work_on(number: int) -> None:
        generator = random.Random(number)
        for step in range(100):
            tensor = torch.full((generator.choice((1, 1000, 40_000)),), rank + number + step)
            kind = generator.randrange(3)
            work = dist.all_reduce(tensor, group=groups[number], async_op=kind != 0)
            if kind == 1:
                work.get_future().wait()
            finish(work)
            assert (tensor == 1 + 2 * (number + step)).all()

    with ThreadPoolExecutor(len(groups)) as threads:
        list(threads.map(work_on, range(len(groups))))
    sys.setswitchinterval(interval)


@world.body
def a_forked_child_does_no_harm(rank: int) -> None:
    space = allocate_group_zeros(dist.group.WORLD, LARGE, torch.float32, CPU).fill_(5)
    tensor = torch.ones(LARGE)
    pending = dist.all_reduce(tensor, async_op=True) if rank == 0 else None
    child = os.fork()
    if child == 0:
        del space
        gc.collect()
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            os._exit(0 if "forked from it" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if rank == 1:
        pending = dist.all_reduce(tensor, async_op=True)
    finish(pending)
    assert (tensor == 2).all()
    assert (space == 5).all()


@world.body
def destroyed_groups_leave_nothing(rank: int) -> None:
    before = None
    for number in range(21):
        group = dist.new_group(backend="shm")
        dist.all_reduce(torch.ones(3), group=group)
        if number % 10 == 0:
            dist.all_reduce(torch.ones(30_000), group=group, async_op=True).wait()
        dist.destroy_process_group(group)
        del group
        before = before or _resources()
    # Threads of groups end a moment after them.
    wait_until(lambda: all(map(int.__le__, _resources(), before)))


def _resources() -> tuple[int, int, int]:
    """Open files, shared regions and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), _mapped(), threading.active_count()


@world.body
def what_is_pending_in_a_destroyed_group_fails(rank: int) -> None:
    group = dist.new_group(backend="shm")
    assert isinstance(group, ShmProcessGroup)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(3)]
        futures = [work.get_future() for work in works]
        dist.destroy_process_group(group)
        for wait in [*(work.wait for work in works), *(future.wait for future in futures)]:
            with pytest.raises(RuntimeError, match="it has been destroyed"):
                wait()
    dist.barrier()
    if rank == 1:
        with contextlib.suppress(dist.DistBackendError):
            dist.all_reduce(torch.ones(5), group=group)  # which rank 0 may have begun
        with pytest.raises(RuntimeError, match=r"rank 0 .*has left the group"):
            dist.all_reduce(torch.ones(5), group=group)


@world.body
def compiled_functions_communicate(rank: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        y = functional.all_reduce(x, "sum", group)
        z = functional.all_gather_tensor(y + dist.get_rank(), 0, group)
        z = functional.reduce_scatter_tensor(z, "sum", 0, group)
        return functional.broadcast(z, 1, group) * 2

    inputs = torch.arange(4.0) + rank
    # This backend of the compiler decides everything before C++ is written, which takes long.
    result = torch.compile(function, backend="aot_eager")(inputs)
    torch.testing.assert_close(result, function(inputs))


test_on_ranks = world.test()
