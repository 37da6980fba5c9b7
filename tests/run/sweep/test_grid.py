"""Trials in their order and their records; when repetitions are added, and when they stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dpbench.launch.launcher import TrialOutcome
from dpbench.messages import said_to
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep.grid import (
    numbered_trial,
    plan_trials,
    run_trials,
    trial_number,
)
from dpbench.specs import TrialSpec, WorkloadSpec, plain_label
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
            stop_after_failure=True,
        )
    )
    sizes = [trial.group_size for trial in launcher.ran if trial.implementation == "ddp"]
    assert sizes == [1, 2, 1]
    (reason,) = {record.reason for record in records if record.status is Status.SKIPPED}
    assert reason == "not run: ddp/gloo ×2, batch 4 has failed (--stop-after-failure)"


def test_a_script_that_has_failed_in_its_largest_group_is_not_run_again() -> None:
    workload = WorkloadSpec(architecture="train.py", dataset="", script=("train.py", "--wrong"))
    spec = sweep_spec(
        implementations=("script",), group_sizes=(1, 2), backends=("own",), batch_sizes=(0,)
    ).with_workloads([workload])

    class Failing(FailingAt):
        def run(self, trial: TrialSpec, *_: object) -> TrialOutcome:
            self.ran.append(trial)
            return TrialOutcome(status=Status.FAILED, reason="status 2")

    launcher = Failing(1)
    records = [*run_trials(plan_trials(spec), launcher, environment_id="", time_limit_seconds=1)]
    assert launcher.ran[-1].group_size == 2
    assert [trial.group_size for trial in launcher.ran[:-1]] == [1] * (len(launcher.ran) - 1)
    (reason,) = {one.reason for one in records if one.status is Status.SKIPPED}
    assert "has failed, as all before it" in (reason or "")


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
    killed = TrialOutcome(status=Status.FAILED, reason="killed", killed=True)
    again = TrialOutcome(status=Status.FAILED, reason="killed again", killed=True)
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
        f"{plain_label(trial)}: killed; it is tried once more" for trial in (trials[0], trials[2])
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
    for earlier, status in (
        (lost, Status.COMPLETED),
        (replace(lost, lost_host=None), Status.SKIPPED),
    ):
        (record,) = run_trials(
            [lost.trial],
            SyntheticLauncher(),
            environment_id="",
            time_limit_seconds=1,
            earlier=[earlier],
            stop_after_failure=True,
        )
        assert record.status is status


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
