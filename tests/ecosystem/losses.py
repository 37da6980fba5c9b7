"""The losses of a script of others on the ranks of a launcher.

`dpbench launch --nproc-per-node 2 losses.py IMPLEMENTATION BACKEND SCRIPT [ARGUMENT ...]` runs the
script with torch's DistributedDataParallel or with ours in its place, in a group of that backend,
and prints rank 0's loss of each backward pass as JSON, exactly (`float.hex`).
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import dpbench
import dpbench.parallel

COUNT = 20


def main(implementation: str, backend: str, script: str, *arguments: str) -> None:
    if implementation == "ddp":
        torch.nn.parallel.DistributedDataParallel = dpbench.DistributedDataParallel
        torch.nn.parallel.distributed.DistributedDataParallel = dpbench.DistributedDataParallel
    losses: list[float] = []
    backward = torch.Tensor.backward

    def recorded(loss: torch.Tensor, *args: object, **keywords: object) -> None:
        losses.append(float(loss))
        if len(losses) == COUNT:
            if dist.get_rank() == 0:
                print(json.dumps([loss.hex() for loss in losses]), flush=True)
            dist.barrier()
            os._exit(0)
        backward(loss, *args, **keywords)

    torch.Tensor.backward = recorded
    torch.manual_seed(0)
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script, *arguments]
    with dpbench.process_group(backend):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
