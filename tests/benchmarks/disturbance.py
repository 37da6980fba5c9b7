"""Does the harness disturb what it measures? `single` in a trial ÷ the same loop in a script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.benchmarks.trials import bench
from tests.builders import trial_spec

PAIRS = 16
BATCH, WARMUP, STEPS = 32, 10, 60


def run() -> Iterator[Figure]:
    trial = trial_spec(
        implementation="single",
        backend="none",
        group_size=1,
        batch_size=BATCH,
        warmup_steps=WARMUP,
        timed_steps=STEPS,
    )
    with bench() as machine:

        def inside() -> float:
            return median(machine.run(trial).ranks[0].timed.step_seconds)

        def bare() -> float:
            loop = Path(__file__).with_name("bare_loop.py")
            numbers = [str(number) for number in (BATCH, WARMUP, STEPS)]
            command = [sys.executable, str(loop), str(machine.prepared), *numbers]
            finished = subprocess.run(command, capture_output=True, text=True, check=True)
            return float(finished.stdout)

        inside()
        ratio = Ratio.of(*alternating(inside, bare, PAIRS))
    yield Figure(
        name="median step in a trial ÷ bare loop (mnist_cnn, batch 32)",
        value=str(ratio),
        target="1.00 ± 0.01, or an interval that contains 1",
        met=0.99 <= ratio.value <= 1.01 or ratio.low <= 1.0 <= ratio.high,
    )
