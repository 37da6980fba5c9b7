"""What gloo has beside the usual collectives; torch's own tests of it run in tests/conformance."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dpbench.parallel.shm import work
from tests.parallel.ranks import on_ranks
from tests.parallel.shm.cases import same_bits


@on_ranks(3, backend="shm")
def test_a_list_to_be_reduced_may_have_several_sizes(rank: int) -> None:
    size = dist.get_world_size()
    for unit in (1, 150_000):
        counts = [unit * (peer + 1) for peer in range(size - 1)] + [0]
        parts = [torch.full((count,), float(peer)) for peer, count in enumerate(counts)]
        output = torch.empty(counts[rank])
        dist.reduce_scatter(output, [part + rank for part in parts])
        expected = torch.full((counts[rank],), float(size * rank + sum(range(size))))
        assert same_bits(output, expected)
    inputs = [torch.ones(3), torch.ones(4), torch.ones(5 if rank == 0 else 6)]
    with pytest.raises(dist.DistBackendError, match=r"rank 0 has \[3, 4, 5\] elements for the"):
        dist.reduce_scatter(torch.empty_like(inputs[rank]), inputs)
    dist.barrier()


@on_ranks(2, backend="shm")
def test_a_short_limit_is_told_as_such_though_the_peer_has_left(rank: int) -> None:
    group = dist.new_group(backend="shm")
    if rank == 1:
        dist.destroy_process_group(group)
    dist.barrier()
    if rank == 0:
        options = dist.BarrierOptions()
        options.timeout = timedelta(milliseconds=1)
        with pytest.raises(
            RuntimeError, match=r"Timed out waiting 1ms for rank 1 .*which has left the group"
        ):
            group.barrier(options).wait()


@on_ranks(2, backend="shm")
def test_a_profile_shows_the_operations_with_their_shapes(rank: int) -> None:
    large = torch.ones(100_000)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 4))
        pending = dist.all_reduce(large, async_op=True)
        assert pending is not None
        pending.wait()
        dist.broadcast(torch.ones(5), 0)
        dist.barrier()
        with pytest.raises(ValueError, match="cannot reduce"):
            dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    events = [event for event in profile.events() if event.name.startswith("shm:")]
    found = sorted((event.name, str(event.input_shapes)) for event in events)
    assert found == [
        ("shm:all_reduce", "[[100000]]"),
        ("shm:all_reduce", "[[3, 4]]"),
        ("shm:barrier", "[]"),
        ("shm:broadcast", "[[5]]"),
    ]
    assert all(event.is_async for event in events)


@on_ranks(2, backend="shm")
def test_without_a_profiler_no_events_are_made(rank: int) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an event without a profiler")

    work.Event.__init__ = fail  # type: ignore[assignment]
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
