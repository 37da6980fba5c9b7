"""Readings of this host's processors and GPUs."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpbench.records.environment import Accelerator, Read, read_text

CPU = "/sys/devices/system/cpu/cpu{core}/"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTimes:
    """Seconds since boot, summed over some cores."""

    total: float
    busy: float
    """Seconds neither idle nor waiting for a disk; includes stolen time."""
    stolen: float
    """Seconds that the hypervisor gave to other guests while this one wanted to run."""

    def __sub__(self, earlier: CpuTimes) -> CpuTimes:
        return CpuTimes(
            total=self.total - earlier.total,
            busy=self.busy - earlier.busy,
            stolen=self.stolen - earlier.stolen,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Frequency:
    """Frequency of the slowest core in hertz: current, least and most allowed, and the hardware's
    most."""

    current: float
    lowest: float
    highest: float
    hardware: float


def cpu_times(cores: Collection[int], read: Read = read_text) -> CpuTimes | None:
    """The times of `cores` from /proc/stat (proc(5): user nice system idle iowait irq softirq
    steal, in ticks)."""
    rows = [line.split() for line in (read("/proc/stat") or "").splitlines()]
    ticks = {row[0]: [int(number) for number in row[1:9]] for row in rows if row[0][:3] == "cpu"}
    chosen = [ticks[f"cpu{core}"] for core in cores if f"cpu{core}" in ticks]
    if len(chosen) < len(cores) or any(len(row) < 8 for row in chosen):
        return None
    total = sum(map(sum, chosen))
    idle = sum(row[3] + row[4] for row in chosen)
    return CpuTimes(
        total=total / TICKS_PER_SECOND,
        busy=(total - idle) / TICKS_PER_SECOND,
        stolen=sum(row[7] for row in chosen) / TICKS_PER_SECOND,
    )


def process_seconds() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds so far, by process id, of every process that can be seen."""
    seconds = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it may have ended meanwhile
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            times = rest.split()[11:13]  # utime and stime, the fields 14 and 15 of proc(5)
            seconds[int(folder.name)] = name, sum(map(int, times)) / TICKS_PER_SECOND
    return seconds


def load_average(read: Read = read_text) -> float | None:
    """Number of processes that ran or waited to run, over the last minute."""
    words = (read("/proc/loadavg") or "").split()
    return float(words[0]) if words else None


def governors(cores: Collection[int], read: Read = read_text) -> tuple[str, ...] | None:
    """Frequency governor of each core: "performance", "powersave", "schedutil"."""
    values = [read(f"{CPU.format(core=core)}cpufreq/scaling_governor") for core in cores]
    return tuple(value for value in values if value) if all(values) else None


def frequency(cores: Collection[int], read: Read = read_text) -> Frequency | None:
    """Frequency of the core with the lowest limit."""
    names = ("scaling_max_freq", "scaling_cur_freq", "scaling_min_freq", "cpuinfo_max_freq")
    found = [
        [_integer(read(f"{CPU.format(core=core)}cpufreq/{name}")) for name in names]
        for core in cores
    ]
    known = [[1e3 * khz for khz in row if khz is not None] for row in found]
    if any(len(row) < len(names) for row in known):
        return None
    highest, current, lowest, hardware = min(known)
    return Frequency(current=current, lowest=lowest, highest=highest, hardware=hardware)


def throttle_count(cores: Collection[int], read: Read = read_text) -> int | None:
    """Number of times that heat has slowed the cores since boot (x86 only)."""
    path = f"{CPU}thermal_throttle/core_throttle_count"
    counts = [_integer(read(path.format(core=core))) for core in cores]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def physical_cores(cores: Collection[int], read: Read = read_text) -> int | None:
    """Number of physical cores among `cores`: SMT shows one as two."""
    path = f"{CPU}topology/thread_siblings_list"
    siblings = [read(path.format(core=core)) for core in cores]
    return len(set(siblings)) if all(siblings) else None


def swapped_bytes(read: Read = read_text) -> int | None:
    """Bytes of swap in use."""
    rows = (line.split() for line in (read("/proc/meminfo") or "").splitlines())
    sizes = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}
    if not {"SwapTotal", "SwapFree"} <= set(sizes):
        return None
    return sizes["SwapTotal"] - sizes["SwapFree"]


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


Query = Callable[[str], str]
NVIDIA_SMI_SECONDS = 10.0
UUID_PREFIX = "GPU-"
"""Prefix that nvidia-smi writes before the identifier that torch gives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """Use of the visible GPUs by others."""

    processes: tuple[str, ...]
    """Processes other than this one: "python (pid 12)"; those of other containers are invisible."""
    busiest_percent: float
    """Utilization of the busiest GPU over the last moment."""


def gpu_use(gpus: Collection[Accelerator], query: Query | None = None) -> GpuUse | None:
    """The use of `gpus`; None if nvidia-smi is missing or does not report it."""
    ask = query or _nvidia_smi
    ours = {(gpu.uuid or "").removeprefix(UUID_PREFIX) for gpu in gpus}
    try:
        shares = _rows(ask("--query-gpu=uuid,utilization.gpu"), ours)
        users = _rows(ask("--query-compute-apps=gpu_uuid,pid,process_name"), ours)
        busiest = max(float(share) for _, share in shares)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    others = dict.fromkeys(
        f"{name} (pid {pid})" for _, pid, name in users if pid != str(os.getpid())
    )
    return GpuUse(processes=tuple(others), busiest_percent=busiest)


def _rows(text: str, uuids: Collection[str]) -> list[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [row for row in rows if row and row[0].removeprefix(UUID_PREFIX) in uuids]


def _nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True
    ).stdout
