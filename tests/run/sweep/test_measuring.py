"""What a sweep prepares for its ranks, and how its trials run one after the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench import folders
from dpbench.architecture.naming import with_files
from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.messages import said_to
from dpbench.records.trial import HostLoad, Status, TrialRecord
from dpbench.run.sweep.measuring import exit_status
from dpbench.run.sweep.plan import prepared_datasets
from dpbench.specs import Configuration, WorkloadSpec, plain_label
from tests.analysis.builders import record, trial, varied
from tests.builders import sweep_spec
from tests.launch.synthetic import SyntheticRunner, run_trials

SPINNING_ITEMS = """
import threading, time, torch

def items():
    threading.Thread(target=lambda: time.sleep(3600), daemon=True, name="spinning").start()
    return [(torch.rand(4), torch.rand(2))] * 20
"""


@pytest.mark.slow
def test_threads_of_the_users_dataset_end_before_a_sweep_that_it_is_too_small_for(
    here: Path,
) -> None:
    Path("items.py").write_text(SPINNING_ITEMS)
    workload = WorkloadSpec(architecture="linear", dataset="items.py:items")
    spec = sweep_spec(workloads=(workload,))
    with prepared_datasets(spec, None):
        assert "spinning" not in {thread.name for thread in threading.enumerate()}
    few = replace(spec, axes={**spec.axes, "batch_size": (16,)})
    message = "2 replicas take 32 samples in one step, and items.py:items has 20; expected fewer"
    with pytest.raises(UsageError, match=message), prepared_datasets(few, None):
        pass


@pytest.mark.usefixtures("here", "synthetic")
def test_repetitions_take_as_many_steps_as_the_first_and_records_say_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, ran = SyntheticRunner.run, list[int | None]()

    def noted(self: SyntheticRunner, settings: Configuration, *rest: Any) -> TrialRecord:
        ran.append(None if settings.window_seconds else settings.steps)
        filling = settings if ran[-1] else varied(settings, window_seconds=2.0 * len(ran))
        return original(self, filling, *rest)

    monkeypatch.setattr(SyntheticRunner, "run", noted)
    words = "sweep --arch mlp --implementations ddp --group-sizes 1 --batch-sizes 4 --repetitions 2"
    assert run([*words.split(), "--name", "a", "--no-charts"]) == 0
    records = folders.load_sweep(Path("results/a")).records
    single, ddp, ddp_again, single_again = (len(one.ranks[0].timed.step_seconds) for one in records)
    assert ran == [None, None, ddp, single]
    assert single != ddp
    assert (ddp_again, single_again) == (ddp, single)
    assert {one.configuration.window_seconds for one in records} == {1.0}


@pytest.mark.usefixtures("synthetic", "here")
def test_a_busy_machine_is_named_once_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SyntheticRunner, "load", HostLoad(cores=2, during=1.8, stolen=0.0))
    words = ("--arch", "mlp", "--gpus", "1", "--repetitions", "2", "--no-charts")
    assert run(["sweep", *words]) == 0
    said = capsys.readouterr().err
    before, _, after = said.partition("warning: other processes are using 90 % of 2 cores")
    assert "[1/" not in before
    assert after.count("[1/") == 1
    assert "other processes" not in after


class Disturbed(SyntheticRunner):
    """Runs trials in the first repetition beside other load; one trial fails."""

    def __init__(self, fails: tuple[str, int]) -> None:
        super().__init__()
        self.fails, self.ran = fails, list[tuple[str, int]]()

    def run(
        self, configuration: Configuration, repetition: int, time_limit_seconds: float
    ) -> TrialRecord:
        self.ran.append((configuration.implementation, repetition))
        if self.ran[-1] == self.fails:
            return record(configuration, status=Status.FAILED, reason="crashed")
        measured = super().run(configuration, repetition, time_limit_seconds)
        load = HostLoad(cores=2, during=float(repetition == 0), stolen=0.0)
        return replace(measured, host_load=load)


def test_a_disturbed_repetition_is_measured_again_whole_and_once() -> None:
    """What fails in it stays as it is: a second try would hide it."""
    runner = Disturbed(fails=("dp", 0))
    said: list[str] = []
    names = ("dp", "ddp")
    spec = sweep_spec(implementations=names, group_sizes=(1,), batch_size=(4,), repetitions=2)
    with said_to(said.append):
        records = run_trials(spec, runner)
    usual = [("single", 0), ("dp", 0), ("ddp", 0), ("ddp", 1), ("dp", 1), ("single", 1)]
    assert runner.ran == [*usual, ("single", 0), ("ddp", 0)]
    assert len(records) == len(usual)
    (again,) = said
    assert again.startswith("other programs disturbed 1 repetition: measuring again, about ")


def test_a_measured_trial_is_never_replaced_by_a_skipped_one() -> None:
    runner = Disturbed(fails=("ddp", 1))
    spec = sweep_spec(implementations=("ddp",), group_sizes=(2,), batch_size=(4,), repetitions=2)
    records = run_trials(replace(spec, stop_after_failure=True), runner)
    assert runner.ran[-1] == ("single", 0), "measured again"
    ends = {(one.configuration.implementation, one.repetition): one.status for one in records}
    assert (ends["ddp", 0], ends["ddp", 1]) == (Status.COMPLETED, Status.FAILED)


class Answering(SyntheticRunner):
    """Ends a trial as `answer` says, and completes it where that is None."""

    def __init__(self, answer: Callable[[Configuration], TrialRecord | None]) -> None:
        super().__init__()
        self.answer, self.ran = answer, list[Configuration]()

    def unusable_reason(self, configuration: Configuration) -> str | None:
        return "no such thing here" if configuration.backend == "nccl" else None

    def run(
        self, configuration: Configuration, repetition: int, time_limit_seconds: float
    ) -> TrialRecord:
        self.ran.append(configuration)
        answered = self.answer(configuration)
        return answered or super().run(configuration, repetition, time_limit_seconds)


def test_what_the_machine_lacks_is_a_skipped_record_with_its_reason() -> None:
    runner = Answering(lambda _: None)
    records = run_trials(sweep_spec(backends=("gloo", "nccl"), implementations=("ddp",)), runner)
    lacking = tuple(record for record in records if record.status is Status.SKIPPED)
    assert records[: len(lacking)] == lacking, "they are stored before the others take minutes"
    assert {record.reason for record in lacking} == {"no such thing here"}
    assert {record.configuration.backend for record in lacking} == {"nccl"}
    assert [record.configuration for record in records[len(lacking) :]] == runner.ran


def test_a_series_stops_after_a_failed_size_if_asked_and_says_why() -> None:
    spec = sweep_spec(
        implementations=("ddp",), group_sizes=(1, 2, 4), batch_size=(4,), devices=("cpu",) * 4
    )
    failed = record(trial(), status=Status.OUT_OF_MEMORY, reason="too large")
    runner = Answering(lambda one: failed if one.group_size >= 2 else None)
    records = run_trials(replace(spec, stop_after_failure=True), runner)
    sizes = [one.group_size for one in runner.ran if one.implementation == "ddp"]
    assert sizes == [1, 2, 1]
    (reason,) = {record.reason for record in records if record.status is Status.SKIPPED}
    assert reason == "ddp/gloo ×2, batch 4 failed"


@pytest.mark.parametrize(
    ("backends", "fails", "label", "ran"),
    [
        ("own", "script", "script", {"script": 1}),
        ("own", "independent", "independent", {"script": 3, "independent": 1, "single": 3}),
        ("gloo,shm", "shm", "script/shm", {"script": 4, "independent": 3, "single": 3}),
    ],
)
def test_the_largest_group_of_a_script_runs_first_and_ends_all_only_if_nothing_of_it_works(
    here: Path, backends: str, fails: str, label: str, ran: dict[str, int]
) -> None:
    (here / "train.py").touch()
    script = WorkloadSpec(architecture="train.py", dataset="", script=("train.py", "--wrong"))
    workload = with_files(script)
    spec = sweep_spec(
        workloads=(workload,),
        implementations=("script", "independent"),
        group_sizes=(2,),
        backends=tuple(backends.split(",")),
        batch_size=(None,),
        repetitions=3,
    )
    failed = record(trial(), status=Status.FAILED, reason="status 2")
    runner = Answering(lambda one: failed if fails in (one.implementation, one.backend) else None)
    records = run_trials(spec, runner)
    skipped = {one.reason for one in records if one.status is Status.SKIPPED}
    assert skipped == {f"{label} ×2 failed"}
    assert Counter(one.implementation for one in runner.ran) == ran


def test_what_something_outside_has_ended_is_tried_again_once() -> None:
    """A crash of the trial's own is not, nor is a second kill."""
    killed = record(trial(), status=Status.FAILED, reason="killed", killed=True)
    again = record(trial(), status=Status.FAILED, reason="killed again", killed=True)
    crashed = record(trial(), status=Status.FAILED, reason="crashed")
    answers = [killed, None, crashed, killed, again]
    said: list[str] = []
    spec = sweep_spec(implementations=("dp",), group_sizes=(1, 2), batch_size=(4,), repetitions=1)
    with said_to(said.append):
        records = run_trials(spec, Answering(lambda _: answers.pop(0)))
    assert [(r.status, r.reason, r.tried_again_after) for r in records] == [
        (Status.COMPLETED, None, "killed"),
        (Status.FAILED, "crashed", None),
        (Status.FAILED, "killed again", "killed"),
    ]
    assert said == [
        f"{plain_label(record.configuration)}: killed; it is tried once more"
        for record in (records[0], records[2])
    ]
    assert not answers


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([Status.COMPLETED, Status.SKIPPED], 0),
        ([Status.SKIPPED], 1),
        ([Status.COMPLETED, Status.FAILED], 1),
        ([Status.COMPLETED, Status.TIMED_OUT], 1),
        ([Status.COMPLETED, Status.OUT_OF_MEMORY], 1),
        ([Status.COMPLETED, Status.DIVERGED], 1),
        ([Status.WRONG_GRADIENTS, Status.FAILED], 6),
        ([], 1),
    ],
)
def test_the_exit_status_says_the_worst(statuses: list[Status], expected: int) -> None:
    records = [record(trial(batch_size=n), status=one) for n, one in enumerate(statuses, 1)]
    assert exit_status(records) == expected


def test_a_baseline_alone_is_no_answer() -> None:
    baseline = record(trial("single", "none"), status=Status.COMPLETED)
    assert exit_status([baseline]) == 0
    assert exit_status([baseline], wanted=("ddp",)) == 1
