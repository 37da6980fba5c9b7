"""Does a sweep measure what a user gets? CPU per step of a plain torchrun script ÷ of a trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean

import dpbench
from dpbench.folders import load_sweep
from tools.benchmarks.paired import Benchmark, alternate, ratio

ROUNDS = 12
RANKS, BATCH, WARMUP, STEPS = 2, 64, 10, 60
ROOT = Path(__file__).parents[2]


def run() -> Iterator[Benchmark]:
    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as name:
        sides = {side.__name__: partial(side, Path(name)) for side in (trial, script)}
        taken = alternate(sides, ROUNDS)
    yield Benchmark(
        name="CPU per step, plain torchrun script ÷ trial (torch-ddp on gloo ×2, mnist_cnn, "
        f"batch {BATCH}; {fmean(taken['trial']) * 1e3:.1f} ms in the trial)",
        ratio=ratio(taken["script"], taken["trial"]),
        least=0.97,
        most=1.03,
    )


def trial(folder: Path) -> float:
    """Processor seconds of a step of a rank in a sweep of one trial."""
    name = f"trial-{len([*folder.glob('results/*')])}"
    dpbench.sweep(
        arch="mnist_cnn",
        data="synthetic",
        implementations=["torch-ddp"],
        backends=["gloo"],
        gpus=RANKS,
        group_sizes=[RANKS],
        batch_sizes=[BATCH],
        warmup=[WARMUP],
        steps=[STEPS],
        threads=1,
        repetitions=1,
        results_dir=folder / "results",
        name=name,
    )
    records = load_sweep(folder / "results" / name).records
    [record] = [one for one in records if one.trial.implementation == "torch-ddp"]
    windows = [rank.timed for rank in record.ranks]
    return fmean((window.cpu_seconds or 0.0) / len(window.step_seconds) for window in windows)


def script(folder: Path) -> float:
    """Processor seconds of a step of a rank in a plain script under torchrun."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "DPBENCH_"))}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        program = ["-m", "tools.benchmarks.plain_ddp", out, *map(str, (BATCH, WARMUP, STEPS))]
        subprocess.run(
            [*launcher, f"--nproc-per-node={RANKS}", *program],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**environ, "OMP_NUM_THREADS": "1"},
        )
        found = [json.loads(path.read_text()) for path in Path(out).glob("rank*.json")]
    assert len(found) == RANKS
    return fmean(found)
