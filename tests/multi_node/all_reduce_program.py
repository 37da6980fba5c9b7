"""Averages of a tensor over the ranks of several hosts: their seconds, and what each host sent.

dpbench launch … -m tests.multi_node.all_reduce_program BYTES TIMES WAY …

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
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.hierarchical import HierarchicalState
from dpbench.rendezvous.process_group import process_group
from tests.multi_node.commands import BUSY_SECONDS, PORT, ended
from tests.multi_node.hosts import Host, interface_sent_bytes

DEVICES = Path("/proc/net/dev")
"""Not /sys, which shows the interfaces of the machine and not those of this host."""


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
    meeting = ("--nnodes", str(len(hosts)), "--rdzv-endpoint", f"{hosts[0].address}:{PORT}")
    words = ("-m", "tests.multi_node.all_reduce_program", str(nbytes), str(times), *ways)
    programs = [
        subprocess.Popen(
            host.command(
                *(sys.executable, "-m", "dpbench", "launch", *meeting),
                *("--node-rank", str(host.number), "--local-addr", host.address),
                *("--nproc-per-node", str(ranks_per_host), *words),
            ),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    with ended(programs):
        outputs = [one.communicate(timeout=BUSY_SECONDS) for one in programs]
    assert not any(one.returncode for one in programs), "\n".join(errors for _, errors in outputs)
    results = [json.loads(output) for output, _ in outputs]
    return [
        Crossings(
            seconds=of_hosts[0]["seconds"],
            sent_shares=tuple(one["sent_bytes"] / times / nbytes for one in of_hosts),
        )
        for of_hosts in zip(*results, strict=True)
    ]


def main(nbytes: int, times: int, ways: Sequence[str]) -> None:
    """Average as one rank; the first of each host prints what it has measured."""
    found = []
    for way in ways:
        with process_group("gloo", device="cpu") as ranks:
            found.append(_crossings(ranks.rank, ranks.size, nbytes, times, _averaging(way)))
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(found))


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
    before = interface_sent_bytes(DEVICES)
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        average(tensor)
        seconds.append(time.perf_counter() - start)
    # What a rank has written may still wait for the link, until the others have it.
    dist.barrier()
    sent = interface_sent_bytes(DEVICES) - before
    dist.barrier()
    return {"seconds": median(seconds), "sent_bytes": sent}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
