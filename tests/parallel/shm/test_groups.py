"""Groups come and go; where they cannot be, an error says so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.parallel.shm import ShmProcessGroup, peers
from tests.parallel.ranks import on_ranks


def test_the_backend_is_known_after_the_import() -> None:
    code = (
        "import dpbench.parallel, torch; dist = torch.distributed\n"
        "dist.init_process_group('shm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "t = torch.ones(3); dist.all_reduce(t); print(dist.get_backend(), t.tolist())\n"
        "dist.destroy_process_group()"
    )
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "shm [1.0, 1.0, 1.0]\n"


@on_ranks(2, backend="shm")
def test_a_group_is_its_own_backend(rank: int) -> None:
    world = dist.group.WORLD
    assert isinstance(world, ShmProcessGroup)
    assert [device.type for device in world._device_types] == ["cpu", "cuda"]
    for device in world._device_types:
        backend = world._get_backend(device)
        assert backend is world
        assert not backend.supports_coalescing
    first = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert world._get_sequence_number_for_group() == first + 2
    assert world.get_group_store() is not None


@on_ranks(2, backend="gloo")
def test_another_backend_beside_it_is_refused(rank: int) -> None:
    for backend in ("cpu:shm,cuda:gloo", "cpu:gloo,cuda:shm"):
        group = dist.new_group(backend=backend)
        with pytest.raises(ValueError, match="takes the tensors of all devices, got a group of"):
            dist.all_reduce(torch.ones(3), group=group)


def _resources() -> tuple[int, int, int]:
    """As soon as they stay as they are: the thread may still hold what it has just finished."""
    found, again = None, _counted()
    while found != again:
        time.sleep(0.1)
        found, again = again, _counted()
    return again


def _counted() -> tuple[int, int, int]:
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd")
    return len(list(Path("/proc/self/fd").iterdir())), mapped, threading.active_count()


@pytest.mark.slow
@on_ranks(2, backend="shm")
def test_destroyed_groups_leave_nothing(rank: int) -> None:
    before = None
    for number in range(300):
        group = dist.new_group(backend="shm")
        dist.all_reduce(torch.ones(3), group=group)
        if number % 10 == 0:
            dist.all_reduce(torch.ones(30_000), group=group, async_op=True).wait()
        dist.destroy_process_group(group)
        del group
        before = before or _resources()
    assert _resources() == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@on_ranks(2, backend="shm")
def test_a_forked_child_does_no_harm(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["the child has ended"])
    pending = dist.all_reduce(tensor := torch.ones(100_000), async_op=True)
    if rank == 0:
        child = os.fork()
        if child == 0:
            messages = []
            # None of these may take part in what the parent is at.
            dist.group.WORLD.shared.poll()
            for call in (pending.wait, lambda: dist.all_reduce(torch.ones(3))):
                try:
                    call()
                except RuntimeError as error:
                    messages.append(str(error))
            gc.collect()
            os._exit(0 if ["forked" in message for message in messages] == [True, True] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.set("the child has ended", "")
    pending.wait()
    assert (tensor == 2).all()
    dist.all_reduce(tensor)
    assert (tensor == 4).all()


@on_ranks(2, backend="shm")
def test_what_is_pending_in_a_destroyed_group_fails(rank: int) -> None:
    """With operations pending that cannot end any more."""
    group = dist.new_group(backend="shm")
    if rank == 0:
        works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(3)]
        futures = [work.get_future() for work in works]
        dist.destroy_process_group(group)
        for work, future in zip(works, futures, strict=True):
            with pytest.raises(RuntimeError, match="it has been destroyed"):
                work.wait()
            with pytest.raises(RuntimeError, match="it has been destroyed"):
                future.wait()
    dist.barrier()
    if rank == 1:
        # Rank 0 had begun the first one, which takes no more of it.
        dist.all_reduce(torch.ones(5), group=group)
        with pytest.raises(RuntimeError, match=r"rank 0 .* has left the group"):
            dist.barrier(group)


@on_ranks(2, backend="shm")
def test_ranks_on_two_hosts_are_refused_everywhere(rank: int) -> None:
    real = peers.Identity.of_this_process

    def elsewhere(memory: int) -> peers.Identity:
        identity = real(memory)
        return peers.Identity("far-away", "other", identity.namespace, identity.pid, memory)

    if rank == 1:
        peers.Identity.of_this_process = elsewhere  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"rank 1 is on another host \(far-away\).*use gloo or"):
        dist.new_group(backend="shm")


@on_ranks(2, backend="shm")
def test_work_that_nobody_waits_for_gets_done(rank: int) -> None:
    dist.all_reduce(torch.ones(1_000_000), async_op=True)
    dist.all_reduce(torch.ones(10), async_op=True)


@on_ranks(2, backend="shm")
def test_bad_arguments_are_errors_at_once(rank: int) -> None:
    with pytest.raises(ValueError, match="take dense tensors, got layout"):
        dist.broadcast(torch.ones(3).to_sparse(), 0)
    with pytest.raises(ValueError, match="got 1 tensors, expected one for each of the 2 ranks"):
        dist.all_gather([torch.ones(3)], torch.ones(3))
    with pytest.raises(ValueError, match=r"for rank 1 has 4 × torch\.float32, expected 3 ×"):
        dist.all_gather([torch.ones(3), torch.ones(4)], torch.ones(3))
    with pytest.raises(ValueError, match=r"got 5 × torch\.float32 for all ranks and 3 ×"):
        dist.all_gather_single(torch.ones(5), torch.ones(3))
    with pytest.raises(ValueError, match=r"got split sizes \[1, 1\].* the 3 rows"):
        dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 2])
    for message in (dist.send, dist.recv):
        with pytest.raises(RuntimeError, match="shm has no messages between two ranks"):
            message(torch.ones(3), 1 - rank)
    with pytest.raises(ValueError, match=r"cannot reduce torch\.float32 with BAND"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
