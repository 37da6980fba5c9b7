"""One rank's part of a trial in this very process: dp and single need no process group."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.data.datasets import Dataset, Splits
from dpbench.measure import trial as trials
from dpbench.measure.batches import StepSamples
from dpbench.measure.instruments import PHASE_STEPS, TRACED_STEPS
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.trial import measure_trial
from dpbench.measure.verification import checksum
from dpbench.parallel.agreement import tensors_sha256
from dpbench.records.trial import MemoryPeaks, RankMeasurement, TrialFacts
from dpbench.specs import Configuration
from dpbench.specs.configuration import MAX_FILLING_STEPS
from dpbench.specs.workload import WORKLOAD_FIELDS
from tests.builders import WORKLOAD, configuration
from tests.launch.faulty import Healthy

HERE = "tests.measure.test_trial"


class Counting(Healthy):
    """Notes how many samples each replica was given, and each loss, in float32 (not verified)."""

    replicas: list[int] = []  # noqa: RUF012 - the trial makes its own instance of the class
    losses: list[int] = []  # noqa: RUF012

    def build_model(self) -> torch.nn.Module:
        class Noted(torch.nn.Linear):
            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                if inputs.dtype == torch.float32:
                    Counting.replicas.append(len(inputs))
                return super().forward(inputs)

        return Noted(4, 2)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.dtype == torch.float32:
            Counting.losses.append(len(outputs))
        return super().loss(outputs, targets)


class Classes(Healthy):
    """Takes the stored kind of dataset: float32 inputs, int64 classes."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)


class Drops(Healthy):
    """Draws random numbers in every step, and counts its steps in a buffer."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 2),
        )


class Synchronized(Drops):
    """Has a layer that communicates in the forward pass, which it leaves out on the CPU."""

    def build_model(self) -> torch.nn.Module:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(super().build_model())
        model[1].eval()
        return model


@pytest.fixture(autouse=True)
def _counted_from_here() -> None:
    Counting.replicas.clear()
    Counting.losses.clear()


@pytest.fixture
def ten_samples(tmp_path: Path) -> Path:
    inputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    ten = Dataset(inputs=inputs, targets=torch.arange(10) % 2)
    Splits(train=ten, test=ten).save(tmp_path / "digits.pt")
    return tmp_path


def single(architecture: str = "Counting", **changes: Any) -> Configuration:
    named = architecture if architecture == "mlp" else f"{HERE}:{architecture}"
    own = {n: changes.pop(n) for n in [*changes] if n in WORKLOAD_FIELDS}
    workload = replace(WORKLOAD, **{"architecture": named, "dataset": "synthetic", **own})
    alone = {"implementation": "single", "backend": "none", "group_size": 1}
    values = {**alone, "is_instrumented": False, **changes}
    return configuration(workload=workload, **values)


def dp(replicas: int, architecture: str = "Counting", **changes: Any) -> Configuration:
    own = {"implementation": "dp", "backend": "threads", "group_size": replicas}
    return single(architecture, **own, **changes)


def measured(
    settings: Configuration, prepared: Path | None = None, repetition: int = 1
) -> RankMeasurement:
    """By default in the second repetition, which only has windows."""
    return measure_trial(settings, repetition, prepared, 0)


def facts_of(rank: RankMeasurement) -> TrialFacts:
    assert rank.facts is not None
    return rank.facts


def test_a_window_that_fills_a_time_has_as_many_steps_as_the_warm_up_suggests() -> None:
    rank = measured(single(warmup=4, steps=5, window_seconds=1e-9))
    assert rank.timed.samples == 5 * 4
    rank = measured(single(warmup=4, steps=5, window_seconds=60.0))
    assert len(rank.timed.losses) == MAX_FILLING_STEPS


@pytest.mark.parametrize(("warmup", "timed"), [(0, 1), (2, 3)])
def test_a_single_trial_trains_its_warmup_and_its_timed_steps_and_no_more(
    warmup: int, timed: int
) -> None:
    rank = measured(single(warmup=warmup, steps=timed))
    assert Counting.losses == [4] * (warmup + timed)
    assert facts_of(rank).item == "rows"
    assert (rank.rank, rank.pid, rank.device) == (0, os.getpid(), "cpu")
    assert rank.timed.samples == 4 * timed
    assert len(rank.timed.step_seconds) == len(rank.timed.losses) == timed
    assert rank.peaks.host_bytes > 2**20
    assert rank.peaks.device_bytes is None
    assert rank.reduced_bytes_per_step == 0


Steps = list[tuple[bool, list[list[int]]]]
"""Whether a step is unsynced, and the samples of its micro-batches."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """All steps from here on."""
    noted: Steps = []
    true_step = BenchmarkStepper.step

    def step(self: BenchmarkStepper, batches: Any, *, unsynced: bool = False) -> torch.Tensor:
        noted.append((unsynced, [indices.tolist() for indices in batches]))
        return true_step(self, batches, unsynced=unsynced)

    monkeypatch.setattr(BenchmarkStepper, "step", step)
    return noted


def test_windows_with_and_without_synchronization_alternate_on_the_same_samples(
    steps: Steps,
) -> None:
    rank = measured(dp(2, warmup=0, steps=22, is_instrumented=True))
    segments = [(kind, len([*group])) for kind, group in groupby(kind for kind, _ in steps)]
    assert segments == [(False, 6), (True, 12), (False, 11), (True, 10), (False, 5 + 5), (True, 5)]
    synced, unsynced = ([taken for of, taken in steps if of is kind] for kind in (False, True))
    assert synced[:22] == unsynced[:22]
    assert {*rank.windows} == {"timed", "unsynced"}
    for window in rank.windows.values():
        assert (window.segment_steps, window.samples) == ((6, 6, 5, 5), 22 * 8)


def test_peak_memory_is_that_of_training_without_what_measuring_adds(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps without synchronization, and undoing them, need memory that training does not."""

    def peaks(*devices: torch.device) -> MemoryPeaks:
        held = sum(1000 if unsynced else 1 for unsynced, _ in steps)
        return MemoryPeaks(host_bytes=0, device_bytes=held, reserved_bytes=7)

    monkeypatch.setattr(trials, "memory_peaks", peaks)
    rank = measured(dp(2, warmup=2, steps=10, is_instrumented=True))
    assert (rank.peaks.device_bytes, rank.peaks.reserved_bytes) == (2 + 4, 7)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_without_synchronization_leave_no_trace_in_the_training(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One replica draws the same random numbers every time; it has nothing to synchronize.
    is_dp = property(lambda settings: settings.implementation == "dp")
    monkeypatch.setattr(Configuration, "has_unsynced_window", is_dp)
    plain = measured(single("Drops", steps=20, optimizer=optimizer))
    alone = measured(dp(1, "Drops", steps=20, optimizer=optimizer))
    assert "unsynced" in alone.windows
    assert alone.timed.losses == plain.timed.losses
    assert alone.final_checksum == plain.final_checksum


@pytest.mark.parametrize(
    ("trial", "sizes"),
    [
        (dp(2, warmup=0, steps=1, batch_size=4), [4, 4]),
        (dp(2, warmup=0, steps=1, scaling="strong", batch_size=7), [3, 4]),
        (dp(3, warmup=0, steps=1, scaling="strong", batch_size=8), [2, 3, 3]),
    ],
    ids=["weak", "strong-uneven", "strong-uneven-3"],
)
def test_replicas_get_the_batches_that_the_trial_says(
    trial: Configuration, sizes: list[int]
) -> None:
    rank = measured(trial)
    assert sorted(Counting.replicas) == sizes
    assert sorted(trial.replica_batch_sizes) == sizes
    assert rank.timed.samples == sum(sizes)


def test_a_single_trial_ends_where_a_loop_by_hand_ends(ten_samples: Path) -> None:
    """10 samples, batch 4, 5 steps: each sample twice."""
    trial = single("Classes", dataset="digits", warmup=2, steps=3, seed=5)
    rank = measured(trial, ten_samples)
    torch.manual_seed(5)
    module, loss_of = Classes().build_model(), Classes().loss
    assert rank.initial_checksum == checksum(module)
    dataset = Splits.read(ten_samples / "digits.pt").train
    sgd = torch.optim.SGD(module.parameters(), lr=trial.workload.lr)
    losses = []
    samples = StepSamples(trial, 0, 10, torch.device("cpu"))
    batches = [indices for (indices,) in samples.deal(5)]
    assert torch.cat(batches).bincount().tolist() == [2] * 10
    for indices in batches:
        sgd.zero_grad()
        loss = loss_of(module(dataset.inputs[indices]), dataset.targets[indices])
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        losses.append(loss.item())
    assert rank.final_checksum == checksum(module)
    assert rank.sample_checksum == tensors_sha256(("", batch) for batch in batches[2:])
    assert list(rank.timed.losses) == losses[2:]


def test_neither_the_implementation_nor_the_group_changes_the_start() -> None:
    ranks = [measured(trial) for trial in (single(), dp(1), dp(2), dp(3, batch_size=2))]
    assert len({rank.initial_checksum for rank in ranks}) == 1


def test_a_process_takes_the_threads_of_its_replicas() -> None:
    for trial, threads in ((single(), 1), (dp(2), 2), (single(threads=2), 2)):
        torch.set_num_threads(3)
        assert measured(trial).threads == torch.get_num_threads() == threads


def test_layers_that_synchronize_in_the_forward_pass_are_counted() -> None:
    counts = [
        facts_of(measured(single(name))).sync_batch_norms for name in ("Drops", "Synchronized")
    ]
    assert counts == [0, 1]


def test_dp_tells_what_it_reduced() -> None:
    """A linear 4→2 has 10 parameters of 4 bytes, summed over the replicas once a micro-step."""
    rank = measured(dp(2, warmup=2, steps=10))
    assert rank.reduced_bytes_per_step == 40
    assert measured(dp(2, accumulate=3)).reduced_bytes_per_step == 120


def test_every_repetition_times_phases_and_only_the_first_is_verified_after_its_windows() -> None:
    trial = dp(2, warmup=1, steps=3, is_instrumented=True)
    second, first = (measured(trial, repetition=number) for number in (1, 0))
    windows, phases = 1 + 3 + 3, 2 * PHASE_STEPS
    assert Counting.losses[: 2 * (windows + phases)] == [8] * 2 * (windows + phases)
    facts = facts_of(second)
    assert (facts.verification, facts.flops_per_item) == (None, None)
    assert facts_of(first).flops_per_item == 32.0  # 2·8 forward and 2·8 for the weights
    verification = facts_of(first).verification
    assert verification is not None
    assert verification.passed
    for measurement in (first, second):
        assert {*measurement.phases} == {"timed", "unsynced"}
        for timed in measurement.phases.values():
            assert [len(seconds) for seconds in timed.values()] == [PHASE_STEPS] * 4
    assert first.timed.losses == second.timed.losses
    assert first.final_checksum == second.final_checksum


def test_gradients_of_a_replica_are_traced_between_the_windows_and_the_phases() -> None:
    rank = measured(single(is_instrumented=True), repetition=0)
    trace = rank.gradient_trace
    assert {*rank.phases} == {"timed"}
    assert trace is not None
    assert (trace.parameters, trace.gradient_bytes) == (("weight", "bias"), (32, 8))
    assert len(trace.ready_seconds) == len(trace.step_seconds) == TRACED_STEPS
    assert measured(dp(1, is_instrumented=True), repetition=0).gradient_trace is None


def test_the_rate_that_a_rule_gives_is_the_one_that_trains() -> None:
    """Three micro-steps at 0.01 and the linear rule are those at 0.03."""
    changes: list[dict[str, Any]] = [{"lr_scaling": "linear"}, {"lr": 0.03}, {}]
    scaled, given, plain = (
        measured(single(accumulate=3, **changed)).final_checksum for changed in changes
    )
    assert scaled == given != plain


def test_instrumented_steps_tell_what_is_done_for_replicas_of_one_process() -> None:
    rank = measured(dp(2, is_instrumented=True), repetition=0)
    parts, phases = rank.replica_phases, rank.phases["timed"]
    columns = [*parts.values()]
    assert [len(column) for column in columns] == [PHASE_STEPS] * 5
    assert all(seconds > 0 for column in columns for seconds in column)
    outside = zip(phases["forward"], phases["backward"], strict=True)
    assert [sum(step) for step in zip(*columns, strict=True)] <= [sum(step) for step in outside]
    for trial in (single(is_instrumented=True), dp(1, is_instrumented=True)):
        assert not measured(trial, repetition=0).replica_phases
