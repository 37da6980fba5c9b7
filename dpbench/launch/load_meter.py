"""The load that other processes put on this node, from the kernel's counters."""

from __future__ import annotations

from time import perf_counter, process_time

import psutil

from dpbench.launch.fork_server import fork_server_process
from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad


class LoadMeter:
    """Measures the load of other processes on the usable cores from now on.

    This process, the server that ranks are forked from, and the ranks that have ended, are dpbench.
    """

    def __init__(self) -> None:
        self._server = fork_server_process()
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
            # The last two times of the server are those of its children.
            of_dpbench = process_time() + sum(psutil.Process(self._server).cpu_times()[:4])
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
