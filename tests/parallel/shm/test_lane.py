"""A thread that waits for a lane leaves the interpreter to the one that steps it."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from dpbench.parallel.shm import semaphores
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.semaphores import Flag, has_token

FOREVER = 60.0
MOMENT = 0.2


class Owned(Flag):
    """A flag with memory of its own, and a token."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(semaphores.SIZE)
        super().__init__(ctypes.addressof(self.memory), peer=1)
        semaphores.initialise(ctypes.addressof(self.memory), 1)


@pytest.fixture
def flag() -> Flag:
    return Owned()


@pytest.fixture
def lane(flag: Flag) -> Lane:
    """Whose first operation waits for the flag."""
    lane = Lane(None)  # type: ignore[arg-type]
    lane._waiting = (flag,)
    return lane


def test_a_token_ends_the_wait_at_once(lane: Lane, flag: Flag) -> None:
    start = time.monotonic()
    lane.block(FOREVER)
    assert time.monotonic() - start < MOMENT
    assert has_token(flag)


def test_while_another_thread_steps_the_wait_lasts_as_long_as_its_steps(
    lane: Lane, flag: Flag
) -> None:
    assert lane.claim()
    waiter = threading.Thread(target=lane.block, args=(FOREVER,))
    waiter.start()
    waiter.join(MOMENT)
    assert waiter.is_alive(), "the token is nothing to look at now"
    lane.release()
    waiter.join(FOREVER)
    assert not waiter.is_alive()
    assert lane.claim(), "the lane is left free"
    assert has_token(flag)


def test_the_wait_for_another_thread_ends_after_its_time(lane: Lane) -> None:
    assert lane.claim()
    start = time.monotonic()
    lane.block(MOMENT)
    assert time.monotonic() - start >= MOMENT
    lane.release()
