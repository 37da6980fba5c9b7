"""Ranks that wait for each other: at a barrier."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from dpbench.rendezvous.barrier import barrier
from tests.parallel.ranks import run_ranks

LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=1)


def nobody_leaves_before_the_last_has_come(rank: int) -> None:
    for number in range(6):
        late = number % 3 == rank
        if late:
            time.sleep(0.01)
        came = time.monotonic()
        barrier("step", timeout=LONG)
        left = time.monotonic()
        times: list[tuple[float, float]] = [(0.0, 0.0)] * 3
        dist.all_gather_object(times, (came, left))
        assert max(came for came, _ in times) <= min(left for _, left in times)


def the_missing_ranks_are_named_on_all_others_and_on_the_late_one(rank: int) -> None:
    expected = "^barrier 'before saving': rank 1 did not come within 1 s$"
    if rank == 1:  # comes when the others have given up
        dist.barrier()
    with pytest.raises(RuntimeError, match=expected):
        barrier("before saving", timeout=SHORT)
    if rank != 1:
        dist.barrier()
    barrier("afterwards", timeout=LONG)  # the next one works


def different_labels_are_an_error_on_all(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 is at 'epoch', but ranks 1 and 2 at 'saving'$"):
        barrier("epoch" if rank == 0 else "saving", timeout=LONG)


def groups_have_barriers_of_their_own(rank: int) -> None:
    pair = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(RuntimeError, match="barrier: this process is not a member"):
            barrier("pair", timeout=SHORT, process_group=pair)
    else:
        barrier("pair", timeout=LONG, process_group=pair)
    barrier("all", timeout=LONG)


def test_three_ranks_wait_for_each_other(tmp_path: Path) -> None:
    checks = [
        nobody_leaves_before_the_last_has_come,
        the_missing_ranks_are_named_on_all_others_and_on_the_late_one,
        different_labels_are_an_error_on_all,
        groups_have_barriers_of_their_own,
    ]
    run_ranks(checks, tmp_path / "store", world_size=3)
