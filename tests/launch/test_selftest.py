"""The self-test says that a backend works only if its sums are right."""

from __future__ import annotations

import pytest

from dpbench.launch import collectives
from dpbench.launch.machine import Machine
from dpbench.launch.selftest import self_test
from dpbench.records.collectives import CollectiveSpec

MACHINE = Machine(
    cores=2, gpus=(), cuda=None, missing_backends=(("nccl", "torch was built without nccl"),)
)


def broken(spec: CollectiveSpec, rank: int) -> None:
    """Takes the place of a rank's work."""
    raise RuntimeError(f"{spec.backend} is broken in rank {rank}")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_backend_of_the_cpu_works_between_two_ranks(backend: str) -> None:
    tested = self_test(backend, MACHINE)
    assert tested.passed, tested.reason
    assert (tested.ranks, tested.reason) == (2, None)
    assert tested.seconds is not None
    assert tested.seconds > 0


def test_a_backend_whose_ranks_fail_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "measure_collective", broken)
    tested = self_test("gloo", MACHINE)
    assert (tested.passed, tested.ranks, tested.seconds) == (False, 2, None)
    assert "RuntimeError: gloo is broken in rank" in (tested.reason or "")
