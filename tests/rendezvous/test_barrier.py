"""Ranks that wait for each other: at a barrier, and for rank 0."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.rendezvous.barrier import barrier, on_first_rank
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


def only_rank_0_works_and_has_the_result(rank: int) -> None:
    for number in range(3):  # each call is one of its own
        result = on_first_rank(lambda: number + dist.get_rank())  # noqa: B023
        assert result == (number if rank == 0 else None)


def work_may_take_longer_than_a_collective(rank: int) -> None:
    impatient = dist.new_group(timeout=SHORT)
    slow = 1.5 * SHORT.total_seconds()
    on_first_rank(lambda: time.sleep(slow), process_group=impatient)
    dist.all_reduce(torch.ones(1), group=impatient)  # it still works


def what_rank_0_raises_is_heard_by_all(rank: int) -> None:
    def fail() -> None:
        raise ValueError("no samples\nand more")

    words = (
        "^no samples"
        if rank == 0
        else "^cannot complete: rank 0 failed .*: ValueError: no samples$"
    )
    with pytest.raises(ValueError if rank == 0 else RuntimeError, match=words):
        on_first_rank(fail)


def test_three_ranks_wait_for_each_other_and_for_the_first(tmp_path: Path) -> None:
    checks = [
        nobody_leaves_before_the_last_has_come,
        the_missing_ranks_are_named_on_all_others_and_on_the_late_one,
        different_labels_are_an_error_on_all,
        groups_have_barriers_of_their_own,
        only_rank_0_works_and_has_the_result,
        work_may_take_longer_than_a_collective,
        what_rank_0_raises_is_heard_by_all,
    ]
    run_ranks(checks, tmp_path / "store", world_size=3)
