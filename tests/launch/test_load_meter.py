"""The load of other processes, from this host's own counters."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Event

from dpbench.launch.load_meter import host_load, read_cores
from dpbench.records.environment import core_numbers


def burn(seconds: float, began: Event) -> None:
    began.set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_process_that_computes_meanwhile_is_seen() -> None:
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    other = context.Process(target=burn, args=(20.0, began))
    other.start()
    try:
        assert began.wait(60)
        start = read_cores()
        time.sleep(1.0)
        found = host_load(start, read_cores())
    finally:
        other.kill()
        other.join()
    assert found is not None
    assert found.cores == len(core_numbers())
    assert found.during > 0.3
