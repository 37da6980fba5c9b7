"""The first cause of a failure, and from what ranks report to the status of the row."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpbench.launch.failures import (
    FailureKind,
    RankFailure,
    RanksFailed,
    failure_of_end,
    failure_of_exception,
    failure_of_hang,
)
from dpbench.launch.rank_process import main_thread_stack, stack_path
from dpbench.launch.trial_runner import record_of_ranks
from dpbench.measure import device
from dpbench.parallel.groups import PeerFailed
from dpbench.records.trial import RankMeasurement, Status, TrialFacts
from tests.analysis.builders import WRONG, rank, window
from tests.builders import configuration
from tests.recording_cuda import GPU, RecordingCuda

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


def raised(rank: int, message: str = "words", at_seconds: float = 1.0) -> RankFailure:
    return replace(failure_of_exception(rank, ValueError(message), 0.0), at_seconds=at_seconds)


LOST = replace(raised(0, "Broken pipe"), predicate="raised ValueError: Broken pipe")
WAITING = RankFailure(
    rank=0,
    kind=FailureKind.WAITED,
    predicate="was in all_reduce (c10d.py:1)",
    status=Status.TIMED_OUT,
)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([LOST, raised(1, at_seconds=2.0)], "rank 1 raised ValueError: words"),
        ([raised(0, "later", 2.0), raised(1, "first")], "rank 1 raised ValueError: first"),
        (
            [LOST, failure_of_end(1, -9)],
            "rank 1 was killed by SIGKILL (kill -9, or the kernel for lack of memory)",
        ),
        ([failure_of_end(1, -11)], "rank 1 was killed by SIGSEGV"),
        ([LOST, failure_of_end(1, 0)], "rank 1 ended without a result"),
        ([LOST], "rank 0 raised ValueError: Broken pipe"),
        # NCCL's watchdog aborts a rank that has lost its peer.
        ([failure_of_end(0, -6), failure_of_end(1, 7)], "rank 1 exited with status 7"),
        ([failure_of_end(0, -6)], "rank 0 was killed by SIGABRT"),
        ([failure_of_end(0, -15)], "rank 0 was killed by SIGTERM"),
        ([WAITING], "no result after 3 s: rank 0 was in all_reduce (c10d.py:1)"),
        ([], "the ranks left no trace"),
    ],
)
def test_the_first_cause_is_named(found: list[RankFailure], reason: str) -> None:
    failed = RanksFailed(found, 3)
    assert str(failed) == reason
    assert failed.outcome["killed"] == ("SIGKILL" in reason or "SIGTERM" in reason)
    assert (failed.outcome["status"] is Status.TIMED_OUT) == reason.startswith("no result")


@pytest.mark.parametrize("stack", [IN_ALL_REDUCE, ""])
def test_of_hung_ranks_the_one_outside_a_collective_is_named(tmp_path: Path, stack: str) -> None:
    stack_path(tmp_path, 0).write_text(stack)
    for second, place in (
        ("", "did not respond"),
        (HUNG_IN_USER_CODE, "was in loss (model.py:12)"),
    ):
        stack_path(tmp_path, 1).write_text(second)
        hung = [failure_of_hang(rank, main_thread_stack(tmp_path, rank)) for rank in range(2)]
        first = "rank 0 did not respond; " if not stack else ""
        reason = f"no result after 3 s: {first}rank 1 {place}"
        assert str(RanksFailed(hung, 3)) == reason


def test_a_rank_has_the_name_that_the_caller_gives_it() -> None:
    far = failure_of_exception(2, ValueError("broken"), time.monotonic())
    near = raised(0, at_seconds=60.0)
    failed = RanksFailed([near, far], 10, name=lambda rank: f"rank {rank} on host{rank // 2}")
    assert str(failed) == "rank 2 on host1 raised ValueError: broken"
    assert failed.cause == far


def test_a_lost_connection_is_known_by_its_words() -> None:
    gone = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5"
    reset = ConnectionResetError(104, "Connection reset by peer")
    for error in (RuntimeError(gone), reset, PeerFailed("all_reduce cannot complete")):
        assert failure_of_exception(0, error, 0.0).kind is FailureKind.LOST_PEER
    assert failure_of_exception(0, ValueError("broken"), 0.0).kind is FailureKind.RAISED


def test_the_place_of_an_error_is_the_users_line_that_called_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IndexError) as raised:
        torch.nn.functional.cross_entropy(torch.zeros(1, 4), torch.tensor([9]))
    words = failure_of_exception(0, raised.value, 0.0).predicate
    assert re.search(r" \(tests/launch/test_failures.py, line \d+\)$", words)
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "test_failures.py, line" in failure_of_exception(0, raised.value, 0.0).predicate


def test_lack_of_memory_is_a_status_of_its_own() -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 B")
    failed = RanksFailed([failure_of_exception(1, error, 0.0)], 3)
    assert failed.outcome["status"] is Status.OUT_OF_MEMORY
    assert str(failed).startswith(
        "rank 1 ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: you "
    )
    assert re.search(r"; its peak was \d[\d.]* [MG]iB on the host; take ", str(failed))


def test_lack_of_memory_on_a_gpu_gives_the_peak_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cuda", RecordingCuda(peak={GPU: 3 * 2**30}))
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    words = failure_of_exception(0, error, 0.0).predicate
    assert re.search(r"its peak was 3 GiB on cuda:1 and \d[\d.]* [MG]iB on the host; take", words)


def measured(
    number: int = 0, losses: Sequence[float] = (2.0, 1.5, 1.0), checksum: str = "same"
) -> RankMeasurement:
    timed = window((0.1,) * len(losses), 12, losses)
    return rank(number, timed, final_checksum=checksum)


def test_ranks_that_agree_are_a_completed_trial_with_all_they_measured() -> None:
    outcome = record_of_ranks(configuration(), [measured(0), measured(1)])
    assert (outcome.status, outcome.reason) == (Status.COMPLETED, None)
    assert [rank.rank for rank in outcome.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "position", "named"), [(math.nan, 0, 1), (math.inf, 2, 3), (-math.inf, 2, 3)]
)
def test_a_loss_that_is_not_finite_is_a_divergence_from_that_step_on(
    bad: float, position: int, named: int
) -> None:
    losses = [2.0, 1.5, 1.0]
    losses[position] = bad
    outcome = record_of_ranks(configuration(), [measured(0), measured(1, losses)])
    assert outcome.status is Status.DIVERGED
    assert outcome.reason == f"the loss is not finite at timed step {named}"
    assert len(outcome.ranks) == 2  # what was measured is kept


@pytest.mark.parametrize(
    ("implementation", "backend", "status", "reason"),
    [
        (
            *("ddp", "gloo", Status.WRONG_GRADIENTS),
            "replicas hold different parameters after the timed window",
        ),
        ("independent", "none", Status.COMPLETED, None),
    ],
)
def test_replicas_that_ended_apart_had_wrong_gradients_unless_they_are_independent(
    implementation: str, backend: str, status: Status, reason: str | None
) -> None:
    settings = configuration(implementation=implementation, backend=backend)
    outcome = record_of_ranks(settings, [measured(0, checksum="a"), measured(1, checksum="b")])
    assert (outcome.status, outcome.reason) == (status, reason)


def test_a_verification_that_did_not_pass_is_that_of_wrong_gradients() -> None:
    first = replace(measured(0), facts=TrialFacts(verification=WRONG))
    outcome = record_of_ranks(configuration(), [first, measured(1)])
    assert outcome.status is Status.WRONG_GRADIENTS
    words = "gradients differ from one process by 0.25 relative (tolerance 1e-06), worst in conv1.w"
    assert (outcome.reason or "").startswith(words)
