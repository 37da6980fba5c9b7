"""The load of other processes, from counters that are made up and from this host's own."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from dpbench.launch import load_meter
from dpbench.launch.load_meter import LoadMeter
from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad

CORES = (0, 1)
SERVER = 77


class Counters:
    """/proc/stat and /proc/77/stat at three moments: ticks of a hundredth of a second."""

    def __init__(self, *moments: tuple[int, int, int]) -> None:
        self._moments = iter(moments)
        self._now = (0, 0, 0)

    def read(self, path: str) -> str | None:
        if path == "/proc/stat":
            self._now = next(self._moments)
            busy, stolen, _ = self._now
            return f"cpu0 {busy} 0 0 1000 0 0 0 {stolen}\ncpu1 0 0 0 1000 0 0 0 0\n"
        assert path == f"/proc/{SERVER}/stat"
        fields = ["S", *["0"] * 10, "0", "0", str(self._now[2]), "0"]
        return f"{SERVER} (a ) b) {' '.join(fields)}"


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings at 0, 1 and 11 s, in which this process does nothing."""
    times = iter((0.0, 1.0, 11.0))
    monkeypatch.setattr(load_meter, "perf_counter", lambda: next(times))
    monkeypatch.setattr(load_meter, "process_time", lambda: 5.0)
    monkeypatch.setattr(load_meter, "sleep", lambda _: None)
    monkeypatch.setattr(load_meter, "TICKS_PER_SECOND", 100)
    monkeypatch.setattr("dpbench.launch.host.TICKS_PER_SECOND", 100)


@pytest.mark.usefixtures("_clock")
def test_what_neither_ranks_nor_dpbench_took_is_somebody_elses() -> None:
    counters = Counters((0, 0, 0), (50, 0, 0), (1050, 100, 400))
    meter = LoadMeter(lambda: SERVER, CORES, counters.read)
    with meter.around():
        pass
    assert meter.load is not None
    assert meter.load == HostLoad(
        cores=2,
        before=pytest.approx(0.5),
        during=pytest.approx(0.6),  # 10 s busy, 4 s of them the ranks', in 10 s
        stolen=pytest.approx(0.1),
    )


def test_where_the_counters_cannot_be_read_there_is_no_load() -> None:
    meter = LoadMeter(lambda: SERVER, CORES, lambda path: None)
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
