"""Averages of a tensor over all ranks, as one host's ranks: how long they took and what it sent.

python -m tests.multi_node.all_reduce_program HOST HOSTS RANKS ADDRESS BYTES TIMES WAY …

A way is `gloo`, its own all-reduce, or `hierarchical`, the communication hook.
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
from torch import Tensor

from dpbench.parallel.hierarchical import HierarchicalState
from tests.multi_node.hosts import INTERFACE, Host, interface_sent_bytes

PORT = 29555
"""Nothing else listens on a host that was made a moment ago."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossings:
    """Averages of one size, in one way."""

    seconds: float
    """Median of rank 0."""
    sent_shares: tuple[float, ...]
    """Bytes that each host sent for one all-reduce ÷ the bytes of its tensor."""


def all_reduces(
    hosts: Sequence[Host], *ways: str, ranks_per_host: int, nbytes: int, times: int
) -> list[Crossings]:
    """Average so many bytes over the ranks of all hosts, in one way after the other; raises
    AssertionError if a rank fails."""
    program = ("-m", "tests.multi_node.all_reduce_program")
    counts = (len(hosts), ranks_per_host, hosts[0].address, nbytes, times)
    words = [*map(str, counts), *ways]
    programs = [
        subprocess.Popen(
            host.command(sys.executable, *program, str(host.number), *words),
            env=os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    try:
        outputs = [one.communicate(timeout=PATIENCE_SECONDS) for one in programs]
    finally:
        for one in programs:
            one.kill()
            one.wait()
    assert not any(one.returncode for one in programs), "\n".join(errors for _, errors in outputs)
    results = [json.loads(output) for output, _ in outputs]
    return [
        Crossings(
            seconds=of_hosts[0]["seconds"],
            sent_shares=tuple(one["sent_bytes"] / times / nbytes for one in of_hosts),
        )
        for of_hosts in zip(*results, strict=True)
    ]


def main(
    host: int,
    hosts: int,
    ranks: int,
    address: str,
    nbytes: int,
    times: int,
    ways: Sequence[str],
) -> None:
    """What one host does; its other ranks are forks, which need not import torch again."""
    torch.set_num_threads(1)
    forks: list[int] = []
    for local_rank in range(1, ranks):
        if (fork := os.fork()) == 0:
            _rank(host * ranks + local_rank, hosts * ranks, address, nbytes, times, ways)
            return
        forks.append(fork)
    print(json.dumps(_rank(host * ranks, hosts * ranks, address, nbytes, times, ways)))
    for fork in forks:
        assert os.waitpid(fork, 0)[1] == 0


def _rank(
    rank: int, size: int, address: str, nbytes: int, times: int, ways: Sequence[str]
) -> list[dict[str, float]]:
    limit = timedelta(seconds=PATIENCE_SECONDS)
    store = dist.TCPStore(address, PORT, is_master=rank == 0, timeout=limit)
    found = []
    for number, way in enumerate(ways):
        keys = dist.PrefixStore(str(number), store)
        dist.init_process_group("gloo", store=keys, rank=rank, world_size=size, timeout=limit)
        found.append(_crossings(rank, size, nbytes, times, _averaging(way)))
        dist.destroy_process_group()
    # The store lives in rank 0, and the others have read from it until now.
    store.set(f"left {rank}", "")
    if rank == 0:
        store.wait([f"left {peer}" for peer in range(size)])
    return found


def _averaging(way: str) -> Callable[[Tensor], object]:
    if way == "hierarchical":
        state = HierarchicalState()
        return lambda tensor: state.average(tensor).wait()
    return lambda tensor: dist.all_reduce(tensor.div_(dist.get_world_size()))


def _crossings(
    rank: int, size: int, nbytes: int, times: int, average: Callable[[Tensor], object]
) -> dict[str, float]:
    tensor = torch.full((nbytes // 4,), float(rank))
    average(tensor)
    assert (tensor == (size - 1) / 2).all()
    seconds = []
    dist.barrier()
    before = _sent_bytes()
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        average(tensor)
        seconds.append(time.perf_counter() - start)
    # What a rank has written may still wait for the link, until the others have it.
    dist.barrier()
    sent = _sent_bytes() - before
    dist.barrier()
    return {"seconds": median(seconds), "sent_bytes": sent}


def _sent_bytes() -> int:
    # Not from /sys, which shows the interfaces of the machine and not those of this host.
    return interface_sent_bytes(Path("/proc/net/dev"))


if __name__ == "__main__":
    number, count, each, where, length, repeated, *words = sys.argv[1:]
    main(
        int(number),
        int(count),
        int(each),
        where,
        int(length),
        int(repeated),
        words,
    )
