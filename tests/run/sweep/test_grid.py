"""Trials in their order and their records; when repetitions are added, and when they stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from dpbench.launch.launcher import TrialOutcome
from dpbench.messages import said_to
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep import grid
from dpbench.run.sweep.grid import (
    FailedSeries,
    UntilSettled,
    numbered_trial,
    plan_trials,
    run_trials,
    trial_number,
)
from dpbench.specs import TrialSpec
from tests.builders import WORKLOAD, sweep_spec, trial_spec
from tests.launch.synthetic import SyntheticLauncher


def test_the_order_is_a_palindrome_over_repetitions() -> None:
    trials = [trial.configuration for trial in plan_trials(sweep_spec(repetitions=3))]
    third = len(trials) // 3
    first, second, last = trials[:third], trials[third : 2 * third], trials[2 * third :]
    assert second == first[::-1]
    assert last == first


def test_the_plain_module_is_the_baseline_of_every_sweep() -> None:
    trials = plan_trials(sweep_spec(implementations=("ddp",), group_sizes=(2,), repetitions=1))
    singles = [trial for trial in trials if trial.implementation == "single"]
    assert [(trial.group_size, trial.batch_size) for trial in singles] == [(1, 4), (1, 8)]
    assert {trial.group_size for trial in trials if trial.implementation == "ddp"} == {2}


def test_copies_that_do_not_communicate_are_measured_at_the_largest_size_by_default() -> None:
    spec = sweep_spec(implementations=("independent",), largest_group_only=("independent",))
    assert {t.group_size for t in plan_trials(spec) if t.implementation == "independent"} == {2}


def test_implementations_without_a_process_group_are_not_multiplied_by_backends() -> None:
    trials = plan_trials(sweep_spec(backends=("gloo", "nccl"), repetitions=1, batch_sizes=(4,)))
    seen = [(t.implementation, t.backend, t.group_size) for t in trials]
    assert sorted(seen) == [
        ("ddp", "gloo", 1),
        ("ddp", "gloo", 2),
        ("ddp", "nccl", 1),
        ("ddp", "nccl", 2),
        ("dp", "threads", 1),
        ("dp", "threads", 2),
        ("single", "none", 1),
    ]


class Refusing(SyntheticLauncher):
    def unusable_reason(self, trial: TrialSpec) -> str | None:
        return "no such thing here" if trial.backend == "nccl" else None

    def run(
        self, trial: TrialSpec, time_limit_seconds: float, steps: int | None = None
    ) -> TrialOutcome:
        assert trial.backend != "nccl"
        return super().run(trial, time_limit_seconds, steps)


def test_what_the_machine_lacks_is_a_skipped_record_with_its_reason() -> None:
    trials = [trial_spec(backend="nccl"), trial_spec()]
    started: list[TrialSpec] = []
    records = list(
        run_trials(
            trials,
            Refusing(),
            environment_id="here",
            time_limit_seconds=1,
            on_start=started.append,
        )
    )
    assert [record.status for record in records] == [Status.SKIPPED, Status.COMPLETED]
    assert records[0].reason == "no such thing here"
    assert started == trials


class FailingAt(SyntheticLauncher):
    """Fails at one group size and above."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.ran: list[TrialSpec] = []

    def run(
        self, trial: TrialSpec, time_limit_seconds: float, steps: int | None = None
    ) -> TrialOutcome:
        self.ran.append(trial)
        if trial.group_size >= self.group_size:
            return TrialOutcome(status=Status.OUT_OF_MEMORY, reason="too large")
        return super().run(trial, time_limit_seconds, steps)


def test_a_series_stops_after_a_failed_size_if_asked_and_says_why() -> None:
    spec = sweep_spec(
        implementations=("ddp",), group_sizes=(1, 2, 4), batch_sizes=(4,), devices=("cpu",) * 4
    )
    launcher = FailingAt(2)
    records = list(
        run_trials(
            plan_trials(spec),
            launcher,
            environment_id="",
            time_limit_seconds=1,
            stop_after_failure=FailedSeries(),
        )
    )
    sizes = [trial.group_size for trial in launcher.ran if trial.implementation == "ddp"]
    assert sizes == [1, 2, 1]
    (reason,) = {record.reason for record in records if record.status is Status.SKIPPED}
    assert reason == "not run: ddp/gloo ×2, batch 4 has failed (--stop-after-failure)"


def test_sizes_within_a_host_come_before_those_across() -> None:
    spec = sweep_spec(
        implementations=("ddp",),
        batch_sizes=(4,),
        group_sizes=(1, 2, 3, 4),
        devices=("cpu",) * 4,
        nodes=(2, 2),
        repetitions=1,
    )
    nodes = [trial.nodes for trial in plan_trials(spec) if trial.implementation == "ddp"]
    assert nodes == [(), (), (2, 1), (2, 2)]


def test_another_node_finds_a_trial_by_its_number() -> None:
    names = ("mlp", "tabular")
    one, other = (replace(WORKLOAD, architecture=name) for name in names)
    spec = sweep_spec(axes={"architecture": names}, window_seconds=1.0, repetitions=2)
    spec = spec.with_workloads([one, replace(other, dataset="iris")])
    assert {trial.workload.dataset for trial in plan_trials(spec, 3)} == {"digits", "iris"}
    for trial in plan_trials(spec, 3):
        assert numbered_trial(spec, trial_number(spec, trial)) == trial


def test_what_something_outside_has_ended_is_tried_again_once() -> None:
    """A crash of the trial's own is not, nor is a second kill."""
    killed = TrialOutcome(status=Status.FAILED, reason="killed", from_outside=True)
    again = TrialOutcome(status=Status.FAILED, reason="killed again", from_outside=True)
    completed = TrialOutcome(status=Status.COMPLETED)
    crashed = TrialOutcome(status=Status.FAILED, reason="crashed")
    answers = [killed, completed, crashed, killed, again]

    class Answering(SyntheticLauncher):
        def run(
            self, trial: TrialSpec, time_limit_seconds: float, steps: int | None = None
        ) -> TrialOutcome:
            return answers.pop(0)

    said: list[str] = []
    trials = plan_trials(sweep_spec())[:3]
    with said_to(said.append):
        records = [
            *run_trials(trials, Answering(), environment_id="", time_limit_seconds=1),
        ]
    assert [(r.status, r.reason, r.tried_again_after) for r in records] == [
        (Status.COMPLETED, None, "killed"),
        (Status.FAILED, "crashed", None),
        (Status.FAILED, "killed again", "killed"),
    ]
    assert said == [
        f"{trial.label}: killed; it is tried once more" for trial in (trials[0], trials[2])
    ]
    assert not answers


def test_a_series_has_not_failed_because_a_host_was_lost() -> None:
    lost = TrialRecord(
        trial=trial_spec(nodes=(1, 1)),
        environment_id="",
        started_utc="",
        duration_seconds=0.0,
        status=Status.FAILED,
        lost_host=1,
    )
    failed = FailedSeries()
    failed.add(lost)
    assert failed.reason(lost.trial) is None
    failed.add(replace(lost, lost_host=None))
    assert failed.reason(lost.trial) is not None


def test_a_setting_that_an_implementation_has_not_gives_it_no_row_of_its_own() -> None:
    axes = {"bucket_cap_mb": (1.0, 25.0), "comm_hook": ("none", "bf16"), "sync_every": (1, 2)}
    spec = sweep_spec(
        implementations=("dp", "ddp", "local-sgd"),
        group_sizes=(2,),
        batch_sizes=(4,),
        axes=axes,
        repetitions=1,
    )
    counts = Counter(trial.implementation for trial in plan_trials(spec))
    assert counts == {"single": 1, "dp": 1, "ddp": 4, "local-sgd": 2}


SPEC = sweep_spec(implementations=("ddp",), group_sizes=(1,), batch_sizes=(4,), repetitions=2)
SINGLE, DDP = (trial.configuration for trial in plan_trials(SPEC, 1))


class Clock:
    """Trials take a second each; nothing else takes any time."""

    now = 0.0

    def records(self, trials: Iterable[TrialSpec]) -> list[TrialRecord]:
        done = run_trials(trials, SyntheticLauncher(), environment_id="e", time_limit_seconds=1.0)
        timed = [replace(record, duration_seconds=1.0) for record in done]
        self.now += len(timed)
        return timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(grid, "monotonic", lambda: clock.now)
    return clock


def passes(
    clock: Clock,
    unsettled: grid.Unsettled,
    budget: float,
    most_looks: int = 9,
) -> tuple[list[list[TrialSpec]], list[str]]:
    said: list[str] = []
    next_round = UntilSettled(
        SPEC,
        unsettled,
        budget_seconds=budget,
        say=said.append,
        most_looks=most_looks,
    )
    records: list[TrialRecord] = []
    done: list[list[TrialSpec]] = []
    while waiting := next_round(tuple(records)):
        done.append(list(waiting))
        records += clock.records(waiting)
    return done, said


def test_only_what_is_unsettled_is_repeated_and_looked_at_at_growing_sizes(clock: Clock) -> None:
    looked_at: list[int] = []

    def unsettled(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        counts = Counter(record.trial.configuration for record in records)
        looked_at.append(counts[DDP])
        return frozenset({DDP}) if counts[DDP] < 8 else frozenset()

    done, said = passes(clock, unsettled, budget=100.0)
    assert looked_at == [2, 3, 5, 8]
    assert [[trial.repetition for trial in one] for one in done[1:]] == [[n] for n in range(2, 8)]
    assert {trial.configuration for one in done[1:] for trial in one} == {DDP}
    assert said[0] == "not settled yet: up to 3 repetitions; 4 s of 1 min 40 s used"


def test_the_budget_ends_it_before_a_pass_that_would_not_fit(clock: Clock) -> None:
    done, said = passes(clock, lambda records: frozenset({SINGLE, DDP}), budget=7.0)
    assert sum(map(len, done)) == 6
    assert said[-1] == ("the budget of 7 s leaves no time for another repetition, about 2 s")
    _, said = passes(clock, lambda records: frozenset({SINGLE, DDP}), budget=1.0)
    assert said == ["the budget of 1 s is used up"]


def test_after_the_last_look_nothing_is_added(clock: Clock) -> None:
    looked_at: list[int] = []

    def never(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        looked_at.append(len(records))
        return frozenset({SINGLE, DDP})

    done, said = passes(clock, never, budget=100.0, most_looks=3)
    assert looked_at == [4, 6, 10]
    assert sum(map(len, done)) == 10
    assert said[-1].startswith("not settled after 5 repetitions")
