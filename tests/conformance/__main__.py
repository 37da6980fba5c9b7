"""Run torch's own distributed tests on a backend, with ours in the place of torch's DDP or not.

python -m tests.conformance ddp-gloo|ddp-shm|gloo|shm [--world-size N] [-v] NAME ...

The first two put our DistributedDataParallel in the place of torch's.
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

LABELS = ("ddp-gloo", "ddp-shm", "gloo", "shm")


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

    assert suite.Suite, "its import took torch's tests in, before the first fork"
    # A collection in a rank would copy all the pages that it shares with this process.
    gc.freeze()
    if options.serve:
        _serve(options)
        return
    counts: collections.Counter[str] = collections.Counter()
    for outcome in _outcomes(options.label, options.world_size, options.names, options, apart=True):
        counts[outcome.status] += 1
        print(_line(outcome, options.verbose), flush=True)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("label", nargs="?", default=LABELS[0], choices=LABELS)
    parser.add_argument("-v", dest="verbose", action="store_true", help="whole tracebacks")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="the one that stands for every GPU")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per test")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="for each line `LABEL WORLD_SIZE NAME ...` of stdin print a JSON object for each of "
        "its tests, which share their ranks",
    )
    parser.add_argument("names", nargs="*", help="tests by name")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    for line in sys.stdin:
        label, world_size, *wanted = line.split()
        for outcome in _outcomes(label, int(world_size), wanted, options, apart=False):
            print(json.dumps(asdict(outcome)), flush=True)


def _outcomes(
    label: str, world_size: int, names: list[str], options: argparse.Namespace, *, apart: bool
) -> Iterator[Outcome]:
    """Run tests with what a label stands for; each on ranks of its own, if they are to be apart."""
    from torch.nn.parallel.distributed import DistributedDataParallel as TorchDdp

    from dpbench.parallel import DistributedDataParallel
    from tests.conformance import runner
    from tests.conformance.substitution import use

    kind, _, backend = label.rpartition("-")
    wrapper = DistributedDataParallel if kind else TorchDdp
    use(wrapper)
    setting = runner.Setting(wrapper, world_size, options.device, options.limit, backend)
    for together in [[name] for name in names] if apart else [names]:
        yield from runner.run_together(together, setting)


def _line(outcome: Outcome, verbose: bool) -> str:
    first = outcome.detail.partition("\n")[0]
    detail = f"\n{outcome.detail}" if verbose else first
    return f"{outcome.status:7} {outcome.seconds:5.1f} s {outcome.name} {detail}".rstrip()


if __name__ == "__main__":
    main()
