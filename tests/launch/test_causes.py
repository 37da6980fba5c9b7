"""The first cause of a failure, from what the ranks have left."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from dpbench.launch import causes
from dpbench.launch.causes import RankTrace, Stuck, collect, explain
from dpbench.launch.rank import Failure, describe, failure_path, stack_path
from dpbench.records.trial import Status

TORCH = Path(torch.__file__).parent
HUNG_IN_USER_CODE = """Timeout (0:00:03)!
Thread 0x00007f (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait
Thread 0x00008f (most recent call first):
  File "/home/me/model.py", line 12 in loss
  File "/venv/dpbench/measure/step.py", line 70 in step
"""
IN_ALL_REDUCE = f"""Timeout (0:00:03)!
Thread 0x00008f (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3052 in all_reduce
  File "/home/me/model.py", line 12 in loss
"""
IN_OUR_REDUCER = f"""Timeout (0:00:03)!
Thread 0x00008f (most recent call first):
  File "{Path(causes.__file__).parents[1]}/parallel/ddp/buckets.py", line 259 in wait
  File "{TORCH}/autograd/graph.py", line 824 in _engine_run_backward
"""


def failure(
    rank: int, text: str = "words", at_seconds: float = 1.0, *, lost: bool = False
) -> Failure:
    return Failure(rank, at_seconds, "E", text, "", lost_peer=lost, out_of_memory=False)


def trace(rank: int, **changes: object) -> RankTrace:
    return RankTrace(rank=rank, **changes)  # type: ignore[arg-type]


LOST = trace(0, failure=failure(0, lost=True), exit_code=1)
WAITING = trace(0, stuck=Stuck(place="all_reduce (c10d.py:1)", waiting=True))
GONE = "node 1 (host1) was lost: no sign of life for 10 s"


@pytest.mark.parametrize(
    ("traces", "outside", "reason"),
    [
        ([LOST, trace(1, failure=failure(1, at_seconds=2.0))], None, "rank 1 raised E: words"),
        (
            [trace(0, failure=failure(0, "later", 2.0)), trace(1, failure=failure(1, "first"))],
            None,
            "rank 1 raised E: first",
        ),
        (
            [LOST, trace(1, exit_code=-9)],
            None,
            "rank 1 was killed by SIGKILL (kill -9, or the kernel for lack of memory)",
        ),
        ([trace(0, aborted=True), trace(1, exit_code=-11)], None, "rank 1 was killed by SIGSEGV"),
        ([LOST, trace(1)], None, "rank 1 ended without a result"),
        ([LOST, trace(1, done=True)], None, "rank 0 raised E: words"),
        # NCCL's watchdog aborts a rank that has lost its peer.
        ([trace(0, exit_code=-6), trace(1, exit_code=7)], None, "rank 1 exited with status 7"),
        ([trace(0, exit_code=-6)], None, "rank 0 was killed by SIGABRT"),
        ([trace(0, exit_code=-15)], None, "rank 0 was killed by SIGTERM"),
        ([LOST, trace(1, exit_code=-6)], GONE, GONE),
        ([LOST, trace(1, failure=failure(1))], GONE, "rank 1 raised E: words"),
        (
            [WAITING, trace(1, done=True)],
            None,
            "no result after 3 s: rank 0 was in all_reduce (c10d.py:1)",
        ),
        ([], None, "the ranks ended without a trace"),
    ],
)
def test_the_first_cause_is_named(
    traces: list[RankTrace], outside: str | None, reason: str
) -> None:
    outcome = explain(traces, 3, outside=outside)
    assert outcome.reason == reason
    assert outcome.from_outside == ("SIGKILL" in reason or "SIGTERM" in reason)
    assert (outcome.status is Status.TIMED_OUT) == reason.startswith("no result")


@pytest.mark.parametrize(
    ("stack", "waited"),
    [
        (IN_ALL_REDUCE, "; rank 0 waited in all_reduce"),
        (IN_OUR_REDUCER, "; rank 0 waited in the all-reduce of gradients"),
        ("", ""),
    ],
)
def test_of_hung_ranks_the_one_outside_a_collective_is_named(
    tmp_path: Path, stack: str, waited: str
) -> None:
    stack_path(tmp_path, 0).write_text(stack)
    for second, place in (
        ("", "did not respond"),
        (HUNG_IN_USER_CODE, "was in loss (model.py:12)"),
    ):
        stack_path(tmp_path, 1).write_text(second)
        overdue = {1} if stack else {0, 1}
        found = explain(collect(tmp_path, range(2), 0.5, exit_codes={}, overdue=overdue), 3)
        first = "rank 0 did not respond; " if not (stack or second) else ""
        assert found.reason == f"no result after 3 s: {first}rank 1 {place}{waited}"


def test_times_count_from_the_start_on_each_host(tmp_path: Path) -> None:
    left = {**asdict(describe(2, ValueError("broken"))), "at_seconds": 1003.0}
    failure_path(tmp_path, 2).write_text(json.dumps(left))
    (far,) = collect(tmp_path, (2,), 1000.0, exit_codes={})
    assert far.failure is not None
    assert far.failure.at_seconds == 3.0
    near = trace(0, failure=failure(0, at_seconds=4.0))
    named = explain([near, far], 10, name=lambda rank: f"rank {rank} on host{rank // 2}")
    assert named.reason == "rank 2 on host1 raised ValueError: broken"
    assert named.raised == far.failure


@pytest.mark.parametrize(
    ("error", "lost_peer"),
    [
        (
            RuntimeError(
                "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5"
            ),
            True,
        ),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (ValueError("broken"), False),
    ],
)
def test_a_lost_connection_is_known_by_its_words(error: Exception, lost_peer: bool) -> None:
    assert describe(0, error).lost_peer == lost_peer


def test_lack_of_memory_is_a_status_of_its_own() -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 B")
    outcome = explain([trace(0), trace(1, failure=describe(1, error), exit_code=1)], 3)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert re.fullmatch(
        r"rank 1 ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: .*; "
        r"it had held [\d.]+ [MG]iB of host memory at most; take a smaller batch or message, "
        r"or end what else holds memory there",
        outcome.reason or "",
    )
