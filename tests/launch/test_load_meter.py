"""The load of other processes, from this host's own counters."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Event

import pytest

from dpbench.launch import load_meter
from dpbench.launch.load_meter import host_load, read_cores
from dpbench.records.environment import core_numbers


def test_a_core_that_is_not_there_and_a_server_that_has_ended_give_no_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = read_cores()
    assert read_cores(server=2**22 + 1) is None
    monkeypatch.setattr(load_meter, "core_numbers", lambda: (0, 10**6))
    assert read_cores() is None
    assert host_load(here, None) is None


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
