"""The hook hierarchical gives the averages of gloo's own all-reduce, on any division into hosts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from dpbench.parallel import HierarchicalState
from tests.parallel.shm.casualties import error_of, run_with_casualties
from tests.parallel.worlds import World

HOSTS = ((0, 0, 0, 0), (0, 1, 2, 3), (0, 1, 0, 1), (0, 0, 0, 1))
"""By rank, the host that it is on."""
NUMEL = 300_000

world = World(backend="gloo", sizes=(4,))


@world.body
def averages_are_gloos(rank: int) -> None:
    for hosts in HOSTS:
        state = HierarchicalState(host=str(hosts[rank]))
        assert state.is_leader == (hosts.index(hosts[rank]) == rank)
        # In flight together; numbers whose sums are exact in any order.
        given = [torch.arange(NUMEL) % 64 + 4.0 * rank + number for number in range(5)]
        futures = [state.average(tensor) for tensor in given]
        for number, future in enumerate(futures):
            expected = torch.arange(NUMEL) % 64 + 6.0 + number
            assert torch.equal(future.wait(), expected)


test_on_ranks = world.test()


def _loses_a_rank(rank: int) -> str:
    state = HierarchicalState(host=str(rank // 2))
    state.average(torch.ones(NUMEL)).wait()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: state.average(torch.ones(NUMEL)).wait())


def test_a_lost_rank_is_an_error_of_all_others(tmp_path: Path) -> None:
    found = run_with_casualties(_loses_a_rank, tmp_path / "store", 4, backend="gloo")
    assert "rank 1" in found[0]  # of its own host, which shared memory names
    assert set(found) == {0, 2, 3}
