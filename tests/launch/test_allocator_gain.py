"""What `doctor` says of keeping freed memory, and that it is measured."""

from __future__ import annotations

import pytest

from dpbench.launch import allocator_gain
from dpbench.launch.allocator_gain import AllocatorGain, measure_allocator_gain


def found(gain: float) -> AllocatorGain:
    return AllocatorGain(page_faults=9800.4, page_faults_kept=2.0, gain=gain)


def test_a_gain_is_advised_and_a_small_one_is_not() -> None:
    assert found(0.12).text == (
        "9,800 page faults per step, 2 where a process keeps the memory that it frees (mnist_cnn, "
        "batch 64): --allocator keep saves 12 % of the processor time"
    )
    assert found(0.02).text.endswith("(mnist_cnn, batch 64): no gain")


def test_real_steps_fault_less_once_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_gain, "reason_to_leave", lambda: None)
    measured = measure_allocator_gain()
    assert measured.page_faults is not None
    assert measured.page_faults_kept is not None
    assert measured.page_faults_kept < 1000  # some 4,400 where glibc gives memory back


def test_where_memory_cannot_be_kept_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert measure_allocator_gain().text == "not measured, as MALLOC_ARENA_MAX is set"
