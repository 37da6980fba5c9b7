"""Collectives that real ranks measure, get wrong, or die in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.launch import collective_runner
from dpbench.launch.collective_runner import run_collective, self_test
from dpbench.launch.ranks import run_ranks
from dpbench.measure.collective_operation import CollectiveOperation, measure_collective
from dpbench.records.collectives import CollectiveRecord, SizeTiming
from dpbench.records.trial import Status
from dpbench.rendezvous.process_group import process_group
from dpbench.specs.collective import COLLECTIVES, CollectiveSpec
from tests.analysis.collective_records import collective_spec
from tests.builders import MACHINE

MANY = 8 * 9001
"""Bytes: more values than repeat, and the same on every rank."""


def measured(spec: CollectiveSpec, folder: Path) -> CollectiveRecord:
    return run_collective(spec, time_limit_seconds=20, logs=folder / "logs")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_measure_what_was_asked_for_with_the_largest_error_beside(
    backend: str, tmp_path: Path
) -> None:
    spec = collective_spec(backend=backend, sizes_bytes=(4, MANY), samples=3)
    record = measured(spec, tmp_path)
    assert (record.status, record.reason) == (Status.COMPLETED, None)
    assert len(record.ranks) == 2
    for timings in record.ranks:
        assert [timing.nbytes for timing in timings] == [4, MANY]
        assert all(len(timing.seconds) == 3 for timing in timings)
        assert all(timing.largest_error < 1e-6 for timing in timings)
    assert not (tmp_path / "logs").exists()


def all_checked(backend: str, rank: int) -> list[str | None]:
    """What is wrong with each collective as it is, then with each that moves nothing."""
    with process_group(backend, device="cpu"):
        operations = [
            CollectiveOperation(collective, MANY, torch.device("cpu")) for collective in COLLECTIVES
        ]
        found = [operation.check()[1] for operation in operations]
        for operation in operations:
            operation.__class__ = Idle
            found.append(operation.check()[1])
    return found


class Idle(CollectiveOperation):
    def __call__(self) -> None:
        """Leaves every tensor as it is."""


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_every_collective_is_right_and_would_be_found_wrong(backend: str, tmp_path: Path) -> None:
    ranks = run_ranks(partial(all_checked, backend), 2, tmp_path, 20)
    for rank, found in enumerate(ranks):
        assert found[:4] == [None] * 4
        wrong = dict(zip(COLLECTIVES, found[4:], strict=True))
        assert (wrong.pop("broadcast") is None) == (rank == 0)  # the root has it already
        assert None not in wrong.values()


class WrongOnRank1(CollectiveOperation):
    def __call__(self) -> None:
        super().__call__()
        if self.nbytes == MANY and dist.get_rank() == 1:
            self.whole[-1] += 1


def wrong_on_rank_1(spec: CollectiveSpec, rank: int) -> tuple[SizeTiming, ...]:
    from dpbench.measure import collective_operation as module

    module.CollectiveOperation = WrongOnRank1  # type: ignore[misc]
    return measure_collective(spec, rank)


def test_one_wrong_element_is_found_and_no_time_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_runner, "measure_collective", wrong_on_rank_1)
    record = measured(collective_spec(sizes_bytes=(4, MANY), samples=2), tmp_path)
    last = MANY // 4 - 1
    expected = (last % 8191 + 1) / 8191
    assert record.status is Status.FAILED
    assert (record.reason or "").startswith(
        f"rank 1 failed: all_reduce of {MANY:,} B gave {expected + 1:g} at element "
        f"{last}, expected {expected:g}"
    )
    assert record.ranks == ()


def broken(spec: CollectiveSpec, rank: int) -> None:
    """Takes the place of a rank's work."""
    raise RuntimeError(f"{spec.backend} is broken in rank {rank}")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_backend_of_the_cpu_works_between_two_ranks(backend: str) -> None:
    tested = self_test(backend, MACHINE)
    assert (tested.status, tested.reason) == (Status.COMPLETED, None)
    assert [len(timings) for timings in tested.ranks] == [1, 1]


def test_a_backend_whose_ranks_fail_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_runner, "measure_collective", broken)
    tested = self_test("gloo", MACHINE)
    assert (tested.status, tested.ranks) == (Status.FAILED, ())
    assert "RuntimeError: gloo is broken in rank" in (tested.reason or "")
