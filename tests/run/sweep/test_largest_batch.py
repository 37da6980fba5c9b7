"""`--batch-sizes max`: what is tried, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpbench.errors import UsageError
from dpbench.launch.cluster import Node
from dpbench.launch.machine import Machine
from dpbench.messages import said_to
from dpbench.options.sweep import SweepOptions
from dpbench.records.environment import Accelerator
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep import largest_batch
from dpbench.run.sweep.largest_batch import NOISE_BYTES, by_predicting, with_largest_batch
from dpbench.specs import TrialSpec
from tests.builders import HERE, MACHINE
from tests.launch.synthetic import SyntheticRunner

MIB = 2**20
OPTIONS = {"arch": "mlp", "data": "synthetic", "group_sizes": "1,2"}
Found = Callable[..., tuple[int | str, ...]]
NOTES: list[str] = []


class Filling(SyntheticRunner):
    """100 MiB and one more a sample; above 1000 MiB memory runs out."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialRecord:
        peak = (100 + trial.batch_size) * MIB
        if peak > 1000 * MIB:
            return TrialRecord(trial=trial, status=Status.OUT_OF_MEMORY, reason="too large")
        outcome = super().run(trial, time_limit_seconds)
        ranks = tuple(replace(rank, peak_host_memory_bytes=peak) for rank in outcome.ranks)
        return replace(outcome, ranks=ranks)


class Failing(Filling):
    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialRecord:
        return TrialRecord(trial=trial, status=Status.FAILED, reason="no such layer")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setattr(largest_batch, "TrialRunner", Filling)
    free = SimpleNamespace(available=2000 * MIB, total=2000 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)

    def search(machine: Machine = MACHINE, **typed: str) -> tuple[int | str, ...]:
        devices = tuple(f"cuda:{gpu.index}" for gpu in machine.gpus) or ("cpu", "cpu")
        host = Node(number=0, machine=machine, devices=devices, common={})
        NOTES.clear()
        with said_to(NOTES.append):
            return with_largest_batch(SweepOptions(**OPTIONS | typed), host).batch_sizes

    return search


def test_the_replicas_of_the_largest_group_share_half_of_the_free_memory(
    found: Found,
) -> None:
    assert found(batch_sizes="8,max") == (8, 400)  # 100 + 400 MiB of 2000 × 50 % ÷ 2
    assert NOTES[0] == "--batch-sizes max: 2 takes 102 MiB"
    assert NOTES[-1] == "--batch-sizes max: 400 for dp"
    assert found(batch_sizes="max", group_sizes="1") == (900,)


def test_a_replica_takes_most_of_the_memory_of_its_gpu(found: Found) -> None:
    gpus = tuple(Accelerator(index=n, name="H100", memory_bytes=1000 * MIB) for n in (0, 1))
    two = Machine(environment=replace(HERE, accelerators=gpus, cuda="12.8"))
    assert found(two, batch_sizes="max") == (700,)  # 100 + 700 MiB of 1000 × 80 %


def test_a_failure_that_is_not_of_memory_ends_the_search(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(largest_batch, "TrialRunner", Failing)
    with pytest.raises(UsageError, match="batch 2 failed: no such layer"):
        found(batch_sizes="max")


def test_nothing_fits_where_the_first_does_not() -> None:
    assert by_predicting(lambda _: 100, 99, 100) is None


@settings(max_examples=60)
@example(base=1521, per_sample=738156483, budget=2945, most=7)
@given(
    base=st.integers(1, 2000),
    per_sample=st.integers(1, 2**30),
    budget=st.integers(2500, 10**5),
    most=st.integers(2, 10**6),
)
def test_on_a_line_no_batch_above_the_budget_is_measured_or_predicted(
    base: int, per_sample: int, budget: int, most: int
) -> None:
    measured: list[int] = []

    def peak(batch_size: int) -> int:
        measured.append(batch_size)
        return base * MIB + per_sample * batch_size

    found = by_predicting(peak, budget * MIB, most)
    if found is None:
        assert measured == [2]
        assert peak(2) > budget * MIB
        return
    assert found <= most
    assert peak(found) <= budget * MIB
    # Not far below it either, where samples weigh more than what equal runs differ by.
    if per_sample * measured[-2] > 2 * NOISE_BYTES and len(measured) > 2:
        assert found == most or peak(found + 1) > budget * MIB
