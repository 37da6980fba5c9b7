"""Run torch's own tests for DistributedDataParallel, with torch's class or with ours.

python -m tests.conformance [--torch | --ours] [-k PART] [--world-size N] [-v] [NAME ...]
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
    from tests.conformance.runner import Outcome

LABELS = ("torch", "ours")


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
    wanted = options.names or [name for name in suite.names() if options.part in name]
    if options.list:
        print(*wanted, sep="\n")
        return
    for label in [options.only] if options.only else LABELS:
        counts: collections.Counter[str] = collections.Counter()
        for name in wanted:
            outcome = _outcome(label, options.world_size, name, options)
            counts[outcome.status] += 1
            print(label, _line(outcome, options.verbose), flush=True)
        print(f"{label}: {', '.join(f'{count} {status}' for status, count in counts.items())}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    for label in LABELS:
        only.add_argument(f"--{label}", dest="only", action="store_const", const=label)
    parser.add_argument("-k", dest="part", default="", help="only tests with this in the name")
    parser.add_argument("-v", dest="verbose", action="store_true", help="whole tracebacks")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="the one that stands for every GPU")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per test")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="a JSON object with all names, and one for each line `LABEL WORLD_SIZE NAME` of stdin",
    )
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("names", nargs="*", help="tests by name; without any, all that there are")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    from tests.conformance import suite

    print(json.dumps({"every_name": suite.names()}), flush=True)
    for line in sys.stdin:
        label, world_size, name = line.split()
        print(json.dumps(asdict(_outcome(label, int(world_size), name, options))), flush=True)


def _outcome(label: str, world_size: int, name: str, options: argparse.Namespace) -> Outcome:
    from torch.nn.parallel.distributed import DistributedDataParallel as TorchDDP

    from dpbench.parallel import DistributedDataParallel
    from tests.conformance import runner
    from tests.conformance.substitution import use

    wrapper = {"torch": TorchDDP, "ours": DistributedDataParallel}[label]
    use(wrapper)
    return runner.run(name, runner.Setting(wrapper, world_size, options.device, options.limit))


def _line(outcome: Outcome, verbose: bool) -> str:
    first = outcome.detail.partition("\n")[0]
    detail = f"\n{outcome.detail}" if verbose else first
    return f"{outcome.status:7} {outcome.seconds:5.1f} s {outcome.name} {detail}".rstrip()


if __name__ == "__main__":
    main()
