"""One rank's part of a trial in this very process: dp and single need no process group."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpbench import architecture as architectures
from dpbench.architectures import _flops
from dpbench.data import datasets, registry
from dpbench.data.arrays import write_arrays
from dpbench.data.datasets import SYNTHETIC_SAMPLES, Dataset
from dpbench.data.sharding import GlobalBatchSampler
from dpbench.errors import UsageError
from dpbench.measure import trial_windows, verification
from dpbench.measure.allocator import LEFT_ALONE
from dpbench.measure.implementations import Plain
from dpbench.measure.trial import RankReport, count_flops_per_item, measure
from dpbench.measure.verification import tensors_checksum
from dpbench.measure.window import Timing, Usage
from dpbench.records.trial import RankMeasurement
from dpbench.specs import TrialSpec
from tests.builders import WORKLOAD, trial_spec
from tests.launch.faulty import Healthy

HERE = "tests.measure.test_trial"


class Counting(Healthy):
    """Notes how many samples each replica was given, and each loss, in float32 (not the proof)."""

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


@pytest.fixture(autouse=True)
def _unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank sets the allocator of its process: here that is everybody's."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    Counting.replicas.clear()
    Counting.losses.clear()


@pytest.fixture
def ten_samples(tmp_path: Path) -> Path:
    inputs = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    write_arrays(tmp_path / "ten", inputs, np.arange(10, dtype=np.int64) % 2)
    return tmp_path / "ten"


def single(architecture: str = "Counting", **changes: Any) -> TrialSpec:
    named = architecture if architecture == "mlp" else f"{HERE}:{architecture}"
    fields = {name: changes.pop(name) for name in ("seed", "dataset") if name in changes}
    workload = replace(WORKLOAD, **{"architecture": named, "dataset": "synthetic", **fields})
    alone = {"implementation": "single", "backend": "none", "group_size": 1}
    values = {**alone, "repetition": 1, "phase_steps": 0, "gradient_steps": 0, **changes}
    return trial_spec(workload=workload, **values)


def dp(replicas: int, **changes: Any) -> TrialSpec:
    return single(implementation="dp", backend="threads", group_size=replicas, **changes)


def measured(trial: TrialSpec, prepared: Path | None = None) -> RankMeasurement:
    report = measure(trial, prepared, 0)
    assert report.measurement is not None
    return report.measurement


@pytest.mark.parametrize(("allocator", "asked"), [("system", False), ("keep", True), (None, True)])
def test_a_rank_keeps_freed_memory_only_where_the_trial_says_so(
    allocator: str | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def keep() -> str:
        calls.append("kept")
        return "kept"

    monkeypatch.setattr("dpbench.measure.trial.keep_freed_memory", keep)
    rank = measured(single(allocator=allocator))
    assert calls == ["kept"] * asked
    assert rank.allocator == ("kept" if asked else LEFT_ALONE)


def test_a_window_counts_its_processor_time_and_page_faults() -> None:
    rank = measured(single(timed_steps=5))
    assert rank.timed.cpu_seconds is not None
    assert 0 < rank.timed.cpu_seconds < 60
    assert rank.timed.page_faults is not None
    assert rank.timed.page_faults >= 0


def test_a_rank_reports_who_it_was_and_what_it_took() -> None:
    trial = single(warmup_steps=2, timed_steps=5)
    report = measure(trial, None, 0)
    rank = report.measurement
    assert report.item == "rows"
    assert report.verification.passed
    assert rank is not None
    assert (rank.rank, rank.pid, rank.device) == (0, os.getpid(), "cpu")
    assert (rank.warmup_steps, rank.timed_steps) == (2, 5)
    assert len(rank.timed.step_seconds) == len(rank.timed.losses) == 5
    assert rank.timed.samples == 5 * 4
    assert rank.setup_seconds > 0
    assert rank.peak_host_memory_bytes is not None
    assert rank.peak_host_memory_bytes > 2**20
    assert rank.peak_device_memory_bytes is None
    assert (rank.reduced_bytes_per_step, rank.collectives_per_step) == (0, 0.0)
    assert rank.allocator == LEFT_ALONE


@pytest.mark.parametrize(("warmup", "timed"), [(0, 1), (2, 3)])
def test_a_single_trial_trains_its_warmup_and_its_timed_steps_and_no_more(
    warmup: int, timed: int
) -> None:
    measured(single(warmup_steps=warmup, timed_steps=timed))
    assert Counting.losses == [4] * (warmup + timed)


def test_what_communicates_takes_the_timed_steps_again_without_synchronization() -> None:
    rank = measured(dp(2, warmup_steps=1, timed_steps=3))
    assert Counting.losses == [8] * (1 + 3 + 3)
    assert rank.without_sync is not None
    assert (len(rank.without_sync.step_seconds), rank.without_sync.samples) == (3, 3 * 8)


def test_micro_steps_are_counted_as_samples_and_not_as_steps() -> None:
    rank = measured(single(accumulation_steps=3, timed_steps=2, warmup_steps=0))
    assert Counting.losses == [4] * 6
    assert len(rank.timed.step_seconds) == len(rank.timed.losses) == 2
    assert rank.timed.samples == 2 * 3 * 4


@pytest.mark.parametrize(
    ("trial", "sizes"),
    [
        (dp(2, batch_size=4), [4, 4]),
        (dp(2, scaling="strong", batch_size=8), [4, 4]),
        (dp(2, scaling="strong", batch_size=7), [3, 4]),
        (dp(3, scaling="strong", batch_size=8), [2, 3, 3]),
    ],
    ids=["weak", "strong", "strong-uneven", "strong-uneven-3"],
)
def test_replicas_get_the_batches_that_the_trial_says(trial: TrialSpec, sizes: list[int]) -> None:
    rank = measured(replace(trial, warmup_steps=0, timed_steps=1))
    assert sorted(Counting.replicas) == sorted(sizes * 2)  # with synchronization and without
    assert sorted(trial.replica_batch_sizes) == sizes
    assert rank.timed.samples == sum(sizes)


def test_a_dataset_smaller_than_the_window_is_gone_through_again(ten_samples: Path) -> None:
    """10 samples, batch 4, 5 steps: 20 samples in full batches, each sample twice."""
    trial = single("Classes", dataset="digits", warmup_steps=0, timed_steps=5)
    rank = measured(trial, ten_samples)
    assert (rank.timed.samples, len(rank.timed.losses)) == (20, 5)
    batches = GlobalBatchSampler(10, 4, first=0, count=4, seed=0).batches(0, 5)
    assert rank.sample_checksum == tensors_checksum(batches)
    assert torch.cat(batches).bincount().tolist() == [2] * 10


def test_a_single_trial_ends_where_a_loop_by_hand_ends(ten_samples: Path) -> None:
    trial = single("Classes", dataset="digits", warmup_steps=2, timed_steps=3, seed=5)
    rank = measured(trial, ten_samples)
    torch.manual_seed(5)
    module, loss_of = Classes().build_model(), Classes().loss
    assert rank.initial_checksum == tensors_checksum(module.parameters())
    dataset = datasets.load("digits", ten_samples, Classes(), seed=5, samples=1)
    sgd = torch.optim.SGD(module.parameters(), lr=trial.workload.learning_rate)
    losses = []
    batches = GlobalBatchSampler(10, 4, first=0, count=4, seed=5).batches(0, 5)
    for indices in batches:
        sgd.zero_grad()
        loss = loss_of(module(dataset.inputs[indices]), dataset.targets[indices])
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        losses.append(loss.item())
    assert rank.final_checksum == tensors_checksum(module.parameters())
    assert list(rank.timed.losses) == losses[2:]
    assert rank.sample_checksum == tensors_checksum(batches[2:])


def test_the_final_parameters_are_those_before_synchronization_was_left_out() -> None:
    """Without synchronization dp trains on wrong gradients; its checksum must not show that."""
    one, two = (measured(dp(n, scaling="strong", batch_size=8)) for n in (1, 2))
    assert one.timed.losses == pytest.approx(two.timed.losses, rel=1e-5)
    again = measured(dp(2, scaling="strong", batch_size=8))
    assert again.final_checksum == two.final_checksum
    assert again.final_checksum != again.initial_checksum


def test_equal_seeds_start_equally_and_different_ones_differently() -> None:
    first, again, other = (measured(single(seed=seed)) for seed in (0, 0, 1))
    assert first.initial_checksum == again.initial_checksum
    assert first.final_checksum == again.final_checksum
    assert first.timed.losses == again.timed.losses
    assert other.initial_checksum != first.initial_checksum
    assert other.sample_checksum != first.sample_checksum


def test_neither_the_implementation_nor_the_group_changes_the_start() -> None:
    ranks = [measured(trial) for trial in (single(), dp(1), dp(2), dp(3, batch_size=2))]
    assert len({rank.initial_checksum for rank in ranks}) == 1


def test_digits_and_synthetic_images_train_the_same_weights_to_different_losses(
    tmp_path: Path,
) -> None:
    prepared = registry.prepare("digits", data_dir=None, cache=tmp_path)
    stored = measured(single("mlp", dataset="digits", timed_steps=1), prepared.folder)
    generated = measured(single("mlp", dataset="synthetic", timed_steps=1))
    assert stored.initial_checksum == generated.initial_checksum
    assert stored.timed.losses != generated.timed.losses


def test_synthetic_samples_are_enough_for_any_batch() -> None:
    batch = SYNTHETIC_SAMPLES + 1
    rank = measured(single(batch_size=batch, warmup_steps=0, timed_steps=1))
    assert rank.timed.samples == batch


@pytest.mark.parametrize(
    ("trial", "threads"), [(single(), 1), (dp(2), 2), (single(threads_per_replica=2), 2)]
)
def test_a_process_takes_the_threads_of_its_replicas(trial: TrialSpec, threads: int) -> None:
    torch.set_num_threads(3)
    measured(trial)
    assert torch.get_num_threads() == threads


def test_dp_tells_what_it_reduced() -> None:
    """A linear 4→2 has 10 parameters of 4 bytes, summed over the replicas once a micro-step."""
    rank = measured(dp(2, warmup_steps=2, timed_steps=3))
    assert (rank.reduced_bytes_per_step, rank.collectives_per_step) == (40, 1.0)
    accumulated = measured(dp(2, accumulation_steps=3))
    assert (accumulated.reduced_bytes_per_step, accumulated.collectives_per_step) == (120, 3.0)


def test_instrumented_steps_come_after_the_windows_with_and_without_synchronization() -> None:
    rank = measured(dp(2, warmup_steps=1, timed_steps=3, phase_steps=2))
    assert Counting.losses == [8] * (1 + 3 + 3 + 2 + 2)
    for phases in (rank.phases, rank.phases_without_sync):
        assert phases is not None
        assert all(len(getattr(phases, field.name)) == 2 for field in fields(phases))
    plain = measured(single(phase_steps=2))
    assert plain.phases is not None
    assert plain.phases_without_sync is None


def test_gradients_of_a_replica_are_traced_between_the_windows_and_the_phases() -> None:
    rank = measured(single(warmup_steps=1, timed_steps=3, phase_steps=2, gradient_steps=4))
    assert Counting.losses == [4] * (1 + 3 + 2 * 4 + 2)
    trace = rank.gradient_trace
    assert trace is not None
    assert (trace.parameters, trace.gradient_bytes) == (("weight", "bias"), (32, 8))
    assert len(trace.ready_seconds) == len(trace.untraced_step_seconds) == 4
    assert measured(dp(1, gradient_steps=4)).gradient_trace is None


def test_the_rate_that_a_rule_gives_is_the_one_that_trains() -> None:
    """Three micro-steps at 0.01 and the linear rule are those at 0.03."""
    trial = single(accumulation_steps=3)
    linear = replace(trial.workload, learning_rate_rule="linear")
    tripled = replace(trial.workload, learning_rate=0.03)
    scaled, given, plain = (
        measured(replace(trial, workload=workload)).final_checksum
        for workload in (linear, tripled, trial.workload)
    )
    assert scaled == given != plain


def test_instrumented_steps_tell_what_is_done_for_replicas_of_one_process() -> None:
    rank = measured(dp(2, phase_steps=3))
    parts, phases = rank.replica_phases, rank.phases
    assert parts is not None
    assert phases is not None
    columns = [getattr(parts, field.name) for field in fields(parts)]
    assert [len(column) for column in columns] == [3] * 5
    assert all(seconds > 0 for column in columns for seconds in column)
    outside = zip(phases.forward_seconds, phases.backward_seconds, strict=True)
    assert [sum(step) for step in zip(*columns, strict=True)] <= [sum(step) for step in outside]
    assert measured(single(phase_steps=3)).replica_phases is None
    assert measured(dp(1, phase_steps=3)).replica_phases is None


def test_instrumented_steps_leave_the_proofs_of_the_timed_window_alone() -> None:
    """The trial's id does not matter here; its samples, losses and parameters do."""
    without, instrumented = (measured(dp(2, phase_steps=steps)) for steps in (0, 3))
    for name in ("sample_checksum", "initial_checksum", "final_checksum"):
        assert getattr(without, name) == getattr(instrumented, name)
    assert without.timed.losses == instrumented.timed.losses
    assert without.without_sync is not None
    assert instrumented.without_sync is not None
    assert without.without_sync.losses == instrumented.without_sync.losses
    assert instrumented.timed_steps == 3


class Diverges(Counting):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return loss * math.nan if outputs.dtype == torch.float32 else loss


def test_a_diverged_run_still_has_all_its_windows() -> None:
    rank = measured(single("Diverges", phase_steps=2, timed_steps=120, precision=1e-9))
    assert len(rank.timed.losses) == 120
    assert all(math.isnan(loss) for loss in rank.timed.losses)
    assert rank.phases is not None


def scripted_clock(monkeypatch: pytest.MonkeyPatch, step_seconds: list[float]) -> None:
    """Windows whose steps last as long as told; they are still taken."""
    left = iter(step_seconds)

    def scripted(step: Any, inputs: Any, device: Any, ranks: Any) -> Timing:
        taken = [(step(x), next(left))[1] for x in inputs]
        return Timing(0.0, sum(taken), tuple(taken), Usage(0.0, 0))

    monkeypatch.setattr(trial_windows, "time_steps", scripted)


def test_a_window_ends_at_the_first_look_that_finds_it_precise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps 1 and 3 s in alternation at first, then steady 2 s: batches of 5 differ by 0.4 s."""
    noisy = [1.0, 3.0] * 50
    scripted_clock(monkeypatch, noisy + [2.0] * 1000)
    rank = measured(single(timed_steps=1000, warmup_steps=0, precision=0.03))
    assert rank.timed_steps == len(rank.timed.step_seconds) == len(rank.timed.losses) == 160
    assert rank.timed.step_seconds == tuple(noisy + [2.0] * 60)
    assert rank.timed.seconds == pytest.approx(320.0)
    assert rank.timed.samples == 160 * 4
    batches = GlobalBatchSampler(SYNTHETIC_SAMPLES, 4, first=0, count=4, seed=0).batches(0, 160)
    assert rank.sample_checksum == tensors_checksum(batches)


def test_the_window_without_synchronization_takes_as_many_steps_as_the_timed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted_clock(monkeypatch, [2.0] * 1000)
    rank = measured(dp(2, timed_steps=300, precision=0.01))
    assert rank.timed_steps == 100
    assert rank.without_sync is not None
    assert len(rank.without_sync.step_seconds) == 100
    assert rank.reduced_bytes_per_step == 40


@pytest.mark.parametrize("most", [7, 110])
def test_a_window_that_is_never_precise_takes_all_its_steps(most: int) -> None:
    rank = measured(single(timed_steps=most, precision=1e-12))
    assert rank.timed_steps == most


def test_floating_point_operations_are_counted_once_in_a_sweep() -> None:
    """Linear 4→2 without a gradient of its input: 2·8 forward and 2·8 for the weights."""
    first, second = (measure(single(repetition=number), None, 0) for number in (0, 1))
    assert first.flops_per_item == 32.0
    assert second.flops_per_item is None


def test_a_trace_without_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="no folder to write the traces to"):
        measure(single(trace_steps=1), None, 0)


class Doubles(Plain):
    def finish(self) -> None:
        for tensor in self.module.parameters():
            assert tensor.grad is not None
            tensor.grad.mul_(2)


def test_no_speed_leaves_a_rank_whose_gradients_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "wrap", lambda module, trial, rank: Doubles(module))
    report = measure(single(), None, 0)
    assert isinstance(report, RankReport)
    assert not report.verification.passed
    assert report.measurement is None


class TrainsOnly(Healthy):
    """Cannot be evaluated in float32, as when operations are counted (the proof is in float64)."""

    def build_model(self) -> torch.nn.Module:
        class Strict(torch.nn.Linear):
            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                if not self.training and inputs.dtype == torch.float32:
                    raise RuntimeError("only for training")
                return super().forward(inputs)

        return Strict(4, 2)


def test_what_was_measured_is_kept_where_operations_cannot_be_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = measure(single("TrainsOnly", repetition=0), None, 0)
    assert report.measurement is not None
    assert report.flops_per_item is None
    assert "were not counted: only for training" in capsys.readouterr().err


CPU, META = torch.device("cpu"), torch.device("meta")
FIRST_LAYER = {
    "dlrm": _flops.linear(13, 512),
    "linear": _flops.linear(4, 2),
    "mlp": _flops.linear(784, 1024),
    "mnist_cnn": _flops.convolution(1, 32, kernel=3, output_side=26),
    "resnet": _flops.convolution(3, 64, kernel=3, output_side=32),
    "vgg16": _flops.convolution(3, 64, kernel=3, output_side=224),
    "vit": _flops.convolution(3, 384, kernel=16, output_side=14),
}
"""Of the architectures whose first layer takes numbers that nothing has made."""


@pytest.mark.parametrize("name", architectures.names())
def test_a_shipped_architecture_states_its_operations(name: str) -> None:
    """On the meta device, where the largest costs neither memory nor time."""
    architecture = architectures.load(name)
    inputs, targets = architecture.synthetic_batch(2, torch.Generator().manual_seed(0))
    dataset = Dataset(inputs=inputs, targets=targets).to(META)
    with META:
        counted = count_flops_per_item(architecture, dataset, META)
    assert counted == architecture.flops_per_item - FIRST_LAYER.get(name, 0)


class NeedsABatch(Healthy):
    """A batch norm refuses to train on what a single sample is to it."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))


def test_a_dataset_of_one_sample_is_enough() -> None:
    one = Dataset(inputs=torch.ones(1, 4), targets=torch.ones(1, 2))
    assert count_flops_per_item(NeedsABatch(), one, CPU) == 2 * 2 * 8
