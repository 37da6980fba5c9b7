"""Checks of whether this machine is quiet enough to measure on, each with its limit."""

from __future__ import annotations

import csv
import os
import subprocess
from dataclasses import dataclass
from time import perf_counter, sleep

import psutil

from dpbench import units
from dpbench.launch.load_meter import host_load, read_cores
from dpbench.launch.machine import Machine

IDLE_SECONDS = 1.0
LOOPS, LOOP_ADDITIONS = 200, 100_000
"""Pieces of work, and additions in one: about 2 to 5 ms, the length of a short training step."""
NVIDIA_SMI_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFinding:
    """The result of one check."""

    kind: str
    value: float | None
    """The reading; None for what cannot be read, which is neither good nor bad."""
    unit: str
    limit: float
    """A value above it is a warning."""
    text: str
    advice: str
    """Remedy for a warning."""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not readable"
        return "warning" if self.value > self.limit else "ok"


def look(machine: Machine) -> tuple[MachineFinding, ...]:
    """Make every check, which takes some seconds."""
    return load(), clock(), gpu_users(machine)


def load() -> MachineFinding:
    """The share of the usable cores that other processes and guests take while this one sleeps."""
    start = read_cores()
    sleep(IDLE_SECONDS)
    taken = host_load(start, read_cores())
    value, text = None, "not readable"
    if taken is not None:
        others, stolen = taken.during / taken.cores, taken.stolen / taken.cores
        value = 100 * (others + stolen)
        text = (
            f"other processes take {units.percent(others)} of "
            f"{units.counted(taken.cores, 'usable core')}, the hypervisor takes "
            f"{units.percent(stolen)} (limit 5 % together); load average of the last minute "
            f"{psutil.getloadavg()[0]:.2g}"
        )
    return MachineFinding(
        kind="load",
        value=value,
        unit="% of the usable cores",
        limit=5.0,
        text=text,
        advice="end or wait for what else runs; other guests of a hypervisor: a dedicated host",
    )


def clock() -> MachineFinding:
    """The 99th percentile of the time of equal pieces of work ÷ its median."""
    seconds = []
    for _ in range(LOOPS):
        start, total = perf_counter(), 0
        for number in range(LOOP_ADDITIONS):
            total += number
        seconds.append(perf_counter() - start)
    seconds.sort()
    median, slow = seconds[LOOPS // 2], seconds[int(LOOPS * 0.99)]
    return MachineFinding(
        kind="clock",
        value=slow / median,
        unit="p99 ÷ p50",
        limit=1.1,
        text=f"the same {units.seconds(median)} of work, {LOOPS} times: p99 ÷ p50 is "
        f"{slow / median:.2f} (limit 1.1)",
        advice="intervals will be wide: take more repetitions and steps, or a quieter machine",
    )


def gpu_users(machine: Machine) -> MachineFinding:
    """Processes on the visible GPUs; those of other containers cannot be seen."""
    users = _gpu_users(machine) if machine.has_cuda else []
    nobody = "no process that can be seen" if machine.has_cuda else "no GPU"
    return MachineFinding(
        kind="gpu users",
        value=None if users is None else len(users),
        unit="processes",
        limit=0.0,
        text="not readable" if users is None else "; ".join(users) or nobody,
        advice="end them, or leave their GPUs out with --gpus",
    )


def _gpu_users(machine: Machine) -> list[str] | None:
    """Names and ids of the processes, from nvidia-smi; None without it."""
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name"]
    try:
        answer = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    ours = {(gpu.uuid or "").removeprefix("GPU-") for gpu in machine.gpus}
    rows = csv.reader(answer.splitlines(), skipinitialspace=True)
    users = [row[1:] for row in rows if row and row[0].removeprefix("GPU-") in ours]
    return [*dict.fromkeys(f"{name} (pid {pid})" for pid, name in users if pid != str(os.getpid()))]
