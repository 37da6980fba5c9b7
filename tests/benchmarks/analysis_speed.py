"""Reading, summarising and tabulating the records of a very large sweep, in a new process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dpbench import units
from dpbench.codec import encode
from dpbench.records.trial import SCHEMA_VERSION, RankMeasurement, Status, TrialRecord, Window
from dpbench.specs import SweepSpec, TrialSpec, WorkloadSpec
from dpbench.store import SWEEP_FILE, TRIALS_FILE
from tests.benchmarks.figure import Figure

STEPS = 100
REPETITIONS = 5
WINDOWS = 1000
"""Different windows; every trial has one of them."""

ANALYSIS = """
import sys
from pathlib import Path
from time import perf_counter
marks = [perf_counter()]
from dpbench.analysis.summary import summarize
from dpbench.report.tables import render
from dpbench.store import load
marks.append(perf_counter())
records = load(Path(sys.argv[1])).records
marks.append(perf_counter())
rows = summarize(records)
marks.append(perf_counter())
text = render(rows).text
marks.append(perf_counter())
print(*(end - start for start, end in zip(marks, marks[1:])))
"""
PARTS = ("import", "load", "summarise", "table")


def run() -> Iterator[Figure]:
    for trials, ranks in ((100_000, 1), (20_000, 2)):
        with tempfile.TemporaryDirectory() as folder:
            write_sweep(Path(folder), trials, ranks)
            yield _figure(Path(folder), trials, ranks)


def _figure(folder: Path, trials: int, ranks: int) -> Figure:
    child = subprocess.Popen(
        [sys.executable, "-c", ANALYSIS, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = [float(part) for part in output.split()]
    parts = ", ".join(f"{name} {took:.1f}" for name, took in zip(PARTS, seconds, strict=True))
    gigabytes = usage.ru_maxrss * 1024 / 1e9
    return Figure(
        name=f"analysis of {trials:,} trials of {STEPS} steps on {units.counted(ranks, 'rank')}",
        value=(
            f"{sum(seconds):.1f} s ({parts}; processor {usage.ru_utime + usage.ru_stime:.1f} s), "
            f"{gigabytes:.2f} GB"
        ),
        target="under 30 s and 2 GB",
        met=sum(seconds) < 30 and gigabytes < 2,
    )


def write_sweep(folder: Path, trials: int, ranks: int) -> None:
    """A results folder of completed trials, `REPETITIONS` of every configuration."""
    noise = random.Random(0)
    windows = [_window(noise) for _ in range(WINDOWS)]
    with (folder / TRIALS_FILE).open("w") as lines:
        for number in range(trials):
            record = _record(number, [noise.choice(windows) for _ in range(2 * ranks)])
            envelope = {"schema_version": SCHEMA_VERSION, "trial_id": record.trial.trial_id}
            lines.write(json.dumps({**envelope, **encode(record)}, separators=(",", ":")) + "\n")
    header = {"schema_version": SCHEMA_VERSION, "command": [], "sweep": encode(_sweep(ranks))}
    (folder / SWEEP_FILE).write_text(json.dumps(header))


def _window(noise: random.Random) -> Window:
    steps = tuple(0.01 * noise.lognormvariate(0, 0.02) for _ in range(STEPS))
    losses = tuple(2.3 * 0.99**step + noise.gauss(0, 0.01) for step in range(STEPS))
    return Window(
        start_seconds=0.0,
        seconds=sum(steps),
        step_seconds=steps,
        samples=32 * STEPS,
        losses=losses,
    )


def _record(number: int, windows: list[Window]) -> TrialRecord:
    """With more than one rank, each has a window without synchronization as well."""
    configuration, repetition = divmod(number, REPETITIONS)
    ranks = len(windows) // 2
    return TrialRecord(
        trial=_trial(configuration + 1, ranks, repetition),
        environment_id="e",
        started_utc="2025-01-01T00:00:00.000+00:00",
        duration_seconds=2.0,
        status=Status.COMPLETED,
        item="images",
        ranks=tuple(
            RankMeasurement(
                rank=rank,
                pid=1000 + rank,
                device="cpu",
                timed=windows[rank],
                without_sync=replace(windows[ranks + rank], losses=()) if ranks > 1 else None,
                setup_seconds=0.5,
                peak_host_memory_bytes=300 * 2**20,
                warmup_steps=10,
                timed_steps=STEPS,
            )
            for rank in range(ranks)
        ),
    )


def _trial(batch_size: int, ranks: int, repetition: int) -> TrialSpec:
    return TrialSpec(
        workload=WorkloadSpec(architecture="mnist_cnn", dataset="digits"),
        implementation="ddp",
        backend="gloo",
        group_size=ranks,
        batch_size=batch_size,
        warmup_steps=10,
        timed_steps=STEPS,
        threads_per_replica=1,
        devices=("cpu",) * ranks,
        repetition=repetition,
    )


def _sweep(ranks: int) -> SweepSpec:
    return SweepSpec(
        workload=WorkloadSpec(architecture="mnist_cnn", dataset="digits"),
        implementations=("ddp",),
        backends=("gloo",),
        group_sizes=(ranks,),
        batch_sizes=(1,),
        devices=("cpu",) * ranks,
        warmup_steps=10,
        timed_steps=STEPS,
        repetitions=REPETITIONS,
        threads_per_replica=1,
        time_limit_seconds=60.0,
    )
