"""Steps of the fabric of waits: predicted from one rank's trace, and measured."""

from __future__ import annotations

from collections.abc import Iterator

from tabulate import tabulate

from tests.benchmarks.figure import Figure
from tests.fabric.cases import CASES, outcome
from tests.fabric.clocks import run_in_real_time

STEPS = 20
HIGHEST_ERROR = 0.02


def run() -> Iterator[Figure]:
    found = {name: outcome(case, STEPS, run_in_real_time) for name, case in CASES.items()}
    rows = [
        (
            name,
            f"{one.measured_seconds * 1e3:.2f} ms",
            f"{one.predicted_seconds * 1e3:.2f} ms",
            f"{one.error:+.2%}",
        )
        for name, one in found.items()
    ]
    columns = ("case", "measured", "predicted", "error")
    print(tabulate(rows, columns, colalign=("left", "right", "right", "right")), flush=True)
    worst = max((one.error for one in found.values()), key=abs)
    yield Figure(
        name="steps of the fabric of waits, predicted from one rank",
        value=f"at most {abs(worst):.2%} off, {len(found)} cases, medians over {STEPS} steps",
        target="within 2 %",
        met=abs(worst) <= HIGHEST_ERROR,
    )
