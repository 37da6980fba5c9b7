"""Peak memory, in a process of its own each time: a peak cannot be taken back."""

from __future__ import annotations

from dpbench.launch.machine import in_child
from dpbench.measure.device import peak_host_memory_bytes

MIB = 2**20


def grow_and_shrink() -> tuple[int, int, int]:
    """The peak before 300 MiB are held, with them, and when they are given back."""
    before = peak_host_memory_bytes()
    held = b"\1" * (300 * MIB)
    during = peak_host_memory_bytes()
    del held
    return before, during, peak_host_memory_bytes()


def test_the_peak_follows_what_is_held_and_stays() -> None:
    before, during, after = in_child(grow_and_shrink)
    assert 290 * MIB < during - before < 310 * MIB
    assert during <= after < during + 5 * MIB
