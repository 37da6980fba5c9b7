"""Runs all benchmarks, or those named, and prints one line for each figure."""

from __future__ import annotations

import importlib
import sys

NAMES = {
    "ddp": "our DistributedDataParallel against torch's, on gloo and shm",
    "dp": "DataParallel with two replicas against the plain module",
    "sharded": "ShardedOptimizer against torch's ways to make an AdamW step",
    "shm": "all-reduce on shm against gloo",
    "disturbance": "processor time of a training script against a trial",
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in NAMES]:
        known = "\n".join(f"  {name}: {measures}" for name, measures in NAMES.items())
        print(f"unknown benchmark {unknown[0]!r}; known:\n{known}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or NAMES:
        for figure in importlib.import_module(f"tools.benchmarks.{name}").run():
            missed += not figure.met
            print(figure, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
