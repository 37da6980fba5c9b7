"""Run torch's own tests for DistributedDataParallel, with torch's class or with ours.

python -m tests.conformance [--torch | --ours] [-k PART] [--world-size N] [-v] [NAME ...]
"""

from __future__ import annotations

import argparse
import collections
import gc
import importlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conformance.runner import Outcome

WRAPPERS = {"torch": "torch.nn.parallel", "ours": "dpbench.parallel"}


def main() -> None:
    """Print a line per test and the counts."""
    options = _options()
    # Read when torch and its tests are imported, which must start no threads: ranks are forks.
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(options.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        # Asking whether there is a GPU must not start CUDA: a fork could not use it then.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    from tests.conformance import runner, suite
    from tests.conformance.substitution import use

    wanted = options.names or [name for name in suite.names() if options.part in name]
    # A collection in a rank would copy all the pages that it shares with this process.
    gc.freeze()
    if options.list:
        print(*wanted, sep="\n")
        return
    for label in [options.only] if options.only else WRAPPERS:
        wrapper = importlib.import_module(WRAPPERS[label]).DistributedDataParallel
        use(wrapper)
        setting = runner.Setting(wrapper, options.world_size, options.device, options.limit)
        counts: collections.Counter[str] = collections.Counter()
        for name in wanted:
            outcome = runner.run(name, setting)
            counts[outcome.status] += 1
            if options.json:
                print(json.dumps(asdict(outcome)), flush=True)
            else:
                print(label, _line(outcome, options.verbose), flush=True)
        if not options.json:
            print(f"{label}: {', '.join(f'{count} {status}' for status, count in counts.items())}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    for label in WRAPPERS:
        only.add_argument(f"--{label}", dest="only", action="store_const", const=label)
    parser.add_argument("-k", dest="part", default="", help="only tests with this in the name")
    parser.add_argument("-v", dest="verbose", action="store_true", help="whole tracebacks")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="the one that stands for every GPU")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per test")
    parser.add_argument("--json", action="store_true", help="a JSON object per test, no counts")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("names", nargs="*", help="tests by name; without any, all that there are")
    return parser.parse_args()


def _line(outcome: Outcome, verbose: bool) -> str:
    first = outcome.detail.partition("\n")[0]
    detail = f"\n{outcome.detail}" if verbose else first
    return f"{outcome.status:7} {outcome.seconds:5.1f} s {outcome.name} {detail}".rstrip()


if __name__ == "__main__":
    main()
