"""Threads that wait: for a flag, for a driver, and never at the cost of one that has work."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dpbench.parallel.shm import semaphores
from dpbench.parallel.shm.engine import Background
from dpbench.parallel.shm.lane import SPINS, Lane, Patience, block
from dpbench.parallel.shm.semaphores import SharedFlag, has_token

FOREVER = 60.0
MOMENT = 0.2


class Owned(SharedFlag):
    """A flag with memory of its own."""

    def __init__(self, tokens: int) -> None:
        self.memory = ctypes.create_string_buffer(semaphores.SIZE)
        super().__init__(ctypes.addressof(self.memory), peer=1)
        semaphores.initialise(ctypes.addressof(self.memory), tokens)


def _seconds(call: Any, *arguments: Any) -> float:
    start = time.monotonic()
    call(*arguments)
    return time.monotonic() - start


def test_a_token_ends_the_wait_at_once_and_stays() -> None:
    flag = Owned(1)
    assert _seconds(block, (flag,), FOREVER) < MOMENT
    assert has_token(flag)


def test_a_token_that_comes_ends_the_wait() -> None:
    flag = Owned(0)
    threading.Timer(MOMENT, lambda: semaphores.post(flag.address)).start()
    assert MOMENT / 2 < _seconds(block, (flag,), FOREVER) < FOREVER / 2


def test_without_a_token_the_wait_ends_after_its_time() -> None:
    assert _seconds(block, (Owned(0),), MOMENT) >= MOMENT


def test_patience_spins_first_and_then_blocks_longer_and_longer() -> None:
    patience, flag = Patience(longest=0.004), Owned(0)
    assert not any(patience.pause((flag,)) for _ in range(SPINS))
    waits = [_seconds(patience.pause, (flag,)) for _ in range(4)]
    for wait, least in zip(waits, (0.001, 0.002, 0.004, 0.004), strict=True):
        assert wait >= least


@pytest.fixture
def lane() -> Lane:
    """One whose first operation is urgent, and may get on."""
    lane = Lane(SimpleNamespace())  # type: ignore[arg-type]
    lane.queue.append(SimpleNamespace(urgent=True))  # type: ignore[arg-type]
    lane.waiting = (Owned(1),)
    return lane


def test_the_background_is_awake_at_once_for_an_urgent_operation(lane: Lane) -> None:
    assert _seconds(Background({lane: None})._rest, FOREVER) < MOMENT


def test_the_background_leaves_a_lane_to_its_driver(lane: Lane) -> None:
    """Woken by each token, it would take the interpreter from the driver, which has work."""
    assert lane.claim() is False
    assert lane.driver.acquire(blocking=False)
    assert _seconds(Background({lane: None})._rest, MOMENT) >= MOMENT


def test_an_idle_lane_is_claimed_once() -> None:
    lane = Lane(SimpleNamespace())  # type: ignore[arg-type]
    assert lane.claim()
    assert not lane.claim()
    lane.driver.release()
    assert lane.claim()
