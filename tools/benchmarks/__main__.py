"""Runs all benchmarks, or those named, and prints one line for each figure."""

from __future__ import annotations

import argparse
import importlib
import sys

NAMES = {
    "ddp": "our DistributedDataParallel against torch's, on gloo and shm",
    "dp": "DataParallel with two replicas against the plain module",
    "sharded": "ShardedOptimizer against torch's ways to make an AdamW step",
    "shm": "all-reduce on shm against gloo",
    "disturbance": "processor time of a plain torchrun script against a trial",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description=__doc__)
    known = "; ".join(f"{name}: {measures}" for name, measures in NAMES.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run. {known}")
    parser.add_argument("--cases", default="", help="run only the cases whose name contains this")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}")
    missed = 0
    for name in options.names or NAMES:
        for figure in importlib.import_module(f"tools.benchmarks.{name}").run(options.cases):
            missed += not figure.met
            print(figure, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
