"""The hook hierarchical against gloo: two network namespaces, several ranks in each, a slow link.

With g ranks on each of two hosts gloo's ring sends 2 (2g - 1) ÷ 2g of a bucket over the link, and
the hook sends it once: 0.67 of gloo's bytes with two ranks on a host, 0.57 with four.

`dpbench launch … -m tools.benchmarks.hosts TIMES WAY` is one rank of a measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.hierarchical import HierarchicalState
from dpbench.rendezvous.process_group import process_group
from tests.multi_node.commands import BUSY_SECONDS, PORT, ended
from tests.multi_node.hosts import interface_sent_bytes, two_hosts, unusable_reason
from tools.benchmarks.paired import Figure, Ratio, alternate, at_most

BUCKET_BYTES = 25_000_000
ROUNDS = 4
CASES = {"2 + 2 ranks, 1 Gbit/s": (1e9, 2, 10), "4 + 4 ranks, 200 Mbit/s": (200e6, 4, 3)}
"""The rate of the link in bits per second, ranks on each host, and calls of a block."""
MOST_TIME, MOST_BYTES = 0.85, 1.05
DEVICES = Path("/proc/net/dev")
"""Not /sys, which shows the interfaces of the machine and not those of this host."""


def run(cases: str = "") -> Iterator[Figure]:
    if (reason := unusable_reason()) is not None:
        yield Figure("hierarchical between hosts", reason, "needs two network namespaces", False)
        return
    for case, (rate, ranks, calls) in CASES.items():
        if cases not in case:
            continue
        sent: list[float] = []
        one_side = partial(_seconds, rate, ranks, calls, sent)
        seconds = alternate(
            {way: partial(one_side, way) for way in ("hierarchical", "gloo")}, ROUNDS
        )
        ratio = Ratio.of(seconds["hierarchical"], seconds["gloo"])
        yield at_most(MOST_TIME, ratio, f"all-reduce of 25 MB, hierarchical ÷ gloo ({case})")
        yield Figure(
            name=f"bytes that leave a host ÷ those of one rank, hierarchical ({case})",
            value=f"{max(sent):.3f} at most",
            wanted=f"wanted ≤ {MOST_BYTES:g}",
            met=max(sent) <= MOST_BYTES,
        )


def _seconds(rate: float, ranks: int, times: int, sent: list[float], way: str) -> float:
    """Median seconds of an average on rank 0; what each host sends, of the hook only, is added to
    `sent` in buckets."""
    with two_hosts(bits_per_second=rate) as hosts:
        meeting = ("--nnodes", str(len(hosts)), "--rdzv-endpoint", f"{hosts[0].address}:{PORT}")
        programs = [
            subprocess.Popen(
                host.command(
                    *(sys.executable, "-m", "dpbench", "launch", *meeting),
                    *("--node-rank", str(host.number), "--local-addr", host.address),
                    *("--nproc-per-node", str(ranks)),
                    *("-m", "tools.benchmarks.hosts", str(times), way),
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
    found = [json.loads(output) for output, _ in outputs]
    if way == "hierarchical":
        sent += [host["sent_bytes"] / times / BUCKET_BYTES for host in found]
    return float(found[0]["seconds"])


def main(times: int, way: str) -> None:
    """Average as one rank; the first of each host prints what it has measured."""
    with process_group("gloo", device="cpu") as ranks:
        average: Callable[[Tensor], object]
        if way == "hierarchical":
            state = HierarchicalState()
            average = lambda tensor: state.average(tensor).wait()  # noqa: E731
        else:
            average = lambda tensor: dist.all_reduce(tensor.div_(ranks.size))  # noqa: E731
        tensor = torch.full((BUCKET_BYTES // 4,), float(ranks.rank))
        average(tensor)
        assert (tensor == (ranks.size - 1) / 2).all()
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
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps({"seconds": median(seconds), "sent_bytes": sent}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
