"""What a trial costs beyond its steps: on the agent with a warm server, and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import monotonic

from dpbench.codec import encode
from dpbench.records.trial import RankMeasurement
from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.benchmarks.trials import bench
from tests.builders import trial_spec

PAIRS = 6
ROOT = Path(__file__).parents[2]


def run() -> Iterator[Figure]:
    trial = trial_spec(batch_size=32, warmup_steps=0, timed_steps=20, phase_steps=0)
    with bench() as machine:

        def on_the_agent() -> float:
            start = monotonic()
            ranks = machine.run(trial).ranks
            return monotonic() - start - max(map(_seconds_in_windows, ranks))

        def under_torchrun() -> float:
            with tempfile.TemporaryDirectory() as folder:
                specification = Path(folder) / "trial.json"
                specification.write_text(json.dumps(encode(trial)))
                start = monotonic()
                subprocess.run(
                    [
                        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                        *("--nproc-per-node", "2", "-m", "tests.benchmarks.torchrun_trial"),
                        *(str(specification), str(machine.prepared), folder),
                    ],
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    capture_output=True,
                    check=True,
                )
                total = monotonic() - start
                files = Path(folder).glob("rank*.seconds")
                return total - max(float(file.read_text()) for file in files)

        on_the_agent()
        costs, others = alternating(on_the_agent, under_torchrun, PAIRS)
    yield from _figures(costs, others)


def _figures(costs: Sequence[float], others: Sequence[float]) -> Iterator[Figure]:
    cost, ratio = median(costs), Ratio.of(costs, others)
    yield Figure(
        name="fixed cost of a trial, 2 ranks on gloo",
        value=f"{cost:.3f} s (median of {len(costs)}, {min(costs):.3f} to {max(costs):.3f})",
        target="at most 0.3 s",
        met=cost <= 0.3,
    )
    yield Figure(
        name="fixed cost ÷ that under torchrun",
        value=str(ratio),
        target="at most 0.1",
        met=ratio.value <= 0.1,
    )


def _seconds_in_windows(rank: RankMeasurement) -> float:
    return rank.timed.seconds + (rank.without_sync.seconds if rank.without_sync else 0.0)
