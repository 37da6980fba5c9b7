"""Whether this machine is quiet enough to measure on: a table of checks, each with its limit."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import Literal, NamedTuple

import psutil

from dpbench import units
from dpbench.launch.load_meter import core_seconds
from dpbench.launch.machine import Machine
from dpbench.records.environment import core_numbers, read_text

IDLE_SECONDS = 1.0
LOOPS, LOOP_ADDITIONS = 200, 100_000
"""Pieces of work, and additions in one: about 2 to 5 ms, the length of a short training step."""
NVIDIA_SMI_SECONDS = 10.0

Verdict = Literal["ok", "warning", "not readable"]


class Reading(NamedTuple):
    """What a check has read: a number to compare with its limit, and words."""

    value: float
    text: str


class Check(NamedTuple):
    """One property of the machine; a value above the limit is a warning."""

    kind: str
    read: Callable[[Machine], Reading | None]
    """Returns None for what cannot be read, which is neither good nor bad."""
    unit: str
    limit: float
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFinding:
    """The result of one check."""

    kind: str
    value: float | None
    """The reading; None if it is not readable."""
    unit: str
    limit: float
    text: str
    advice: str | None
    """Remedy; None unless this is a warning."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not readable"
        return "warning" if self.value > self.limit else "ok"


def look(machine: Machine) -> tuple[MachineFinding, ...]:
    """Make every check, which takes some seconds."""
    found = []
    for check in CHECKS:
        reading = check.read(machine)
        is_warning = reading is not None and reading.value > check.limit
        found.append(
            MachineFinding(
                kind=check.kind,
                value=None if reading is None else reading.value,
                unit=check.unit,
                limit=check.limit,
                text="not readable" if reading is None else reading.text,
                advice=check.advice if is_warning else None,
            )
        )
    return tuple(found)


def load(machine: Machine) -> Reading | None:
    """The share of the usable cores that others keep busy while this process sleeps."""
    cores = core_numbers()
    before, own, start = core_seconds(cores), process_time(), perf_counter()
    sleep(IDLE_SECONDS)
    after, own, seconds = core_seconds(cores), process_time() - own, perf_counter() - start
    if before is None or after is None:
        return None
    share = max(0.0, after.busy - before.busy - own) / (seconds * len(cores))
    return Reading(
        100 * share,
        f"others keep {units.percent(share)} of {units.counted(len(cores), 'usable core')} busy "
        f"(limit 5 %); load average of the last minute {psutil.getloadavg()[0]:.2g}",
    )


def stolen(machine: Machine) -> Reading | None:
    """The share of the usable cores that the hypervisor gives to other guests meanwhile."""
    times = core_seconds(core_numbers())
    sleep(IDLE_SECONDS)
    later = core_seconds(core_numbers())
    if times is None or later is None:
        return None
    share = (later.stolen - times.stolen) / max(later.total - times.total, 1e-9)
    return Reading(
        100 * share, f"{units.percent(share)} taken by the hypervisor for other guests (limit 1 %)"
    )


def clock(machine: Machine) -> Reading:
    """The 99th percentile of the time of equal pieces of work ÷ its median."""
    seconds = []
    for _ in range(LOOPS):
        start, total = perf_counter(), 0
        for number in range(LOOP_ADDITIONS):
            total += number
        seconds.append(perf_counter() - start)
    seconds.sort()
    median, slow = seconds[LOOPS // 2], seconds[int(LOOPS * 0.99)]
    return Reading(
        slow / median,
        f"the same {units.seconds(median)} of work, {LOOPS} times: p99 ÷ p50 is "
        f"{slow / median:.2f} (limit 1.1)",
    )


def governor(machine: Machine) -> Reading | None:
    core = min(core_numbers())
    name = read_text(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")
    return None if name is None else Reading(float(name != "performance"), name)


def gpu_users(machine: Machine) -> Reading | None:
    """Processes on the visible GPUs; those of other containers cannot be seen."""
    if not machine.has_cuda:
        return Reading(0, "no GPU")
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
    names = dict.fromkeys(f"{name} (pid {pid})" for pid, name in users if pid != str(os.getpid()))
    return Reading(len(names), "; ".join(names) or "no process that can be seen")


CHECKS = (
    Check("load", load, "% of the usable cores", 5.0, "end or wait for what else runs"),
    Check(
        *("stolen", stolen, "% of the usable cores", 1.0),
        "take a dedicated host, or more repetitions: nothing in this guest can end it",
    ),
    Check(
        *("clock", clock, "p99 ÷ p50", 1.1),
        "intervals will be wide: take more repetitions and steps, or a quieter machine",
    ),
    Check(
        *("governor", governor, "not performance", 0.0),
        "sudo cpupower frequency-set --governor performance",
    ),
    Check(
        *("gpu users", gpu_users, "processes", 0.0),
        "end them, or leave their GPUs out with --gpus",
    ),
)
