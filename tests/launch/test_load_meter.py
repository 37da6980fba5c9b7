"""The load of other processes, from this host's own counters."""

from __future__ import annotations

import multiprocessing
import os
import time

from dpbench.launch.load_meter import LoadMeter, core_seconds
from dpbench.records.environment import core_numbers


def test_a_core_that_is_not_there_and_a_server_that_has_ended_give_no_load() -> None:
    assert core_seconds((0, 10**6)) is None
    meter = LoadMeter(lambda: 2**22 + 1)
    with meter.around():
        pass
    assert meter.load is None


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_process_that_computes_meanwhile_is_seen() -> None:
    meter = LoadMeter(os.getpid)  # stands in for the server: its time counts twice, and is small
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=burn, args=(20.0,))
    other.start()
    try:
        time.sleep(1.0)
        with meter.around():
            time.sleep(1.0)
    finally:
        other.kill()
        other.join()
    assert meter.load is not None
    assert meter.load.cores == len(core_numbers())
    assert meter.load.during > 0.3
