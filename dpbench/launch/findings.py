"""Findings on whether a machine is fit to measure on: readings, their limits, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpbench import units
from dpbench.launch.readings import Readings

Verdict = Literal["ok", "warning", "not readable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFinding:
    """One checked property; a `value` above the `limit` is a warning."""

    kind: str
    value: float | None
    """The reading; None if it is not readable, which is neither good nor bad."""
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


def _judged(
    kind: str, value: float | None, unit: str, limit: float, text: str, advice: str
) -> MachineFinding:
    """The finding, with its advice only where the value is above the limit."""
    beyond = value is not None and value > limit
    return MachineFinding(
        kind=kind,
        value=value,
        unit=unit,
        limit=limit,
        text=text,
        advice=advice if beyond else None,
    )


def _cores(count: int) -> str:
    return units.counted(count, "usable core")


LOAD_PERCENT = 5.0
STOLEN_PERCENT = 1.0
LOOP_SPREAD = 1.1
"""Limit of the slowest of a hundred equal pieces of work ÷ their median."""
HARNESS_PERCENT = 5.0
"""Limit of the launcher's CPU share. A launcher that polled would take 100; one that sleeps takes
about 1, its start included."""
SWAP_BYTES = 64 * 2**20
"""Limit of swap in use; idle services may use this much."""
GPU_PERCENT = 1.0


def findings(readings: Readings) -> tuple[MachineFinding, ...]:
    """Judge every reading; the most important findings come first."""
    return (
        _load(readings),
        _stolen(readings),
        _loop(readings),
        _harness(readings),
        *_clocks(readings),
        _throttling(readings),
        _quota(readings),
        _siblings(readings),
        _threads(readings),
        _swap(readings),
        *(_gpus(readings) if readings.gpus else ()),
    )


def _load(readings: Readings) -> MachineFinding:
    load, average = readings.load, readings.load_average
    text = "not readable"
    if load is not None:
        text = (
            f"others keep {units.percent(load.busy_share)} of {_cores(readings.cores)} busy "
            f"over {units.seconds(load.seconds)} (limit {LOAD_PERCENT:g} %)"
        )
        if load.busiest_process is not None:
            text += f", most: {load.busiest_process} {units.percent(load.busiest_share)}"
    if average is not None:
        text += f"; load average of the last minute {average:.2g}"
    return _judged(
        "load",
        None if load is None else 100 * load.busy_share,
        "% of the usable cores",
        LOAD_PERCENT,
        text,
        "end or wait for what else runs",
    )


def _stolen(readings: Readings) -> MachineFinding:
    share = None if readings.load is None else readings.load.stolen_share
    return _judged(
        "stolen",
        None if share is None else 100 * share,
        "% of the usable cores",
        STOLEN_PERCENT,
        "not readable"
        if share is None
        else f"{units.percent(share)} taken by the hypervisor for other guests "
        f"(limit {STOLEN_PERCENT:g} %)",
        "take a dedicated host, or more repetitions: nothing in this guest can end it",
    )


def _loop(readings: Readings) -> MachineFinding:
    spread = readings.loop_p99_seconds / readings.loop_p50_seconds
    return _judged(
        "clock",
        spread,
        "p99 ÷ p50",
        LOOP_SPREAD,
        f"the same {units.seconds(readings.loop_p50_seconds)} of work, 200 times: p99 ÷ p50 is "
        f"{spread:.2f} (limit {LOOP_SPREAD:g})",
        "intervals will be wide: take more repetitions and steps, or a quieter machine",
    )


def _harness(readings: Readings) -> MachineFinding:
    harness = readings.harness
    share = harness.cpu_share
    ranks = units.counted(harness.replicas, "rank")
    return _judged(
        "harness",
        None if share is None else 100 * share,
        "% of a core",
        HARNESS_PERCENT,
        f"not measured, the trial failed: {harness.reason}"
        if share is None
        else f"the launching process takes {units.percent(share)} of a core in a trial of {ranks} "
        f"and {units.seconds(harness.trial_seconds)}, its start included "
        f"(limit {HARNESS_PERCENT:g} %)",
        f"leave a core to it: at most {units.counted(max(1, readings.cores - 1), 'CPU replica')}",
    )


def _swap(readings: Readings) -> MachineFinding:
    swapped = readings.swapped_bytes
    return _judged(
        "swap",
        swapped,
        "bytes",
        SWAP_BYTES,
        "not readable" if swapped is None else f"{units.bytes_binary(swapped)} in use",
        "free memory, or a step may wait for the disk",
    )


def _gpus(readings: Readings) -> tuple[MachineFinding, MachineFinding]:
    use = readings.gpu_use
    none = "no process that can be seen from here"
    return (
        _judged(
            "gpu users",
            None if use is None else len(use.processes),
            "processes",
            0,
            "not readable: nvidia-smi does not answer"
            if use is None
            else "; ".join(use.processes) or none,
            "end them, or leave their GPUs out with --gpus",
        ),
        _judged(
            "gpu load",
            None if use is None else use.busiest_percent,
            "%",
            GPU_PERCENT,
            "not readable: nvidia-smi does not answer"
            if use is None
            else f"the busiest GPU works {use.busiest_percent:g} % of the time while nothing of "
            f"ours runs (limit {GPU_PERCENT:g} %)",
            "somebody else uses it, perhaps from another container: wait, or leave it out",
        ),
    )


def _clocks(readings: Readings) -> tuple[MachineFinding, MachineFinding, MachineFinding]:
    """Findings on what may change the clock: the governor, a limit, boost."""
    governors, frequency = readings.governors, readings.frequency
    other = None if governors is None else [name for name in governors if name != "performance"]
    capped = None if frequency is None else 100 * (1 - frequency.highest / frequency.hardware)
    boost = readings.boost
    return (
        _judged(
            "governor",
            None if other is None else len(other),
            "cores",
            0,
            "not readable" if governors is None else ", ".join(dict.fromkeys(governors)),
            "sudo cpupower frequency-set --governor performance",
        ),
        _judged(
            "frequency",
            capped,
            "% below the hardware's",
            0,
            "not readable"
            if frequency is None
            else f"{frequency.current / 1e9:.2f} GHz now, allowed {frequency.lowest / 1e9:.2f} to "
            f"{frequency.highest / 1e9:.2f} of the hardware's {frequency.hardware / 1e9:.2f}",
            "a power profile holds the cores down: choose the one for performance",
        ),
        _judged(
            "boost",
            None if boost is None else float(boost),
            "on",
            0,
            "not readable" if boost is None else ("on" if boost else "off"),
            "the clock falls as more cores work, which looks like bad scaling: switch it off in "
            "/sys/devices/system/cpu (cpufreq/boost or intel_pstate/no_turbo), or compare with "
            "independent, which pays the same",
        ),
    )


def _throttling(readings: Readings) -> MachineFinding:
    """Finding on thermal throttling during the check."""
    events = readings.throttle_events
    return _judged(
        "throttling",
        events,
        "events",
        0,
        "not readable"
        if events is None
        else f"heat slowed the cores {units.counted(events, 'time')} meanwhile",
        "cool the machine, or let it rest between trials",
    )


def _quota(readings: Readings) -> MachineFinding:
    """Finding on the cgroup's limit of CPU time."""
    quota, cores = readings.quota_cores, readings.cores
    allowed = None if quota is None else min(quota, cores)
    missing = None if allowed is None else cores - allowed
    return _judged(
        "quota",
        missing,
        "cores",
        0,
        "not readable" if allowed is None else f"the cgroup allows {allowed:g} of {_cores(cores)}",
        "threads beyond the quota are stopped in turn: raise it, or take at most "
        f"{units.counted(max(1, int(allowed or 0)), 'CPU replica')}",
    )


def _siblings(readings: Readings) -> MachineFinding:
    """Finding on cores that share their hardware (SMT)."""
    physical, cores = readings.physical_cores, readings.cores
    return _judged(
        "smt",
        None if physical is None else cores - physical,
        "cores",
        0,
        f"{_cores(cores)}, physical ones not readable"
        if physical is None
        else f"{_cores(cores)} are {physical} physical",
        "two replicas on one physical core slow each other down: take at most "
        f"{units.counted(physical or cores, 'CPU replica')}, under taskset with one core of each",
    )


def _threads(readings: Readings) -> MachineFinding:
    """Finding on the threads that other libraries would start in every replica."""
    asked, cores = readings.omp_threads, readings.cores
    replicas = readings.gpus or cores
    default = f"torch would take {readings.torch_threads}"
    if asked is None:
        text = f"OMP_NUM_THREADS is not set ({default}); a sweep gives each replica its share"
        return _judged("threads", cores, "threads", cores, text, "")
    first = asked.split(",")[0].strip()  # OpenMP's list: a number for each level of nesting
    per_rank = int(first) if first.isdecimal() else None
    threads = None if per_rank is None else per_rank * replicas
    text = f"OMP_NUM_THREADS={asked} × {units.counted(replicas, 'replica')}"
    return _judged(
        "threads",
        threads,
        "threads",
        cores,
        f"{text} is not readable" if threads is None else f"{text} on {_cores(cores)}",
        "a sweep sets torch's threads itself, but not those of other libraries: "
        "unset OMP_NUM_THREADS, or set it to 1",
    )
