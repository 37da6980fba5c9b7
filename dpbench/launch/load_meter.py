"""The load that other processes put on this host around a trial."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time, sleep

from dpbench.launch.host import TICKS_PER_SECOND, CpuTimes, cpu_times
from dpbench.records.environment import Read, core_numbers, read_text
from dpbench.records.trial import HostLoad

BEFORE_SECONDS = 0.05
"""Seconds to watch before a trial: five ticks of each core, enough to see a busy core, and a tenth
of a short trial."""


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    cores: CpuTimes
    own: float
    """Processor seconds of this process and of all ranks that have ended."""

    def others_until(self, later: _Reading) -> tuple[float, float]:
        """Number of cores that others kept busy, and that the hypervisor took, from this reading to
        `later`."""
        seconds = later.at - self.at
        spent = later.cores - self.cores
        others = spent.busy - spent.stolen - (later.own - self.own)
        return max(0.0, others) / seconds, max(0.0, spent.stolen) / seconds


class LoadMeter:
    """Reads the counters around trials; costs a short sleep before each, and two reads of files."""

    def __init__(
        self,
        server: Callable[[], int],
        cores: Collection[int] | None = None,
        read: Read = read_text,
    ) -> None:
        """`server` returns the id of the process that ranks are forked from; `cores` are the usable
        ones."""
        self._server = server
        self._cores = core_numbers() if cores is None else cores
        self._read = read
        self.load: HostLoad | None = None
        """Load around the last block that ended well; None if counters cannot be read."""

    @contextmanager
    def around(self) -> Iterator[None]:
        """Measure what others do until the block ends; `load` then has the result."""
        self.load = None
        earlier = self._reading()
        if earlier is None:  # not Linux
            yield
            return
        sleep(BEFORE_SECONDS)
        start = self._reading()
        yield
        end = self._reading()
        if start is None or end is None:
            return
        before, _ = earlier.others_until(start)
        during, stolen = start.others_until(end)
        self.load = HostLoad(cores=len(self._cores), before=before, during=during, stolen=stolen)

    def _reading(self) -> _Reading | None:
        times = cpu_times(self._cores, self._read)
        ranks = _with_children_seconds(self._server(), self._read)
        if times is None or ranks is None:
            return None
        return _Reading(perf_counter(), times, process_time() + ranks)


def _with_children_seconds(pid: int, read: Read) -> float | None:
    """Processor seconds of a process and of its ended children (utime, stime, cutime and cstime:
    the fields 14 to 17 of proc(5))."""
    _, _, rest = (read(f"/proc/{pid}/stat") or "").rpartition(")")
    times = rest.split()[11:15]
    return sum(map(int, times)) / TICKS_PER_SECOND if len(times) == 4 else None
