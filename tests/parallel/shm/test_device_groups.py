"""Groups with another backend for each type of device, as far as they can be seen on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dpbench.parallel.shm import ShmProcessGroup, arena_of
from tests.parallel.ranks import on_ranks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@on_ranks(2, backend="cpu:shm,cuda:gloo")
def test_each_device_has_the_backend_that_was_asked_for(rank: int) -> None:
    """With gloo, for want of GPUs, in the place of nccl."""
    world = dist.group.WORLD
    assert dist.get_backend_config() == "cpu:shm,cuda:gloo"
    assert sorted(d.type for d in world._device_types) == ["cpu", "cuda"]
    assert world._get_backend(CPU) is world
    assert isinstance(world._get_backend(CUDA), dist.ProcessGroupGloo)
    assert arena_of(world) is world.shared
    dist.all_reduce(tensor := torch.ones(100_000))
    assert (tensor == 2).all()
    # The other backend is alive, and is told what torch tells a group.
    world._get_backend(CUDA).allreduce([tensor]).wait()
    assert (tensor == 4).all()
    assert world._beside.group_name == world.group_name == c10d._get_process_group_name(world)
    store = c10d._get_process_group_store(world)
    store.set(f"from {rank}", "here")
    assert world.get_group_store().get(f"from {1 - rank}") == b"here"
    # Only one group is known to torch, by its name and among the tags.
    assert list(c10d._world.pg_map) == [world]
    assert list(c10d._world.pg_names.values()) == [world.group_name]
    assert all(groups == [world] for groups in c10d._world.tags_to_pg.values() if groups)
    with pytest.raises(RuntimeError, match="No backend type associated with device type xpu"):
        world._get_backend(torch.device("xpu"))


@on_ranks(2, backend="cpu:gloo,cuda:shm")
def test_tensors_of_other_devices_go_to_the_other_backend(rank: int) -> None:
    world = dist.group.WORLD
    gloo = world._get_backend(CPU)
    assert isinstance(gloo, dist.ProcessGroupGloo)
    assert world._get_backend(CUDA) is world
    assert arena_of(world) is None
    size = dist.get_world_size()
    # All of them go to gloo, as gloo alone refuses types that shm takes.
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(torch.ones(3, dtype=torch.uint16))
    gathered = [torch.empty(3) for _ in range(size)]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    assert [tensor[0].item() for tensor in gathered] == list(range(size))
    dist.gather(torch.ones(3), gathered if rank == 0 else None)
    dist.scatter(output := torch.empty(3), gathered if rank == 0 else None)
    assert (output == 1).all()
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([rank]), 1 - rank),
            dist.P2POp(dist.irecv, got := torch.tensor([-1]), 1 - rank),
        ]
    ):
        work.wait()
    assert got.item() == 1 - rank
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, rank)
    assert everything == list(range(size))
    dist.barrier()


@on_ranks(2, backend="cpu:gloo,cuda:shm")
def test_a_batch_that_would_hang_is_refused(rank: int) -> None:
    """With a stand-in for the group that torch would have made of it."""
    nccl = SimpleNamespace(supports_coalescing=True)
    sent = []
    real = dist.group.WORLD._beside
    dist.group.WORLD._beside = SimpleNamespace(
        _get_backend=lambda device: nccl, send=lambda *arguments: sent.append(arguments)
    )
    dist.isend(torch.ones(3), 1 - rank)
    assert len(sent) == 1
    messages = [dist.P2POp(dist.isend, torch.ones(3), 1 - rank)]
    with pytest.raises(RuntimeError, match="batch_isend_irecv of cpu tensors would hang"):
        dist.batch_isend_irecv(messages)
    dist.group.WORLD._beside = real


@on_ranks(2, backend="cpu:shm")
def test_a_device_without_a_backend_is_refused(rank: int) -> None:
    dist.all_reduce(tensor := torch.ones(5))
    assert (tensor == 2).all()
    with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
        dist.group.WORLD._get_backend(CUDA)


@on_ranks(3, backend="gloo")
def test_sub_groups_may_have_several_backends(rank: int) -> None:
    for _ in range(3):
        group = dist.new_group([0, 1], backend="cuda:gloo,cpu:shm")
        if rank < 2:
            dist.all_reduce(tensor := torch.ones(5), group=group)
            assert (tensor == 2).all()
            assert isinstance(group._get_backend(CUDA), dist.ProcessGroupGloo)
            dist.destroy_process_group(group)
        dist.barrier()
    assert len(c10d._world.pg_map) == 1


@on_ranks(2, backend="shm")
def test_a_group_of_shm_alone_is_its_own_backend(rank: int) -> None:
    world = dist.group.WORLD
    assert isinstance(world, ShmProcessGroup)
    assert world._device_types == [CPU, CUDA]
    for device in (CPU, CUDA):
        backend = world._get_backend(device)
        assert backend is world
        assert not backend.supports_coalescing
    first = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert world._get_sequence_number_for_group() == first + 2
    assert world.get_group_store() is not None
