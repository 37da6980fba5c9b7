"""What the readings of a machine mean for measuring on it: numbers, their limits, what to do."""

from __future__ import annotations

from dpbench import units
from dpbench.launch import processor_findings as processors
from dpbench.launch.finding import Finding, judged, usable_cores
from dpbench.launch.quiet import Readings

LOAD_PERCENT = 5.0
STOLEN_PERCENT = 1.0
LOOP_SPREAD = 1.1
"""Slowest of a hundred equal pieces of work ÷ the median."""
HARNESS_PERCENT = 5.0
"""A launcher that polled would take 100; one that sleeps takes about 1, its start included."""
SWAP_BYTES = 64 * 2**20
"""What idle services leave there."""
GPU_PERCENT = 1.0


def findings(readings: Readings) -> tuple[Finding, ...]:
    """Judges every reading, in the order in which they matter most."""
    return (
        _load(readings),
        _stolen(readings),
        _loop(readings),
        _harness(readings),
        *processors.clocks(readings),
        processors.throttling(readings),
        processors.quota(readings),
        processors.siblings(readings),
        processors.threads(readings),
        _swap(readings),
        *(_gpus(readings) if readings.gpus else ()),
    )


def _load(readings: Readings) -> Finding:
    load, average = readings.load, readings.load_average
    text = "not readable"
    if load is not None:
        text = (
            f"others keep {units.percent(load.busy_share)} of {usable_cores(readings.cores)} busy "
            f"over {units.seconds(load.seconds)} (limit {LOAD_PERCENT:g} %)"
        )
        if load.busiest_process is not None:
            text += f", most: {load.busiest_process} {units.percent(load.busiest_share)}"
    if average is not None:
        text += f"; load average of the last minute {average:.2g}"
    return judged(
        "load",
        None if load is None else 100 * load.busy_share,
        "% of the usable cores",
        LOAD_PERCENT,
        text,
        "end or wait for what else runs",
    )


def _stolen(readings: Readings) -> Finding:
    share = None if readings.load is None else readings.load.stolen_share
    return judged(
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


def _loop(readings: Readings) -> Finding:
    spread = readings.loop_p99_seconds / readings.loop_p50_seconds
    return judged(
        "clock",
        spread,
        "p99 ÷ p50",
        LOOP_SPREAD,
        f"the same {units.seconds(readings.loop_p50_seconds)} of work, 200 times: p99 ÷ p50 is "
        f"{spread:.2f} (limit {LOOP_SPREAD:g})",
        "intervals will be wide: take more repetitions and steps, or a quieter machine",
    )


def _harness(readings: Readings) -> Finding:
    harness = readings.harness
    share = harness.cpu_share
    ranks = units.counted(harness.replicas, "rank")
    return judged(
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


def _swap(readings: Readings) -> Finding:
    swapped = readings.swapped_bytes
    return judged(
        "swap",
        swapped,
        "bytes",
        SWAP_BYTES,
        "not readable" if swapped is None else f"{units.bytes_binary(swapped)} in use",
        "free memory, or a step may wait for the disk",
    )


def _gpus(readings: Readings) -> tuple[Finding, Finding]:
    use = readings.gpu_use
    none = "no process that can be seen from here"
    return (
        judged(
            "gpu users",
            None if use is None else len(use.processes),
            "processes",
            0,
            "not readable: nvidia-smi does not answer"
            if use is None
            else "; ".join(use.processes) or none,
            "end them, or leave their GPUs out with --gpus",
        ),
        judged(
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
