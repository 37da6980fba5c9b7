"""The self-test says that a backend works only if its sums are right."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.launch import selftest
from dpbench.launch.machine import Machine
from dpbench.launch.selftest import SelfTest, self_test

MACHINE = Machine(
    cores=2, gpus=(), cuda=None, missing_backends=(("nccl", "torch was built without nccl"),)
)


def broken(backend: str, rank: int) -> float:
    """Takes the place of a rank's work."""
    raise RuntimeError(f"{backend} is broken in rank {rank}")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_backend_of_the_cpu_works_between_two_ranks(backend: str) -> None:
    tested = self_test(backend, MACHINE)
    assert tested.passed, tested.reason
    assert (tested.ranks, tested.reason) == (2, None)
    assert tested.seconds is not None
    assert 1e-6 < tested.seconds < 1.0


def test_a_missing_backend_is_told_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(selftest, "run_ranks", started)
    assert self_test("nccl", MACHINE) == SelfTest(
        backend="nccl", passed=False, ranks=0, reason="torch was built without nccl"
    )


def test_a_backend_whose_ranks_fail_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_all_reduce", broken)
    tested = self_test("gloo", MACHINE)
    assert (tested.passed, tested.ranks, tested.seconds) == (False, 2, None)
    assert "RuntimeError: gloo is broken in rank" in (tested.reason or "")


def collectives(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Two ranks of which this is the first; an all-reduce multiplies by `factor`."""

    def nothing(*_: Any) -> None:
        pass

    def two_ranks(*_: Any, **__: Any) -> AbstractContextManager[SimpleNamespace]:
        return nullcontext(SimpleNamespace(size=2))

    monkeypatch.setattr(selftest, "process_group", two_ranks)
    monkeypatch.setattr(selftest.dist, "barrier", nothing)
    monkeypatch.setattr(selftest.dist, "all_reduce", lambda tensor: tensor.mul_(factor))


def test_a_right_sum_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    collectives(monkeypatch, 3.0)  # 1 + 2
    assert selftest._all_reduce("gloo", 0) > 0


@pytest.mark.parametrize(("factor", "sum_given"), [(1.0, "1.0"), (1.5, "1.5")])
def test_a_sum_that_is_missing_or_a_mean_is_an_error(
    monkeypatch: pytest.MonkeyPatch, factor: float, sum_given: str
) -> None:
    collectives(monkeypatch, factor)
    with pytest.raises(RuntimeError, match=f"all-reduce gave {sum_given}, expected 3.0"):
        selftest._all_reduce("gloo", 0)


def test_one_wrong_element_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    collectives(monkeypatch, 3.0)

    def nearly(tensor: torch.Tensor) -> None:
        tensor[:-1].mul_(3.0)

    monkeypatch.setattr(selftest.dist, "all_reduce", nearly)
    with pytest.raises(RuntimeError, match="all-reduce gave"):
        selftest._all_reduce("gloo", 0)
