"""All-reduces across the link, one rank of them; says how long they took and what the host sent.

python -m tests.multi_node.all_reduce_program RANK SIZE ADDRESS BACKEND BYTES TIMES HOOK

HOOK is "none", for all-reduces, or "bf16-feedback", for averages by that communication hook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import dpbench
from dpbench.parallel import Bf16Feedback, bf16_feedback
from dpbench.parallel.ddp.comm_hooks import GradientBucket
from tests.multi_node.hosts import INTERFACE, Host, interface_sent_bytes

assert dpbench  # for the backends

PORT = 29555
"""Nothing else listens on a host that was made a moment ago."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossings:
    """All-reduces of one size and backend."""

    seconds: float
    """Median of rank 0."""
    sent_shares: tuple[float, ...]
    """Bytes that each host sent for one all-reduce ÷ the bytes of its tensor."""


def all_reduces(
    hosts: Sequence[Host],
    *,
    ranks_per_host: int,
    backend: str,
    nbytes: int,
    times: int,
    hook: str = "none",
) -> Crossings:
    """Run all-reduces of so many bytes on ranks of all hosts, or averages by a communication hook;
    raises AssertionError if a rank fails."""
    size = ranks_per_host * len(hosts)
    ranks = []
    for rank in range(size):
        words = (str(rank), str(size), hosts[0].address, backend, str(nbytes), str(times), hook)
        command = (sys.executable, "-m", "tests.multi_node.all_reduce_program", *words)
        ranks.append(
            subprocess.Popen(
                hosts[rank // ranks_per_host].command(*command),
                env=os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=PATIENCE_SECONDS) for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert not any(one.returncode for one in ranks), "\n".join(errors for _, errors in outputs)
    results = [json.loads(output) for output, _ in outputs]
    shares = [result["sent_bytes"] / times / nbytes for result in results[::ranks_per_host]]
    return Crossings(seconds=results[0]["seconds"], sent_shares=tuple(shares))


def main(
    rank: int, size: int, address: str, backend: str, nbytes: int, times: int, hook: str
) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE_SECONDS)
    store = dist.TCPStore(address, PORT, is_master=rank == 0, timeout=limit)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    tensor = torch.full((nbytes // 4,), float(rank))
    reduce = _reduction(hook)
    reduce(tensor)
    assert (tensor == (size - 1) / 2 * (size if hook == "none" else 1)).all()
    seconds = []
    dist.barrier()
    before = _sent_bytes()
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        reduce(tensor)
        seconds.append(time.perf_counter() - start)
    # What a rank has written may still wait for the link, until the others have it.
    dist.barrier()
    sent = _sent_bytes() - before
    print(json.dumps({"seconds": median(seconds), "sent_bytes": sent}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # The store lives in rank 0, and the others have read from it until now.
    store.set(f"left {rank}", "")
    if rank == 0:
        store.wait([f"left {peer}" for peer in range(size)])


def _reduction(hook: str) -> Callable[[torch.Tensor], object]:
    if hook == "none":
        return dist.all_reduce
    state = Bf16Feedback()

    def average(tensor: torch.Tensor) -> object:
        bucket = GradientBucket(0, tensor, [tensor], [tensor], True)
        return bf16_feedback(state, bucket).wait()

    return average


def _sent_bytes() -> int:
    # Not from /sys, which shows the interfaces of the machine and not those of this host.
    return interface_sent_bytes(Path("/proc/net/dev"))


if __name__ == "__main__":
    number, ranks, where, which, length, count, what = sys.argv[1:]
    main(int(number), int(ranks), where, which, int(length), int(count), what)
