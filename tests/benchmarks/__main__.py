"""Runs all benchmarks, or those named, and prints a line for each figure."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "start_up",
    "many_trials",
    "trial_cost",
    "disturbance",
    "implementations",
    "wrappers",
    "architectures",
    "sharded_steps",
    "collectives",
    "operating_characteristics",
    "analysis_speed",
    "simulation_speed",
    "tracing_cost",
    "checkpoints",
    "prefetch",
    "accumulation_network",
    "hosts_network",
    "predictions_fabric",
    "predictions_network",
    "predictions_ranks",
    "published_tables",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or NAMES:
        for figure in importlib.import_module(f"tests.benchmarks.{name}").run():
            missed += not figure.met
            verdict = "met" if figure.met else "MISSED"
            print(f"{figure.name}: {figure.value}; promised {figure.target}: {verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
