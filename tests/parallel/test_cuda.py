"""What the library does on CUDA streams: what waits for what, proved without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dpbench.parallel import cuda as under_test
from dpbench.parallel.cuda import moved_in
from tests.parallel.recorded_streams import RecordedCuda

DEVICE = torch.device("cuda:1")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedCuda]:
    """From now on the library takes recorded tensors for CUDA tensors."""
    cuda = RecordedCuda()
    monkeypatch.setattr(under_test, "cuda", cuda)
    under_test._copy_stream.cache_clear()
    yield cuda
    under_test._copy_stream.cache_clear()


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
