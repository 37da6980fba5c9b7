"""Does a sweep measure what a user gets? CPU per step of a training script ÷ of a trial."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import dpbench
from dpbench.folders import load_sweep
from tools.benchmarks.paired import Benchmark, alternate, ratio

ROUNDS = 12
RANKS, BATCH, WARMUP, STEPS = 2, 64, 10, 60
SCRIPT = Path(__file__).parents[1] / "training_script.py"
MODEL = "mnist_cnn"


def run() -> Iterator[Benchmark]:
    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as name:
        sides = {
            "trial": partial(
                cpu_seconds,
                Path(name, "trial"),
                arch=MODEL,
                data="synthetic",
                implementations=["torch-ddp"],
                batch_sizes=[BATCH],
            ),
            "script": partial(
                cpu_seconds,
                Path(name, "script"),
                script=str(SCRIPT),
                arguments=["--model", MODEL, "--batch", str(BATCH)],
                implementations=["script"],
            ),
        }
        taken = alternate(sides, ROUNDS)
    yield Benchmark(
        name=f"CPU per step, script ÷ trial (torch-ddp on gloo ×{RANKS}, {MODEL}, batch {BATCH}; "
        f"{fmean(taken['trial']) * 1e3:.1f} ms in the trial)",
        ratio=ratio(taken["script"], taken["trial"]),
        least=0.97,
        most=1.03,
    )


def cpu_seconds(folder: Path, **options: Any) -> float:
    """Processor seconds of a step of a rank, in a sweep with one trial of several ranks."""
    results = dpbench.sweep(
        gpus=RANKS,
        group_sizes=[RANKS],
        warmup=[WARMUP],
        steps=[STEPS],
        threads=[1],
        repetitions=1,
        results_dir=folder,
        **options,
    )
    [record] = [one for one in load_sweep(results.folder).records if one.trial.group_size == RANKS]
    windows = [rank.timed for rank in record.ranks]
    return fmean((window.cpu_seconds or 0.0) / len(window.step_seconds) for window in windows)
