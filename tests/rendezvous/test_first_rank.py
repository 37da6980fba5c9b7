"""The others wait for rank 0, whose end of any kind is heard."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.rendezvous import first_rank
from dpbench.rendezvous.first_rank import on_first_rank
from tests.parallel.ranks import run_ranks

GROUP_TIMEOUT = timedelta(seconds=1)
SILENCE = timedelta(seconds=0.7)


def only_rank_0_works_and_has_the_result(rank: int) -> None:
    for number in range(3):  # each call is one of its own
        result = on_first_rank(lambda: number + dist.get_rank())  # noqa: B023
        assert result == (number if rank == 0 else None)


def nobody_goes_on_before_it_has_ended(rank: int) -> None:
    ended = on_first_rank(lambda: time.sleep(0.1) or time.monotonic())  # type: ignore[func-returns-value]
    left = time.monotonic()
    times: list[float] = [0.0, 0.0]
    dist.all_gather_object(times, ended or left)
    assert times[0] <= times[1]


def work_may_take_longer_than_a_collective(rank: int) -> None:
    first_rank.BEAT_SECONDS = 0.1
    impatient = dist.new_group(timeout=GROUP_TIMEOUT)
    slow = 1.5 * GROUP_TIMEOUT.total_seconds()
    on_first_rank(lambda: time.sleep(slow), process_group=impatient, silence=SILENCE)
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


def groups_have_turns_of_their_own(rank: int) -> None:
    pair = dist.new_group([0, 1])
    assert (on_first_rank(lambda: 5, process_group=pair) or 5) == 5


def nothing_is_left_in_the_store(rank: int) -> None:
    dist.barrier()
    turn = first_rank._Turn(dist.group.WORLD)  # type: ignore[arg-type]
    for number in range(1, turn._number):
        turn._number = number
        assert not any(turn._store.check([turn._key(what)]) for what in ("end", "beats", "left"))


def test_two_ranks_wait_for_the_first(tmp_path: Path) -> None:
    checks = [
        only_rank_0_works_and_has_the_result,
        nobody_goes_on_before_it_has_ended,
        work_may_take_longer_than_a_collective,
        what_rank_0_raises_is_heard_by_all,
        groups_have_turns_of_their_own,
        nothing_is_left_in_the_store,
    ]
    run_ranks(checks, tmp_path / "store")


def die_at_work(told: Path, rank: int) -> None:
    first_rank.BEAT_SECONDS = 0.1
    began = time.monotonic()
    try:
        on_first_rank(lambda: os.kill(os.getpid(), signal.SIGKILL), silence=SILENCE)
    except RuntimeError as error:
        told.write_text(f"{error}\n{time.monotonic() - began:.3f}")
    os._exit(1)


def test_a_first_rank_that_dies_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 0: died\nrank 1: died"):
        run_ranks(partial(die_at_work, tmp_path / "told"), tmp_path / "store")
    words, seconds = (tmp_path / "told").read_text().splitlines()
    assert words == (
        "cannot complete: rank 0, for which the others wait, has given no sign of life for 0.7 s"
    )
    assert 0.7 <= float(seconds) < 10


def test_it_needs_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="on_first_rank needs a process group"):
        on_first_rank(lambda: None)
