"""What a sweep prepares for its ranks before it measures."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from dpbench import store
from dpbench.errors import DataError
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import inspect_machine
from dpbench.records.trial import RankMeasurement, Status, Window
from dpbench.run.sweep.measuring import (
    PROBE_STEPS,
    SECONDS_PER_TRIAL,
    Measurement,
    estimate_in_words,
    launcher_for,
)
from dpbench.specs import TrialSpec, WorkloadSpec
from tests.builders import sweep_spec, trial_spec
from tests.cli.synthetic import dpbench
from tests.launch.synthetic import SyntheticLauncher


@dataclass
class EachSampleTakes:
    """A launcher whose steps last so long for each sample; it notes what it ran."""

    seconds: float
    status: Status = Status.COMPLETED
    probes: list[TrialSpec] = field(default_factory=list)

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        return None

    def run(
        self, trial: TrialSpec, time_limit_seconds: float, steps: int | None = None
    ) -> TrialOutcome:
        self.probes.append(trial)
        if self.status is not Status.COMPLETED:
            return TrialOutcome(status=self.status, reason="broken")
        steps = (self.seconds * trial.global_batch_size,) * trial.timed_steps
        window = Window(start_seconds=0.0, seconds=sum(steps), step_seconds=steps, samples=1)
        rank = RankMeasurement(rank=0, pid=1, device="cpu", timed=window, setup_seconds=0.0)
        return TrialOutcome(status=Status.COMPLETED, ranks=(rank,))


def single(**changes: object) -> TrialSpec:
    return trial_spec(implementation="single", backend="none", group_size=1, **changes)


SPINNING_ITEMS = """
import threading, time, torch

def items():
    threading.Thread(target=lambda: time.sleep(3600), daemon=True, name="spinning").start()
    return [(torch.rand(4), torch.rand(2))] * 20
"""
WORDS = "at the present speed of the machine, without communication"


def test_a_plan_takes_its_steps_and_the_start_of_every_trial() -> None:
    """Batch 4 at 0.5 s a step. single: 1 + 3 + 5 (phases) + 10 (gradients) steps; ddp with and
    without synchronization: 1 + 6 + 10; 2 × 0.3 s to start: 0.6 + 0.5 × 36 = 18.6 s."""
    assert (SECONDS_PER_TRIAL, PROBE_STEPS) == (0.3, 3)
    launcher = EachSampleTakes(0.125)
    assert estimate_in_words([single(), trial_spec()], launcher) == f"about 18.6 s {WORDS}"


def test_each_batch_size_is_probed_once_with_the_plain_module() -> None:
    trials = [
        trial_spec(group_size=size, batch_size=batch, repetition=repetition, bucket_cap_mb=cap)
        for cap in (None, 5.0)
        for repetition in (0, 1)
        for size in (1, 2)
        for batch in (4, 8)
    ]
    launcher = EachSampleTakes(1e-3)
    estimate_in_words(trials, launcher)
    assert [probe.batch_size for probe in launcher.probes] == [4, 8]
    for probe in launcher.probes:
        assert (probe.implementation, probe.backend, probe.group_size) == ("single", "none", 1)
        assert (probe.warmup_steps, probe.timed_steps, probe.devices) == (1, 3, ("cpu",))
        assert (probe.gradient_steps, probe.bucket_cap_mb) == (0, None)


@pytest.mark.parametrize("status", [Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT])
def test_a_probe_that_fails_leaves_the_duration_unknown(status: Status) -> None:
    words = estimate_in_words([trial_spec(batch_size=8)], EachSampleTakes(1.0, status))
    assert words == "duration unknown (a step of single ×1, batch 8 did not complete)"


def test_a_batch_that_the_dataset_has_no_samples_for_is_refused(tmp_path: Path) -> None:
    spec = sweep_spec(workload=WorkloadSpec(architecture="mlp", dataset="iris"), batch_sizes=(100,))
    job = Measurement(spec=spec, folder=tmp_path, command=(), embedded=True)
    message = "a global batch of 200 for 2 replicas is more than the 150 samples of iris"
    with pytest.raises(DataError, match=message), launcher_for(job, inspect_machine()):
        pass


@pytest.mark.slow
def test_threads_of_the_users_dataset_end_before_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items.py").write_text(SPINNING_ITEMS)
    spec = sweep_spec(workload=WorkloadSpec(architecture="linear", dataset="items.py:items"))
    job = Measurement(spec=spec, folder=tmp_path / "out", command=(), embedded=True)
    with launcher_for(job, inspect_machine()):
        assert "spinning" not in {thread.name for thread in threading.enumerate()}
    few = replace(job, spec=replace(spec, batch_sizes=(16,)))
    message = "a global batch of 32 for 2 replicas is more than the 20 samples of items.py:items"
    with pytest.raises(DataError, match=message), launcher_for(few, inspect_machine()):
        pass


@pytest.mark.usefixtures("synthetic")
def test_repetitions_take_as_many_steps_as_the_first_and_records_say_what_was_asked(
    tmp_path: Path,
) -> None:
    """Resumed too: the records of a sweep that was cut decide."""
    original, ran = SyntheticLauncher.run, list[tuple[TrialSpec, int | None]]()

    def run(
        self: SyntheticLauncher, trial: TrialSpec, limit: float, steps: int | None
    ) -> TrialOutcome:
        ran.append((trial, steps))
        return original(self, replace(trial, window_seconds=2.0 * len(ran)), limit)

    options = ("--arch", "mlp", "--implementations", "ddp", "--group-sizes", 1, "--batch-sizes", 4)
    place = ("--results-dir", tmp_path, "--name", "a", "--no-charts")
    with patch.object(SyntheticLauncher, "run", run):
        assert dpbench("sweep", *options, *place, "--repetitions", 2) == 0
    records = store.load(tmp_path / "a").records
    single, ddp, ddp_again, single_again = records
    assert [trial for trial, _ in ran] == [record.trial for record in records]
    single_steps, ddp_steps = (one.ranks[0].timed_steps for one in (single, ddp))
    assert [steps for _, steps in ran] == [None, None, ddp_steps, single_steps]
    assert single_steps != ddp_steps
    assert {ddp_again.trial.window_seconds, single_again.trial.timed_steps} == {1.0, 20}
