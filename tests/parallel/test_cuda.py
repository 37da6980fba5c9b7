"""What the library does on CUDA streams: what waits for what, proved without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel import cuda as under_test
from dpbench.parallel.cuda import HostCopy, HostReport, moved_in, pinned
from dpbench.parallel.shm import operand
from tests.parallel.ranks import on_ranks
from tests.parallel.recorded_streams import RecordedCuda, RecordedTensor

DEVICE = torch.device("cuda:1")
NUMELS = (5, 300_000)


def _stand_in() -> RecordedCuda:
    """From now on the library takes recorded tensors for CUDA tensors."""
    cuda = RecordedCuda()
    under_test.cuda = cuda
    under_test.pinned = lambda numel, dtype: torch.empty(numel, dtype=dtype)
    under_test.future_of = lambda tensors: Future()
    _forget_streams()
    keys, elsewhere = operand._keys, operand._keys(torch.empty(1, device="meta"))
    operand._keys = lambda t: elsewhere if isinstance(t, RecordedTensor) else keys(t)
    return cuda


def _forget_streams() -> None:
    under_test._copy_stream.cache_clear()
    under_test._host_streams.cache_clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedCuda]:
    for module, name in (
        *((under_test, "cuda"), (under_test, "pinned"), (under_test, "future_of")),
        (operand, "_keys"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    yield _stand_in()
    _forget_streams()


class HostTensor:
    """A tensor in host memory whose copy to a device is recorded."""

    device = torch.device("cpu")

    def __init__(self, cuda: RecordedCuda, *, is_pinned: bool) -> None:
        self._cuda = cuda
        self._is_pinned = is_pinned

    def is_pinned(self) -> bool:
        return self._is_pinned

    def to(self, device: torch.device, non_blocking: bool = False) -> Tensor:
        self._cuda.launch("copy in", device)
        if not non_blocking or not self._is_pinned:
            self._cuda.current_stream(device).synchronize()
        return self._cuda.tensor(torch.ones(2), device)


def test_pinned_memory_may_be_filled_again_when_the_call_returns(cuda: RecordedCuda) -> None:
    before = cuda.launch("still computing", DEVICE)
    moved = moved_in(HostTensor(cuda, is_pinned=True), DEVICE)  # type: ignore[arg-type]
    refill = cuda.on_host("refill")
    copy, use = cuda.only("copy in"), cuda.launch("use", DEVICE)
    assert cuda.precedes(copy, refill)
    assert cuda.precedes(copy, use)
    # The host has not waited for what the device had still to do, nor has the copy.
    assert not cuda.precedes(before, refill)
    assert not cuda.precedes(before, copy)
    assert cuda.is_kept(moved, use)


def test_pageable_memory_is_copied_on_the_current_stream(cuda: RecordedCuda) -> None:
    before = cuda.launch("still computing", DEVICE)
    moved_in(HostTensor(cuda, is_pinned=False), DEVICE)  # type: ignore[arg-type]
    assert cuda.precedes(before, cuda.only("copy in"))
    assert cuda.precedes(cuda.only("copy in"), cuda.launch("use", DEVICE))


def test_a_report_is_sent_without_a_wait_and_waited_for_when_it_is_taken(
    cuda: RecordedCuda,
) -> None:
    values = cuda.tensor(torch.zeros(2), DEVICE)
    report = HostReport(values)
    assert report.take() is None
    values.fill_(1)
    cuda.is_done = False
    report.send(values)
    assert not cuda.named("synchronize")
    values.fill_(3)  # what is taken is what was sent
    taken = report.take()
    assert taken is not None
    assert cuda.precedes(cuda.named("fill_")[0], cuda.only("to host"))
    assert cuda.only("to host").where.endswith("cuda:1")
    assert report.take() is None  # once


def test_a_report_on_another_device_than_the_current_one_is_sent_there(cuda: RecordedCuda) -> None:
    values = cuda.tensor(torch.ones(1), DEVICE)
    report = HostReport(values)
    with cuda.device(0):
        report.send(values)
    assert cuda.only("to host").where.endswith("cuda:1")
    assert cuda.current_stream(0).last == frozenset()


def test_while_a_graph_is_captured_nothing_is_sent_or_taken(cuda: RecordedCuda) -> None:
    values = cuda.tensor(torch.ones(1), DEVICE)
    report = HostReport(values)
    report.send(values)
    cuda.capturing = True
    report.send(values)
    assert report.take() is None
    assert len(cuda.named("to host")) == 1


def test_pinned_memory_is_the_hosts_whatever_the_default_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch, "empty", lambda numel, **named: asked.update(named))
    pinned(3, torch.float32)
    assert asked == {"dtype": torch.float32, "device": "cpu", "pin_memory": True}


def test_the_host_reads_after_the_copy_which_follows_the_callers_stream(cuda: RecordedCuda) -> None:
    tensor = cuda.tensor(torch.ones(3), "cuda:1").mul_(2)
    copy = HostCopy(tensor, read=True)
    later = cuda.launch("later", "cuda:1")
    cuda.is_done = False
    too_early = cuda.on_host("looks")
    assert not copy.has_arrived
    copy.wait()
    read = cuda.on_host("reads")
    to_host = cuda.only("to host")
    assert cuda.precedes(cuda.only("mul_"), to_host)
    assert cuda.precedes(to_host, read)
    assert not cuda.precedes(to_host, too_early)
    # Neither holds up the computation that goes on, nor waits for it.
    assert not cuda.precedes(later, to_host)
    assert not cuda.precedes(to_host, later)
    assert copy.host.tolist() == [2, 2, 2]
    assert cuda.is_kept(tensor, to_host)


def test_results_reach_whoever_joins_and_nobody_else(cuda: RecordedCuda) -> None:
    tensor = cuda.tensor(torch.zeros(3), "cuda:1").add_(1)
    copy = HostCopy(tensor, read=False)
    copy.host.fill_(7)
    written = cuda.on_host("writes")
    copy.send_back()
    unaware = cuda.launch("unaware", "cuda:1")
    with cuda.stream(cuda.Stream(device="cuda:1")):
        copy.join()
        aware = cuda.launch("aware", "cuda:1")
    to_device = cuda.only("to device")
    assert not cuda.named("to host")
    # What the caller did to the tensor before must not come after the result.
    assert cuda.precedes(cuda.only("add_"), to_device)
    assert cuda.precedes(written, to_device)
    assert cuda.precedes(to_device, aware)
    assert not cuda.precedes(to_device, unaware)
    assert cuda.is_kept(tensor, to_device)
    assert tensor.tolist() == [7, 7, 7]


def test_a_tensor_of_inference_mode_gets_its_result_outside(cuda: RecordedCuda) -> None:
    with torch.inference_mode():
        tensor = cuda.tensor(torch.zeros(3))
        copy = HostCopy(tensor, read=False)
        copy.host.fill_(7)
    copy.send_back()
    assert tensor.tolist() == [7, 7, 7]


def test_both_directions_have_streams_of_their_own_on_the_tensors_device(
    cuda: RecordedCuda,
) -> None:
    with cuda.device(3):
        for _ in range(2):
            copy = HostCopy(cuda.tensor(torch.ones(3), "cuda:1"), read=True)
            copy.wait()
            copy.send_back()
        assert cuda.current_device() == 3
    to_host = {action.where for action in cuda.named("to host")}
    to_device = {action.where for action in cuda.named("to device")}
    assert len(to_host | to_device) == 2
    assert not to_host & to_device
    assert all(where.endswith("of cuda:1") for where in to_host | to_device)
    assert not any("default" in where for where in to_host | to_device)


def test_a_cuda_graph_is_refused_at_once(cuda: RecordedCuda) -> None:
    cuda.capturing = True
    with pytest.raises(RuntimeError, match="which a CUDA graph cannot capture; use nccl"):
        HostCopy(cuda.tensor(torch.ones(3)), read=True)


def _ready(cuda: RecordedCuda, values: Tensor, device: str) -> Tensor:
    """A tensor on which its device has computed."""
    return cuda.tensor(values - 1, device).add_(1)


def _all_reduce(tensor: Tensor, later: bool) -> dist.Work:
    """Not by torch.distributed, which hands subclasses of tensors to their torch functions."""
    options = dist.AllreduceOptions()
    options.asyncOp = later
    return dist.group.WORLD.allreduce([tensor], options)


@on_ranks(2, backend="shm")
def test_collectives_of_cuda_tensors_are_in_order(rank: int) -> None:
    cuda, size = _stand_in(), dist.get_world_size()
    # Nothing has arrived when it is asked for, so that somebody has to wait for it.
    cuda.is_done = False
    device = f"cuda:{rank}"
    for numel in NUMELS:
        for later in (False, True):
            cuda.actions.clear()
            tensor = _ready(cuda, torch.full((numel,), rank + 1.0), device)
            work = _all_reduce(tensor, later)
            meanwhile = cuda.launch("meanwhile", device)
            work.wait()
            after = cuda.launch("after", device)
            assert (tensor == 3).all()
            to_host, to_device = cuda.only("to host"), cuda.only("to device")
            assert cuda.precedes(cuda.only("add_"), to_host)
            assert cuda.precedes(to_host, to_device)
            assert cuda.precedes(to_device, after)
            assert not cuda.precedes(meanwhile, to_device)
            strided = cuda.tensor(torch.zeros(2 * numel), device)[::2]
            outputs = [strided, cuda.tensor(torch.zeros(numel), device)]
            mine = _ready(cuda, torch.full((numel,), float(rank)), device)
            gathering = torch._C._distributed_c10d.AllgatherOptions()
            dist.group.WORLD.allgather([outputs], [mine], gathering).wait()
            assert [tensor[-1].item() for tensor in outputs] == list(range(size))
            options = dist.BroadcastOptions()
            options.rootRank = 1
            dist.group.WORLD.broadcast([mine], options).get_future().wait()
            assert (mine == 1).all()


@on_ranks(2, backend="shm")
def test_a_captured_collective_leaves_the_group_usable(rank: int) -> None:
    cuda = _stand_in()
    cuda.capturing = rank == 0
    if rank == 0:
        with pytest.raises(RuntimeError, match="a CUDA graph cannot capture"):
            _all_reduce(cuda.tensor(torch.ones(3)), later=False)
    dist.all_reduce(tensor := torch.ones(3))
    assert (tensor == 2).all()
