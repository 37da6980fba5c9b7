"""How long `dpbench --help` takes, against importing typer alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from tests.benchmarks.figure import Figure, alternating

PAIRS = 15


def run() -> Iterator[Figure]:
    help_seconds, typer_seconds = alternating(
        lambda: _seconds("-m", "dpbench", "--help"), lambda: _seconds("-c", "import typer"), PAIRS
    )
    ours, bare = median(help_seconds), median(typer_seconds)
    yield Figure(
        name="dpbench --help",
        value=f"{ours:.3f} s, import typer {bare:.3f} s (medians of {PAIRS})",
        target="at most 1.5 × import typer + 0.1 s",
        met=ours <= 1.5 * bare + 0.1,
    )


def _seconds(*arguments: str) -> float:
    start = perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return perf_counter() - start
