"""Runs all benchmarks, or those named, and prints one line for each figure."""

from __future__ import annotations

import sys

from tools.benchmarks import suite

BENCHMARKS = {
    one.__name__: one for one in (suite.ddp, suite.dp, suite.sharded, suite.shm, suite.disturbance)
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in BENCHMARKS]:
        known = "\n".join(f"  {name}: {one.__doc__}" for name, one in BENCHMARKS.items())
        print(f"unknown benchmark {unknown[0]!r}; known:\n{known}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or BENCHMARKS:
        for figure in BENCHMARKS[name]():
            missed += not figure.met
            print(figure, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
