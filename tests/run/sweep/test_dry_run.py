"""`--dry-run`: the estimate of a sweep's time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dpbench.records.trial import Outcome, RankMeasurement, Status, Window
from dpbench.run.sweep.dry_run import PROBE_STEPS, SECONDS_PER_TRIAL, estimate_in_words
from dpbench.specs import TrialSpec
from tests.builders import trial_spec

WORDS = "at the present speed of the machine, without communication"


@dataclass
class EachSampleTakes:
    """A launcher whose steps last so long for each sample; it notes what it ran."""

    seconds: float
    status: Status = Status.COMPLETED
    probes: list[TrialSpec] = field(default_factory=list)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome[RankMeasurement]:
        self.probes.append(trial)
        if self.status is not Status.COMPLETED:
            return Outcome(status=self.status, reason="broken")
        steps = (self.seconds * trial.global_batch_size,) * trial.timed_steps
        window = Window(start_seconds=0.0, seconds=sum(steps), step_seconds=steps, samples=1)
        rank = RankMeasurement(rank=0, pid=1, device="cpu", timed=window, setup_seconds=0.0)
        return Outcome(status=Status.COMPLETED, ranks=(rank,))


def test_a_plan_takes_its_steps_and_the_start_of_every_trial() -> None:
    """Batch 4 at 0.5 s a step. single: 1 + 3 + 5 (phases) + 10 (gradients) steps; ddp with and
    without synchronization: 1 + 6 + 10; 2 × 0.3 s to start: 0.6 + 0.5 × 36 = 18.6 s."""
    assert (SECONDS_PER_TRIAL, PROBE_STEPS) == (0.3, 3)
    single = trial_spec(implementation="single", backend="none", group_size=1)
    words = estimate_in_words([single, trial_spec()], EachSampleTakes(0.125))
    assert words == f"about 18.6 s {WORDS}"


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
