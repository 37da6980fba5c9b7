"""The load that other processes put on this host around a trial."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time, sleep
from typing import NamedTuple

import psutil

from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad

BEFORE_SECONDS = 0.05
"""Seconds to watch before a trial: five ticks of each core, enough to see a busy core, and a tenth
of a short trial."""


class CoreSeconds(NamedTuple):
    """Seconds since boot, summed over some cores."""

    total: float
    busy: float
    """Seconds neither idle nor waiting for a disk, without stolen time."""
    stolen: float
    """Seconds that the hypervisor gave to other guests while this one wanted to run."""


def core_seconds(cores: Collection[int]) -> CoreSeconds | None:
    """The times of these cores; None if they cannot be read."""
    times = psutil.cpu_times(percpu=True)
    if max(cores) >= len(times):
        return None
    chosen = [times[core] for core in cores]
    # Time of guests is in that of their users already.
    total = sum(sum(one) - one.guest - one.guest_nice for one in chosen)
    idle = sum(one.idle + one.iowait for one in chosen)
    stolen = sum(one.steal for one in chosen)
    return CoreSeconds(total=total, busy=total - idle - stolen, stolen=stolen)


class LoadMeter:
    """Reads the counters around trials; costs a short sleep before each, and two reads of files."""

    def __init__(self, server: Callable[[], int]) -> None:
        """`server` returns the id of the process that ranks are forked from."""
        self._server = server
        self.load: HostLoad | None = None
        """Load around the last block that ended well; None if counters cannot be read."""

    @contextmanager
    def around(self) -> Iterator[None]:
        """Measure what others do until the block ends; `load` then has the result."""
        self.load = None
        earlier = self._reading()
        sleep(BEFORE_SECONDS)
        start = self._reading()
        yield
        end = self._reading()
        if earlier is None or start is None or end is None:  # not Linux, or the server has ended
            return
        before, _ = _others(earlier, start)
        during, stolen = _others(start, end)
        cores = len(core_numbers())
        self.load = HostLoad(cores=cores, before=before, during=during, stolen=stolen)

    def _reading(self) -> tuple[float, CoreSeconds, float] | None:
        """The time, the cores, and the processor seconds of this process and all ended ranks."""
        try:
            ranks = psutil.Process(self._server()).cpu_times()
            cores = core_seconds(core_numbers())
        except (psutil.Error, AttributeError):
            return None
        if cores is None:
            return None
        own = process_time() + sum(ranks[:4])  # user, system, and both of its ended children
        return perf_counter(), cores, own


def _others(
    earlier: tuple[float, CoreSeconds, float], later: tuple[float, CoreSeconds, float]
) -> tuple[float, float]:
    """Number of cores that others kept busy, and that the hypervisor took."""
    seconds = later[0] - earlier[0]
    others = later[1].busy - earlier[1].busy - (later[2] - earlier[2])
    stolen = later[1].stolen - earlier[1].stolen
    return max(0.0, others) / seconds, max(0.0, stolen) / seconds
