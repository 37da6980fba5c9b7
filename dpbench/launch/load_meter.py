"""The load that other processes put on this node, from the kernel's counters."""

from __future__ import annotations

from time import perf_counter, process_time

import psutil

from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad


class LoadMeter:
    """Measures the load of other processes on the usable cores from now on."""

    def __init__(self, server: int | None = None) -> None:
        """`server` is the process that ranks are forked from: its own time, and that of all ranks
        that have ended, are dpbench's, as is that of this process."""
        self._server = server
        self._start = self._read()

    def load(self) -> HostLoad | None:
        """The mean load until now; None if it cannot be read."""
        end = self._read()
        if self._start is None or end is None:
            return None
        seconds, others, stolen = (b - a for a, b in zip(self._start, end, strict=True))
        return HostLoad(
            cores=len(core_numbers()),
            during=max(0.0, others) / seconds,
            stolen=max(0.0, stolen) / seconds,
        )

    def _read(self) -> tuple[float, float, float] | None:
        """Three clocks in seconds: the time; that of other processes, neither idle nor waiting for
        a disk; and that which the hypervisor gave to other guests. None if they cannot be read."""
        try:
            of_dpbench = process_time()
            if self._server is not None:
                # The last two are those of its children.
                of_dpbench += sum(psutil.Process(self._server).cpu_times()[:4])
            times = psutil.cpu_times(percpu=True)
            cores = [times[number] for number in core_numbers()]
            # Time of guests is in that of their users already.
            busy = sum(
                sum(core) - core.guest - core.guest_nice - core.idle - core.iowait - core.steal
                for core in cores
            )
            return perf_counter(), busy - of_dpbench, sum(core.steal for core in cores)
        except (psutil.Error, AttributeError, IndexError):  # not Linux, or the server has ended
            return None
