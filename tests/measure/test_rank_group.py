"""The group of a run beside the CPU group that talks about it."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dpbench.launch.fork_world import fork_world
from dpbench.measure.rank_group import RankGroup, rank_group

LIMIT = timedelta(seconds=60)


def numbers_and_bytes(rank: int) -> list[object]:
    found: list[object] = []
    for backend in ("gloo", "shm", "none"):
        with rank_group(backend, 2, timeout=LIMIT) as ranks:
            ranks.barrier()
            found.append(ranks.rank == rank)
            found.append(ranks.largest(rank))
            found.append(ranks.gather([rank, 0.1]))
            found.append(ranks.gather_bytes(b"ab" * rank))
        assert not dist.is_initialized()
    return found


def test_every_rank_gets_what_all_have() -> None:
    expected = [True, 1.0, [[0.0, 0.1], [1.0, 0.1]], [b"", b"ab"]] * 3
    assert fork_world(numbers_and_bytes, 2, timeout=LIMIT) == [expected, expected]


@given(st.binary())
def test_one_process_hears_itself(data: bytes) -> None:
    with rank_group("threads", 1) as ranks:
        assert ranks == RankGroup(size=1, control=None)
        assert ranks.gather_bytes(data) == [data]
        assert ranks.gather([1, 2]) == [[1.0, 2.0]]
