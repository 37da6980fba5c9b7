"""The made-up launcher behaves enough like a real one for all that stands above it."""

from __future__ import annotations

import pytest

from dpbench.records.trial import Status
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.builders import trial_spec
from tests.launch.synthetic import NOISE, SHARES, SyntheticLauncher

LAUNCHER = SyntheticLauncher()


def seconds_per_step(trial: TrialSpec) -> float:
    ranks = LAUNCHER.run(trial, 1.0).ranks
    return max(rank.timed.seconds for rank in ranks) / trial.timed_steps


def samples(trial: TrialSpec) -> int:
    return sum(rank.timed.samples for rank in LAUNCHER.run(trial, 1.0).ranks)


def test_the_same_trial_gets_the_same_answer_and_another_repetition_another() -> None:
    assert LAUNCHER.run(trial_spec(), 1.0) == LAUNCHER.run(trial_spec(), 99.0)
    other = LAUNCHER.run(trial_spec(repetition=1), 1.0)
    assert other.ranks[0].timed != LAUNCHER.run(trial_spec(), 1.0).ranks[0].timed


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
def test_every_trial_completes_with_a_proof(implementation: str) -> None:
    backend = IMPLEMENTATIONS[implementation].backend or "gloo"
    trial = trial_spec(implementation=implementation, backend=backend)
    assert LAUNCHER.unusable_reason(trial) is None
    outcome = LAUNCHER.run(trial, 1.0)
    assert outcome.status is Status.COMPLETED
    assert outcome.verification is not None
    assert outcome.verification.passed
    assert [rank.rank for rank in outcome.ranks] == list(range(trial.process_count))
    for rank in outcome.ranks:
        assert len(rank.timed.step_seconds) == len(rank.timed.losses) == trial.timed_steps
        assert rank.timed.seconds == sum(rank.timed.step_seconds)
        two_windows = IMPLEMENTATIONS[implementation].can_leave_out_sync
        assert (rank.without_sync is not None) == two_windows


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group_size": 1}, 4 * 3),
        ({"group_size": 2}, 2 * 4 * 3),
        ({"group_size": 3, "scaling": "strong", "batch_size": 10}, 10 * 3),
        ({"group_size": 2, "accumulation_steps": 5}, 2 * 4 * 3 * 5),
        ({"implementation": "dp", "backend": "threads", "group_size": 2}, 2 * 4 * 3),
    ],
)
def test_samples_are_those_that_a_real_trial_would_consume(
    changes: dict[str, object], expected: int
) -> None:
    assert samples(trial_spec(**changes)) == expected


def test_the_cost_of_a_step_is_that_of_the_model() -> None:
    """2 ms + 0.1 ms × 30 samples, and half of gloo's 3 ms between two ranks: 6.5 ms, ± 1 %."""
    assert NOISE == 0.01
    trial = trial_spec(batch_size=30, timed_steps=50)
    assert seconds_per_step(trial) == pytest.approx(6.5e-3, rel=0.01)
    (without, _) = (rank.without_sync for rank in LAUNCHER.run(trial, 1.0).ranks)
    assert without is not None
    assert without.seconds / 50 == pytest.approx(5e-3, rel=0.01)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_speedup_is_above_one_and_below_linear(size: int) -> None:
    one, many = (trial_spec(group_size=n, batch_size=32, timed_steps=50) for n in (1, size))
    speeds = [samples(trial) / seconds_per_step(trial) for trial in (one, many)]
    assert 1.0 < speeds[1] / speeds[0] < size


def test_the_phases_add_up_to_the_step_with_all_communication_in_backward() -> None:
    """5 ms of computation, 60 % of it backward, and 1.5 ms exposed."""
    rank, _ = LAUNCHER.run(trial_spec(batch_size=30, phase_steps=4), 1.0).ranks
    with_sync, without = rank.phases, rank.phases_without_sync
    assert with_sync is not None
    assert without is not None
    assert with_sync.backward_seconds == pytest.approx([4.5e-3] * 4, rel=NOISE)
    assert without.backward_seconds == pytest.approx([3e-3] * 4, rel=NOISE)
    for name in ("data", "forward", "optimizer"):
        expected = [SHARES[name] * 5e-3] * 4
        for phases in (with_sync, without):
            assert getattr(phases, f"{name}_seconds") == pytest.approx(expected, rel=NOISE)
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_gradients_of_one_replica_get_ready_one_after_the_other() -> None:
    """Of 5 ms, backward lasts from 32 % to 92 %: 8 gradients, the last layer's first."""
    alone = trial_spec(group_size=1, batch_size=30, accumulation_steps=3, gradient_steps=4)
    (rank,) = LAUNCHER.run(alone, 1.0).ranks
    trace = rank.gradient_trace
    assert trace is not None
    assert trace.gradient_bytes == (2**20,) * 8
    for number in range(4):
        step = trace.step_seconds[number]
        assert step == pytest.approx(5e-3, rel=NOISE)
        assert trace.ready_seconds[number][0] == trace.backward_end_seconds[number]
        assert trace.ready_seconds[number][7] == pytest.approx((0.32 + 0.6 / 8) * step)
    assert all(rank.gradient_trace is None for rank in LAUNCHER.run(trial_spec(), 1.0).ranks)


def test_windows_grow_until_they_are_precise() -> None:
    """Uniform ± 1 % is 0.58 % deviation a step: ± 0.12 % at 100 steps, ± 0.05 % at 600."""
    for precision, steps in ((0.01, 100), (1e-9, 250)):
        trial = trial_spec(timed_steps=250, precision=precision)
        for rank in LAUNCHER.run(trial, 1.0).ranks:
            assert rank.timed_steps == len(rank.timed.step_seconds) == steps
            assert rank.timed.samples == 4 * steps


def test_losses_go_down() -> None:
    losses = LAUNCHER.run(trial_spec(timed_steps=10), 1.0).ranks[0].timed.losses
    assert sorted(losses, reverse=True) == list(losses)
    assert losses[0] > losses[-1]
