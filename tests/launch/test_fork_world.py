"""Worlds from one line: their results, and what is said when they fail."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import dpbench
from dpbench.launch.failures import RanksFailed, failure_of_end
from dpbench.launch.fork_world import fork_world, world_report
from dpbench.rendezvous.placement import STORE_FILE
from tests.waiting import is_alive

LIMIT = timedelta(seconds=60)
SIX = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
world = partial(fork_world, timeout=LIMIT)


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    before = [os.environ.get(name) for name in SIX]
    yield
    assert [os.environ.get(name) for name in SIX] == before
    children = psutil.Process().children(recursive=True)
    left = [process.cmdline() for process in children if is_alive(process.pid)]
    assert not [line for line in left if "--multiprocessing-fork" in line]


def variables(rank: int) -> dict[str, str]:
    assert rank == int(os.environ["RANK"])
    return {name: os.environ[name] for name in SIX}


@pytest.mark.parametrize(("start_method", "size"), [("forkserver", 2), ("fork", 2), ("spawn", 1)])
def test_each_rank_has_all_six_variables_by_every_method(start_method: str, size: int) -> None:
    found = world(variables, size, start_method=start_method)
    ports = {rank["MASTER_PORT"] for rank in found}
    assert len(ports) == 1
    for number, rank in enumerate(found):
        assert rank == {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": ports.copy().pop(),
        }


def reduced(rank: int) -> dict[str, Any]:
    with dpbench.process_group("gloo"):
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor)
        print(f"hello from {rank}")
        # Words that a launcher might take for its own.
        return {"error": tensor, "failures": {rank: bytes(1_000_000)}}


def nested(_: int) -> list[int]:
    with pytest.raises(ValueError, match="a rank cannot be forked again; take forkserver"):
        world(int, 2, start_method="fork")
    return world(int, 2)


def test_results_come_back_in_order_whatever_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = fork_world(reduced, 2, timeout=timedelta.max)
    assert first["error"].item() == second["error"].item() == 3.0
    assert second["failures"] == {1: bytes(1_000_000)}
    assert set(capfd.readouterr().out.splitlines()) == {
        "[rank 0] hello from 0",
        "[rank 1] hello from 1",
    }
    assert world(nested, 1) == [[0, 1]]  # a second world has its own results
    assert world(lambda rank: rank * 2, 3, start_method="fork") == [0, 2, 4]


def test_a_world_inside_of_a_launch_has_a_store_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(STORE_FILE, str(tmp_path / "store of the launch"))
    assert world(lambda _: os.environ[STORE_FILE], 1, start_method="fork") == [""]


def raises(rank: int) -> None:
    print("so far")
    dist.init_process_group("gloo")
    if rank == 1:
        raise ValueError("no such thing\nof two lines")
    dist.barrier()


def is_killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def returns_a_lambda(_: int) -> Callable[[], int]:
    return lambda: 1


@pytest.mark.parametrize(
    ("function", "first_line"),
    [
        (raises, "rank 1 raised ValueError: no such thing (tests/launch/test_fork_world.py, line "),
        (is_killed, "rank 1 was killed by SIGKILL"),
        (returns_a_lambda, "rank 0 raised "),
    ],
)
def test_the_first_cause_is_told_at_once(
    function: Callable[[int], Any], first_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError) as failed:
        world(function, 2 if function is not returns_a_lambda else 1)
    lines = str(failed.value).splitlines()
    assert lines[0].startswith(first_line)
    if function is raises:
        assert lines[2].startswith("Traceback")
        assert "ValueError: no such thing" in lines
        assert lines[-1].startswith("after it, rank 0 raised ")
        assert "[rank 1] so far" in capfd.readouterr().out


def one_sleeps(rank: int) -> None:
    if rank == 1:
        time.sleep(60)
    dist.init_process_group("gloo")


def test_at_the_time_limit_every_rank_says_where_it_is() -> None:
    with pytest.raises(RuntimeError) as failed:
        fork_world(one_sleeps, 2, timeout=timedelta(seconds=3))
    first, *_ = str(failed.value).splitlines()
    assert first.startswith("no result after 3 s: rank 1 was in one_sleeps (test_fork_world.py:")
    places = str(failed.value).split("\n\n")[1:]
    assert [place.partition("\n")[0] for place in places] == [
        "rank 0 was here (most recent call first):",
        "rank 1 was here (most recent call first):",
    ]
    assert "in init_process_group" in places[0]
    assert places[1].count("\n") == 1  # the function alone, and nothing of what called it


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((int, 0), {}, ValueError, "\n1\n  Input should be greater than or equal to 1 .*value=0"),
        ((int, "2"), {}, ValueError, "\n1\n  Input should be a valid integer .*value='2'"),
        ((None, 2), {}, ValueError, "\n0\n  Input should be callable"),
        ((int, 2), {"start_method": "x"}, ValueError, "start_method\n .* 'forkserver', 'spawn' or"),
        ((int, 2), {"timeout": timedelta()}, ValueError, "timeout\n  Input should be greater than"),
        ((lambda rank: rank, 2), {}, TypeError, "<lambda> cannot be sent .* define it with `def`"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(error, match=words):
        fork_world(*arguments, **options)
    assert psutil.Process().children(recursive=True) == before


def test_a_script_without_a_guard_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its ranks import it, come to its call, and end; here the two halves, without the ranks."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit):
        fork_world(math.sqrt, 2)
    words = world_report(RanksFailed([failure_of_end(0, 1)]), tmp_path, 2)
    assert words.startswith("rank 0 exited with status 1, before its function began")
    assert 'under `if __name__ == "__main__":`' in words
