"""How the processors are set up: whether they keep one speed, and whether there are enough."""

from __future__ import annotations

from dpbench import units
from dpbench.launch.finding import Finding, judged, usable_cores
from dpbench.launch.quiet import Readings


def clocks(readings: Readings) -> tuple[Finding, Finding, Finding]:
    """What may change their frequency: the governor, a limit, boost."""
    governors, frequency = readings.governors, readings.frequency
    other = None if governors is None else [name for name in governors if name != "performance"]
    capped = None if frequency is None else 100 * (1 - frequency.highest / frequency.hardware)
    boost = readings.boost
    return (
        judged(
            "governor",
            None if other is None else len(other),
            "cores",
            0,
            "not readable" if governors is None else ", ".join(dict.fromkeys(governors)),
            "sudo cpupower frequency-set --governor performance",
        ),
        judged(
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
        judged(
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


def throttling(readings: Readings) -> Finding:
    """Heat, while the machine was looked at."""
    events = readings.throttle_events
    return judged(
        "throttling",
        events,
        "events",
        0,
        "not readable"
        if events is None
        else f"heat slowed the cores {units.counted(events, 'time')} meanwhile",
        "cool the machine, or let it rest between trials",
    )


def quota(readings: Readings) -> Finding:
    """The cgroup's limit of CPU time."""
    quota, cores = readings.quota_cores, readings.cores
    allowed = None if quota is None else min(quota, cores)
    missing = None if allowed is None else cores - allowed
    return judged(
        "quota",
        missing,
        "cores",
        0,
        "not readable"
        if allowed is None
        else f"the cgroup allows {allowed:g} of {usable_cores(cores)}",
        "threads beyond the quota are stopped in turn: raise it, or take at most "
        f"{units.counted(max(1, int(allowed or 0)), 'CPU replica')}",
    )


def siblings(readings: Readings) -> Finding:
    """Cores that share their silicon."""
    physical, cores = readings.physical_cores, readings.cores
    return judged(
        "smt",
        None if physical is None else cores - physical,
        "cores",
        0,
        f"{usable_cores(cores)}, physical ones not readable"
        if physical is None
        else f"{usable_cores(cores)} are {physical} physical",
        "two replicas on one physical core slow each other down: take at most "
        f"{units.counted(physical or cores, 'CPU replica')}, under taskset with one core of each",
    )


def threads(readings: Readings) -> Finding:
    """What other libraries would start in every replica."""
    asked, cores = readings.omp_threads, readings.cores
    replicas = readings.gpus or cores
    default = f"torch would take {readings.torch_threads}"
    if asked is None:
        text = f"OMP_NUM_THREADS is not set ({default}); a sweep gives each replica its share"
        return judged("threads", cores, "threads", cores, text, "")
    first = asked.split(",")[0].strip()  # OpenMP's list: a number for each level of nesting
    per_rank = int(first) if first.isdecimal() else None
    threads = None if per_rank is None else per_rank * replicas
    text = f"OMP_NUM_THREADS={asked} × {units.counted(replicas, 'replica')}"
    return judged(
        "threads",
        threads,
        "threads",
        cores,
        f"{text} is not readable" if threads is None else f"{text} on {usable_cores(cores)}",
        "a sweep sets torch's threads itself, but not those of other libraries: "
        "unset OMP_NUM_THREADS, or set it to 1",
    )
