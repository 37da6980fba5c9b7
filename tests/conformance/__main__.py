"""Run torch's own distributed tests, with torch's classes or with ours.

python -m tests.conformance [--torch | --ours] [-k PART] [--world-size N] [-v] [NAME ...]
python -m tests.conformance --gloo | --shm ...

The first runs the tests for DistributedDataParallel with torch's class or ours, the second all
other tests on a backend.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.runner import Outcome

LABELS = ("torch", "ours")
BACKENDS = ("gloo", "shm")


def main() -> None:
    """Print a line per test and the counts, or answer whoever asks for one test after another."""
    options = _options()
    # Read when torch and its tests are imported, which must start no threads: ranks are forks.
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        # Asking whether there is a GPU must not start CUDA: a fork could not use it then.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    from tests.conformance import suite

    # A collection in a rank would copy all the pages that it shares with this process.
    gc.freeze()
    if options.serve:
        _serve(options)
        return
    every = suite.collective_names() if options.only in BACKENDS else suite.names()
    wanted = options.names or [name for name in every if options.part in name]
    if options.list:
        print(*wanted, sep="\n")
        return
    for label in [options.only] if options.only else LABELS:
        counts: collections.Counter[str] = collections.Counter()
        for outcome in _outcomes(label, options.world_size, wanted, options, apart=True):
            counts[outcome.status] += 1
            print(label, _line(outcome, options.verbose), flush=True)
        print(f"{label}: {', '.join(f'{count} {status}' for status, count in counts.items())}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    for label in LABELS + BACKENDS:
        only.add_argument(f"--{label}", dest="only", action="store_const", const=label)
    parser.add_argument("-k", dest="part", default="", help="only tests with this in the name")
    parser.add_argument("-v", dest="verbose", action="store_true", help="whole tracebacks")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="the one that stands for every GPU")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per test")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="a JSON object with all names, and for each line `LABEL WORLD_SIZE NAME ...` of stdin "
        "one for each of its tests, which share their ranks",
    )
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("names", nargs="*", help="tests by name; without any, all that there are")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    from tests.conformance import suite

    names = {"every_name": suite.names(), "every_collective": suite.collective_names()}
    print(json.dumps(names), flush=True)
    for line in sys.stdin:
        label, world_size, *wanted = line.split()
        for outcome in _outcomes(label, int(world_size), wanted, options, apart=False):
            print(json.dumps(asdict(outcome)), flush=True)


def _outcomes(
    label: str, world_size: int, names: list[str], options: argparse.Namespace, *, apart: bool
) -> Iterator[Outcome]:
    """Run tests with what a label stands for; each on ranks of its own, if they are to be apart."""
    from torch.nn.parallel.distributed import DistributedDataParallel as TorchDDP

    from dpbench.parallel import DistributedDataParallel
    from tests.conformance import runner
    from tests.conformance.substitution import use

    wrapper = DistributedDataParallel if label == "ours" else TorchDDP
    use(wrapper)
    backend = label if label in BACKENDS else "gloo"
    setting = runner.Setting(wrapper, world_size, options.device, options.limit, backend)
    for together in [[name] for name in names] if apart else [names]:
        yield from runner.run_together(together, setting)


def _line(outcome: Outcome, verbose: bool) -> str:
    first = outcome.detail.partition("\n")[0]
    detail = f"\n{outcome.detail}" if verbose else first
    return f"{outcome.status:7} {outcome.seconds:5.1f} s {outcome.name} {detail}".rstrip()


if __name__ == "__main__":
    main()
