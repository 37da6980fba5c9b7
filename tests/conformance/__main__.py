"""Run torch's own distributed tests on a backend, with ours in the place of torch's DDP or not.

python -m tests.conformance ddp-gloo|ddp-shm|gloo|shm [--world-size N] NAME ...

The first two put our DistributedDataParallel in the place of torch's. The tests share their ranks
until one fails; the next gets new ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import asdict

UNTOUCHED = ("dpbench", "tests.", "torch._dynamo")
"""Modules that keep torch's class. The compiler splits graphs at the buckets of torch's; any other
it takes as it is."""
LABELS = ("ddp-gloo", "ddp-shm", "gloo", "shm")


def main() -> None:
    """Print each test with its status and seconds, and why it failed or was skipped."""
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
    from torch.nn.parallel.distributed import DistributedDataParallel as TorchDdp

    from dpbench.parallel import DistributedDataParallel
    from tests.conformance import runner

    kind, _, backend = options.label.rpartition("-")
    wrapper = DistributedDataParallel if kind else TorchDdp
    substitute(wrapper, TorchDdp)
    # A collection in a rank would copy all the pages that it shares with this process.
    gc.freeze()
    setting = runner.Setting(wrapper, backend, options.world_size, options.limit)
    for outcome in runner.run_together(options.names, setting):
        line = f"{outcome.status:7} {outcome.seconds:5.1f} s {outcome.name}\n{outcome.detail}"
        print(json.dumps(asdict(outcome)) if options.json else line.rstrip(), flush=True)


def substitute(wrapper: type, torchs: type) -> None:
    """Every imported module that holds torch's class holds `wrapper` from now on."""
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith(UNTOUCHED):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is torchs:
                    setattr(module, name, wrapper)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("label", choices=LABELS)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per test")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each test")
    parser.add_argument("names", nargs="+", help="tests by name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
