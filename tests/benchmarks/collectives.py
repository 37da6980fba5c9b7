"""All-reduce of two ranks: shm against gloo, and against what the memory allows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench.parallel.shm import zeros
from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.parallel.ranks import run_ranks

SMALL = 4 * 1024
LARGE = (25_000_000, 100_000_000)
PAIRS = 20
CALLS = {"shm": 1000, "gloo": 50}
# Before the first measurement, so that no page is touched for the first time within one.
WARMUP = 2

IN_PLACE = "in the group's memory"

Seconds = dict[str, tuple[list[float], list[float]]]


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[Seconds] = run_ranks(
            _measure, Path(folder) / "store", backend="shm", timeout=300, group_timeout=100
        )
    for name, (target, met) in _promised().items():
        # What both do together takes as long as the slower one says.
        one, other = (
            [max(pair) for pair in zip(*sides, strict=True)]
            for sides in zip(*(seconds[name] for seconds in ranks), strict=True)
        )
        ratio = Ratio.of(one, other)
        yield Figure(name=name, value=str(ratio), target=target, met=met(ratio))


def _promised() -> dict[str, tuple[str, Callable[[Ratio], bool]]]:
    least = {"all-reduce latency at 4 KB, gloo ÷ shm": 20.0}
    least |= {_bandwidth(IN_PLACE): 5.0, _bandwidth("anywhere"): 3.0}
    for nbytes in LARGE:
        least |= {_share(nbytes, IN_PLACE): 0.7, _share(nbytes, "anywhere"): 0.35}
    return {
        name: (f"at least {bound:g}", lambda ratio, bound=bound: ratio.value >= bound)
        for name, bound in least.items()
    }


def _bandwidth(where: str) -> str:
    return f"all-reduce time at 25 MB, gloo ÷ shm, tensors {where}"


def _share(nbytes: int, where: str) -> str:
    return f"copy ÷ all-reduce, {nbytes // 10**6} MB, tensors {where}"


def _measure(rank: int) -> Seconds:
    """On every rank: the seconds of both sides of each ratio."""
    gloo, cpu = dist.new_group(backend="gloo"), torch.device("cpu")
    small = torch.ones(SMALL // 4)
    seconds = {
        "all-reduce latency at 4 KB, gloo ÷ shm": _alternating(
            lambda: _repeat(CALLS["gloo"], small, gloo),
            lambda: _repeat(CALLS["shm"], small, dist.group.WORLD),
        )
    }
    for nbytes in LARGE:
        places = {
            IN_PLACE: zeros(dist.group.WORLD, nbytes // 4, torch.float32, cpu),
            "anywhere": torch.zeros(nbytes // 4),
        }
        source, copy = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        for where, tensor in places.items():

            def reduce(tensor: torch.Tensor = tensor) -> None:
                dist.all_reduce(tensor)

            def reduce_on_gloo(tensor: torch.Tensor = tensor) -> None:
                dist.all_reduce(tensor, group=gloo)

            def copy_as_much(source: torch.Tensor = source, copy: torch.Tensor = copy) -> None:
                copy.copy_(source)

            seconds[_share(nbytes, where)] = _alternating(copy_as_much, reduce)
            if nbytes == LARGE[0]:
                seconds[_bandwidth(where)] = _alternating(reduce_on_gloo, reduce)
    return seconds


def _alternating(
    first: Callable[[], object], second: Callable[[], object]
) -> tuple[list[float], list[float]]:
    for _ in range(WARMUP):
        first()
        second()
    return alternating(lambda: _seconds(first), lambda: _seconds(second), PAIRS)


def _seconds(call: Callable[[], object]) -> float:
    """Of a call that both ranks make at once; per call if it says how many it makes."""
    dist.barrier()
    start = perf_counter()
    calls = call()
    took = perf_counter() - start
    return took / calls if isinstance(calls, int) else took


def _repeat(calls: int, tensor: torch.Tensor, group: dist.ProcessGroup) -> int:
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return calls
