from __future__ import annotations

import json
import re
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from dpbench.launch import causes
from dpbench.launch.causes import RankTrace, Stuck, collect, explain
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.rank import Failure, describe, failure_path, stack_path
from dpbench.records.trial import Status

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5")
HUNG_IN_USER_CODE = """Timeout (0:00:03)!
Thread 0x00007f (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait
Thread 0x00008f (most recent call first):
  File "/home/me/model.py", line 12 in loss
  File "/venv/dpbench/measure/step.py", line 70 in step
"""
WAITING = f"""Timeout (0:00:03)!
Thread 0x00008f (most recent call first):
  File "{Path(torch.__file__).parent}/autograd/graph.py", line 824 in _engine_run_backward
  File "/home/me/model.py", line 12 in loss
"""


def leave(scratch: Path, rank: int, error: BaseException, at_seconds: float) -> None:
    failure = {**asdict(describe(rank, error)), "at_seconds": at_seconds}
    failure_path(scratch, rank).write_text(json.dumps(failure))


def explained(
    scratch: Path, exit_codes: dict[int, int], limit: float = 10, **ended: set[int]
) -> TrialOutcome:
    """Of two ranks on one host."""
    return explain(collect(scratch, range(2), 0.5, exit_codes=exit_codes, **ended), limit)


def test_a_lost_connection_is_never_the_first_cause(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST, at_seconds=1.0)
    leave(tmp_path, 1, ValueError("broken"), at_seconds=2.0)
    outcome = explained(tmp_path, {0: 1})
    assert outcome.status is Status.FAILED
    assert outcome.reason == "rank 1 raised ValueError: broken"
    assert outcome.raised is not None
    assert (outcome.raised.rank, outcome.raised.kind) == (1, "ValueError")
    assert outcome.raised.text == "broken"


def test_the_earliest_of_several_exceptions_is_the_cause(tmp_path: Path) -> None:
    leave(tmp_path, 0, ValueError("later"), at_seconds=2.0)
    leave(tmp_path, 1, ValueError("first"), at_seconds=1.0)
    assert explained(tmp_path, {}).reason == "rank 1 raised ValueError: first"


def test_a_killed_rank_is_the_cause_of_its_peers_lost_connection(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST, at_seconds=1.0)
    outcome = explained(tmp_path, {1: -9})
    assert outcome.reason == (
        "rank 1 was killed by SIGKILL (kill -9, or the kernel for lack of memory)"
    )
    assert outcome.from_outside


def test_a_crash_does_not_come_from_outside(tmp_path: Path) -> None:
    outcome = explained(tmp_path, {1: -signal.SIGSEGV})
    assert outcome.reason == "rank 1 was killed by SIGSEGV"
    assert not outcome.from_outside


def test_an_exit_status_is_named(tmp_path: Path) -> None:
    outcome = explained(tmp_path, {1: 7})
    assert outcome.reason == "rank 1 exited with status 7"


def test_a_rank_that_left_with_status_zero_is_named(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST, at_seconds=1.0)
    outcome = explained(tmp_path, {0: 1})
    assert outcome.reason == "rank 1 ended without a result"


def test_a_lost_connection_is_told_when_it_is_all_there_is(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST, at_seconds=1.0)
    outcome = explained(tmp_path, {0: 1}, done={1})
    assert "rank 0 raised RuntimeError" in (outcome.reason or "")


def test_of_hung_ranks_the_one_outside_torch_is_named(tmp_path: Path) -> None:
    stack_path(tmp_path, 0).write_text(WAITING)
    stack_path(tmp_path, 1).write_text(HUNG_IN_USER_CODE)
    outcome = explained(tmp_path, {0: 1}, 3)
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == "no result after 3 s: rank 1 was in loss (model.py:12)"


def test_a_rank_that_could_not_even_dump_its_stack_is_named(tmp_path: Path) -> None:
    stack_path(tmp_path, 0).write_text(WAITING)
    outcome = explained(tmp_path, {1: -9}, 3)
    assert outcome.reason == "no result after 3 s: rank 1 did not respond"


IN_ALL_REDUCE = f"""Timeout (0:00:03)!
Thread 0x00008f (most recent call first):
  File "{Path(torch.__file__).parent}/distributed/distributed_c10d.py", line 3052 in all_reduce
  File "{Path(torch.__file__).parent}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/model.py", line 12 in loss
"""
IN_OUR_REDUCER = f"""Timeout (0:00:03)!
Thread 0x00008f (most recent call first):
  File "{Path(causes.__file__).parents[1]}/parallel/ddp/buckets.py", line 259 in wait
  File "{Path(torch.__file__).parent}/autograd/graph.py", line 824 in _engine_run_backward
"""


@pytest.mark.parametrize(
    ("stack", "collective"),
    [(IN_ALL_REDUCE, "all_reduce"), (IN_OUR_REDUCER, "the all-reduce of gradients")],
)
def test_beside_the_absent_rank_the_collective_is_named_in_which_others_waited(
    tmp_path: Path, stack: str, collective: str
) -> None:
    stack_path(tmp_path, 0).write_text(stack)
    waited = f"; rank 0 waited in {collective}"
    silent = explained(tmp_path, {1: -9}, 3)
    assert silent.reason == f"no result after 3 s: rank 1 did not respond{waited}"
    stack_path(tmp_path, 1).write_text(HUNG_IN_USER_CODE)
    elsewhere = explained(tmp_path, {0: 1}, 3)
    assert elsewhere.reason == f"no result after 3 s: rank 1 was in loss (model.py:12){waited}"


def failure(rank: int, at_seconds: float, *, lost_peer: bool) -> Failure:
    return Failure(rank, at_seconds, "E", "words", "", lost_peer=lost_peer, out_of_memory=False)


def reason(*traces: RankTrace, outside: str | None = None) -> str | None:
    """Of ranks of two hosts."""
    return explain(
        traces, 10, name=lambda rank: f"rank {rank} on host{rank // 2}", outside=outside
    ).reason


def test_over_hosts_the_earliest_cause_counts_from_the_start_on_its_host(tmp_path: Path) -> None:
    leave(tmp_path, 2, ValueError("broken"), at_seconds=1003.0)
    (far,) = collect(tmp_path, (2,), 1000.0, exit_codes={})
    assert far.failure is not None
    assert far.failure.at_seconds == 3.0
    near = RankTrace(rank=0, failure=failure(0, 4.0, lost_peer=False))
    assert reason(near, far) == "rank 2 on host1 raised ValueError: broken"


LOST_ITS_PEER = RankTrace(rank=0, failure=failure(0, 1.0, lost_peer=True), exit_code=1)


def test_a_rank_that_was_stopped_is_no_cause() -> None:
    stopped = RankTrace(rank=1, exit_code=-9, aborted=True)
    killed = RankTrace(rank=2, exit_code=-9)
    assert (reason(LOST_ITS_PEER, stopped, killed) or "").startswith(
        "rank 2 on host1 was killed by SIGKILL"
    )


def test_a_watchdog_that_aborts_its_rank_is_a_consequence_of_an_end_elsewhere() -> None:
    aborted, exited = RankTrace(rank=0, exit_code=-6), RankTrace(rank=3, exit_code=7)
    assert reason(aborted, exited) == "rank 3 on host1 exited with status 7"
    assert reason(aborted) == "rank 0 on host0 was killed by SIGABRT"


def test_a_lost_host_is_the_cause_of_what_others_lost_but_not_of_their_own_errors() -> None:
    lost = "node 1 (host1) was lost: no sign of life for 10 s"
    watchdog = RankTrace(rank=1, exit_code=-6)
    assert reason(LOST_ITS_PEER, watchdog, outside=lost) == lost
    own = RankTrace(rank=1, failure=failure(1, 0.5, lost_peer=False))
    assert reason(LOST_ITS_PEER, own, outside=lost) == "rank 1 on host0 raised E: words"


def test_a_rank_that_had_its_result_is_not_said_to_be_silent() -> None:
    waiting = RankTrace(rank=0, stuck=Stuck(place="all_reduce (c10d.py:1)", waiting=True))
    assert reason(waiting, RankTrace(rank=2, done=True)) == (
        "no result after 10 s: rank 0 on host0 was in all_reduce (c10d.py:1)"
    )


def test_lack_of_memory_is_a_status_of_its_own(tmp_path: Path) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 B")
    leave(tmp_path, 1, error, at_seconds=1.0)
    outcome = explained(tmp_path, {1: 1}, 3)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert re.fullmatch(
        r"rank 1 ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: .*; "
        r"it had held [\d.]+ [MG]iB of host memory at most; take a smaller batch or message, "
        r"or end what else holds memory there",
        outcome.reason or "",
    )
