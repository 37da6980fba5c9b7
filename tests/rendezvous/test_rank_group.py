"""The group of a run beside the CPU group that talks about it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dpbench.launch.fork_world import fork_world
from dpbench.rendezvous.process_group import RankGroup, rank_group

LIMIT = timedelta(seconds=60)


def of_all_ranks(rank: int) -> list[object]:
    found: list[object] = []
    for backend in ("gloo", "shm", "none"):
        with rank_group(backend, 2, timeout=LIMIT) as ranks:
            ranks.barrier()
            found.append(ranks.rank == rank)
            found.append(ranks.max(rank))
            found.append(ranks.gather([rank, 0.1]))
            found.append(ranks.on_first(lambda: b"first"))
            found.append(ranks.gather_on_first({"rank": rank}))
        assert not dist.is_initialized()
    with rank_group("gloo", 2, timeout=LIMIT) as ranks:  # never on the group's or a model's device
        assert ranks.control is not None
        ranks.control.bound_device_id = torch.device("cuda:0")  # which is not here
        torch.set_default_device("meta")
        ranks.barrier()
        assert (ranks.max(rank), ranks.on_first(lambda: 5)) == (1.0, 5)
        assert ranks.gather_on_first(rank) == (None if rank else [0, 1])
        torch.set_default_device("cpu")
        what_rank_0_raises_is_heard_by_all(ranks)
    return found


def what_rank_0_raises_is_heard_by_all(ranks: RankGroup) -> None:
    def fail() -> None:
        raise ValueError("no samples\nand more")

    heard = "^cannot complete: rank 0 failed .*: ValueError: no samples$"
    words = heard if ranks.rank else "^no samples"
    with pytest.raises(RuntimeError if ranks.rank else ValueError, match=words):
        ranks.on_first(fail)
    assert ranks.on_first(lambda: 5) == 5


def test_every_rank_gets_what_all_have() -> None:
    expected = [True, 1.0, [[0, 0.1], [1, 0.1]], b"first", [{"rank": 0}, {"rank": 1}]] * 3
    on_others = [None if isinstance(one, list) and {"rank": 0} in one else one for one in expected]
    assert fork_world(of_all_ranks, 2, timeout=LIMIT) == [expected, on_others]


def test_one_process_gets_its_own() -> None:
    with rank_group("threads", 1) as ranks:
        assert ranks == RankGroup()
        assert ranks.gather([1, 2]) == [[1, 2]]
        assert ranks.on_first(lambda: 3) == 3
