"""A sweep of a thousand synthetic trials: planned, run, stored and reported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from time import perf_counter

from tests.benchmarks.figure import Figure
from tests.launch import synthetic

GRID = {"--batch-sizes": ",".join(str(size) for size in range(1, 24)), "--repetitions": "4"}
ARGUMENTS = [word for option in GRID.items() for word in option]
GROUPS = ["--gpus", "4", "--oversubscribe", "--implementations", "dp,ddp,torch-ddp"]


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dpbench", "sweep", "--quiet"]
        start = perf_counter()
        child = subprocess.Popen(
            [
                *command,
                *ARGUMENTS,
                *GROUPS,
                "--no-charts",
                "--name",
                "many",
                "--results-dir",
                folder,
            ],
            env={**os.environ, **synthetic.VARIABLES},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        with open(f"{folder}/many/trials.jsonl", "rb") as lines:  # noqa: PTH123 - a count of lines
            trials = sum(1 for _ in lines)
    mebibytes = usage.ru_maxrss / 1024
    yield Figure(
        name=f"sweep of {trials} synthetic trials",
        value=f"{seconds:.1f} s, {mebibytes:.0f} MiB, exit status {child.returncode}",
        target="1,000 trials under 20 s and 400 MiB",
        met=trials >= 1000 and seconds < 20 and mebibytes < 400 and child.returncode == 0,
    )
