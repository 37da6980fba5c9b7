"""The load that other processes put on this node, from the kernel's counters."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import NamedTuple

import psutil

from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad


class CoreTimes(NamedTuple):
    """Readings of one moment, in seconds; those of the usable cores are sums since boot."""

    at: float
    others: float
    """Neither idle nor waiting for a disk, without stolen time and that of dpbench."""
    stolen: float
    """Given by the hypervisor to other guests while this one wanted to run."""


def read_cores(server: int | None = None) -> CoreTimes | None:
    """The times of the usable cores; None if they cannot be read.

    `server` is the process that ranks are forked from: its own time, and that of all ranks that
    have ended, are dpbench's, as is that of this process.
    """
    try:
        of_dpbench = process_time()
        if server is not None:
            # The last two are those of its children.
            of_dpbench += sum(psutil.Process(server).cpu_times()[:4])
        times = psutil.cpu_times(percpu=True)
        cores = [times[number] for number in core_numbers()]
        # Time of guests is in that of their users already.
        busy = sum(
            sum(core) - core.guest - core.guest_nice - core.idle - core.iowait - core.steal
            for core in cores
        )
        stolen = sum(core.steal for core in cores)
    except (psutil.Error, AttributeError, IndexError):  # not Linux, or the server has ended
        return None
    return CoreTimes(at=perf_counter(), others=busy - of_dpbench, stolen=stolen)


def host_load(start: CoreTimes | None, end: CoreTimes | None) -> HostLoad | None:
    """The load of others from `start` to `end`; None unless both could be read."""
    if start is None or end is None:
        return None
    seconds = end.at - start.at
    return HostLoad(
        cores=len(core_numbers()),
        during=max(0.0, end.others - start.others) / seconds,
        stolen=max(0.0, end.stolen - start.stolen) / seconds,
    )
