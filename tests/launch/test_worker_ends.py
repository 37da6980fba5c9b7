"""The ends of workers as torch reports them: which was the first cause, and its last lines."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dpbench.launch.torchrun import LAST_LINES, ends_of

LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:2"


def failure(rank: int, exit_code: int, at_seconds: int) -> ProcessFailure:
    made = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=exit_code, error_file="none")
    made.timestamp = at_seconds
    return made


def say(logs: Path, rank: int, text: str, attempt: int = 0) -> None:
    folder = logs / "run_x" / f"attempt_{attempt}" / str(rank)
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(text)


def test_a_rank_that_lost_its_peer_comes_after_the_one_that_was_lost(tmp_path: Path) -> None:
    say(tmp_path, 0, f"Traceback\n{LOST}\n")
    say(tmp_path, 1, "Traceback\nValueError: no such thing\n")
    ends = ends_of({0: failure(0, 1, 5), 1: failure(1, 1, 6)}, tmp_path)
    assert [end.rank for end in ends] == [1, 0]
    assert [end.lost_peer for end in ends] == [False, True]
    assert ends[0].last_lines == ("Traceback", "ValueError: no such thing")


def test_who_only_lost_a_peer_is_named_if_nobody_else_failed(tmp_path: Path) -> None:
    say(tmp_path, 2, LOST)
    ends = ends_of({2: failure(2, 1, 5), 3: failure(3, -signal.SIGTERM, 6)}, tmp_path)
    assert [str(end) for end in ends] == ["rank 2 exited with status 1"]


def test_those_that_the_launcher_ended_are_left_out(tmp_path: Path) -> None:
    failures = {
        0: failure(0, -signal.SIGTERM, 7),
        1: failure(1, 7, 5),
        2: failure(2, -signal.SIGKILL, 37),
    }
    assert [end.rank for end in ends_of(failures, tmp_path)] == [1]


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (7, "rank 1 exited with status 7"),
        (-9, "rank 1 was killed by SIGKILL (kill -9, or the kernel for lack of memory)"),
        (-11, "rank 1 was killed by SIGSEGV"),
        (-64, "rank 1 was killed by SIGRTMAX"),
        (-100, "rank 1 was killed by signal 100"),
    ],
)
def test_an_end_is_told_by_its_status_or_its_signal(
    exit_code: int, words: str, tmp_path: Path
) -> None:
    (end,) = ends_of({1: failure(1, exit_code, 5)}, tmp_path)
    assert str(end) == words
    assert end.last_lines == ()


def test_the_last_lines_are_those_of_the_last_attempt(tmp_path: Path) -> None:
    say(tmp_path, 1, "old", attempt=0)
    say(tmp_path, 1, "\n".join(f"line {number}" for number in range(1, 101)), attempt=1)
    (end,) = ends_of({1: failure(1, 1, 5)}, tmp_path)
    assert len(end.last_lines) == LAST_LINES
    assert end.last_lines[-1] == "line 100"
