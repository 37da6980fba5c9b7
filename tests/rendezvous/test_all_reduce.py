"""The everyday operations of a group, on ranks of their own, and without any group."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dpbench.launch.ranks import run_ranks
from dpbench.parallel import all_reduce
from dpbench.parallel.groups import OPERATIONS
from dpbench.rendezvous.barrier import barrier
from dpbench.rendezvous.process_group import process_group


def tried(backend: str, rank: int) -> dict[str, Any]:
    with process_group(backend, device="cpu"):
        found: dict[str, Any] = {"place": (dist.get_rank(), dist.get_world_size())}
        given = torch.tensor([rank + 1.0])
        reduced = all_reduce(given)
        found["in place"] = (reduced is given, given.tolist())
        for op in OPERATIONS[1:]:
            value = torch.tensor([rank + 1.0])
            given = value if op in ("avg", "product", "min", "max") else value.long()
            found[op] = all_reduce(given, op).item()
        sent = torch.tensor([rank + 1.0])
        dist.broadcast(sent, 1)
        found["broadcast"] = sent.tolist()
        if rank == 1:
            time.sleep(0.3)
        began = time.monotonic()
        barrier()
        found["waited"] = time.monotonic() - began
        dist.destroy_process_group()
        found["left"] = dist.is_initialized()
    return found


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_two_ranks_reduce_broadcast_wait_and_leave(backend: str, tmp_path: Path) -> None:
    both = run_ranks(partial(tried, backend), 2, tmp_path, 60)
    for rank, found in enumerate(both):
        assert found["place"] == (rank, 2)
        assert found["in place"] == (True, [3.0])
        assert [found[op] for op in OPERATIONS[1:]] == [1.5, 2.0, 1.0, 2.0, 0, 3, 3]
        assert found["broadcast"] == [2.0]
        assert found["left"] is False
    assert both[0]["waited"] >= 0.25


@pytest.mark.parametrize("call", [lambda: all_reduce(torch.ones(1)), barrier])
def test_without_a_group_every_operation_says_what_it_needs(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"^\w+ needs a process group; call torch.distributed"):
        call()
    assert not dist.is_initialized()


@pytest.fixture
def alone() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_is_no_operation_and_no_average_is_refused() -> None:
    with pytest.raises(ValueError, match=f"got op='mean', expected one of {', '.join(OPERATIONS)}"):
        all_reduce(torch.ones(1), "mean")
    with pytest.raises(ValueError, match=r"an average of torch.int64, expected real numbers"):
        all_reduce(torch.ones(1, dtype=torch.int64), "avg")
