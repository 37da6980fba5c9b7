"""What a sweep prepares for its ranks, and how its trials run one after the other."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from dpbench import store
from dpbench.errors import DataError
from dpbench.launch.nodes import Node
from dpbench.launch.outcome import Outcome
from dpbench.messages import said_to
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import HostLoad, Status
from dpbench.run.sweep.job import Job, host_here
from dpbench.run.sweep.measuring import launcher_for
from dpbench.specs import TrialSpec, WorkloadSpec, plain_label
from dpbench.specs.sweep import plan_trials
from tests.builders import sweep_spec, trial_spec
from tests.cli.synthetic import dpbench
from tests.launch.synthetic import SyntheticLauncher, run_trials

SPINNING_ITEMS = """
import threading, time, torch

def items():
    threading.Thread(target=lambda: time.sleep(3600), daemon=True, name="spinning").start()
    return [(torch.rand(4), torch.rand(2))] * 20
"""


def here() -> Node:
    return host_here(SweepOptions(), [])


def test_a_batch_that_the_dataset_has_no_samples_for_is_refused(tmp_path: Path) -> None:
    spec = sweep_spec(
        workload=WorkloadSpec(architecture="mlp", dataset="digits"), batch_sizes=(900,)
    )
    job = Job(spec=spec, nodes=[here()], folder=tmp_path, command=())
    message = (
        "2 replicas take 1,800 samples in one step, and digits has 1,797; expected fewer --gpus"
    )
    with pytest.raises(DataError, match=message), launcher_for(job):
        pass


@pytest.mark.slow
def test_threads_of_the_users_dataset_end_before_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items.py").write_text(SPINNING_ITEMS)
    spec = sweep_spec(workload=WorkloadSpec(architecture="linear", dataset="items.py:items"))
    job = Job(spec=spec, nodes=[here()], folder=tmp_path / "out", command=())
    with launcher_for(job):
        assert "spinning" not in {thread.name for thread in threading.enumerate()}
    few = replace(job, spec=replace(spec, batch_sizes=(16,)))
    message = "2 replicas take 32 samples in one step, and items.py:items has 20; expected fewer"
    with pytest.raises(DataError, match=message), launcher_for(few):
        pass


@pytest.mark.usefixtures("synthetic")
def test_repetitions_take_as_many_steps_as_the_first_and_records_say_what_was_asked(
    tmp_path: Path,
) -> None:
    original, ran = SyntheticLauncher.run, list[int | None]()

    def run(self: SyntheticLauncher, trial: TrialSpec, limit: float) -> Outcome:
        ran.append(None if trial.window_seconds else trial.timed_steps)
        filling = trial if ran[-1] else replace(trial, window_seconds=2.0 * len(ran))
        return original(self, filling, limit)

    options = ("--arch", "mlp", "--implementations", "ddp", "--group-sizes", 1, "--batch-sizes", 4)
    place = ("--results-dir", tmp_path, "--name", "a", "--no-charts")
    with patch.object(SyntheticLauncher, "run", run):
        assert dpbench("sweep", *options, *place, "--repetitions", 2) == 0
    records = store.load_sweep(tmp_path / "a").records
    single, ddp, ddp_again, single_again = (one.ranks[0].timed_steps for one in records)
    assert ran == [None, None, ddp, single]
    assert single != ddp
    assert (ddp_again, single_again) == (ddp, single)
    assert {one.trial.window_seconds for one in records} == {1.0}


@pytest.mark.usefixtures("synthetic", "here")
def test_a_busy_machine_is_named_once_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SyntheticLauncher, "load", HostLoad(cores=2, during=1.8, stolen=0.0))
    options = ("--arch", "mlp", "--gpus", 1, "--repetitions", 2, "--no-charts")
    assert dpbench("sweep", *options) == 0
    said = capsys.readouterr().err
    before, _, after = said.partition("warning: other processes are using 90 % of 2 cores")
    assert "[1/" not in before
    assert after.count("[1/") == 1
    assert "other processes" not in after


class Refusing(SyntheticLauncher):
    def unusable_reason(self, trial: TrialSpec) -> str | None:
        return "no such thing here" if trial.backend == "nccl" else None

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        assert trial.backend != "nccl"
        return super().run(trial, time_limit_seconds)


def test_what_the_machine_lacks_is_a_skipped_record_with_its_reason() -> None:
    trials = [trial_spec(backend="nccl"), trial_spec()]
    records = run_trials(trials, Refusing())
    assert [record.status for record in records] == [Status.SKIPPED, Status.COMPLETED]
    assert records[0].reason == "no such thing here"


class FailingAt(SyntheticLauncher):
    """Fails at one group size and above."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.ran: list[TrialSpec] = []

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        self.ran.append(trial)
        if trial.group_size >= self.group_size:
            return Outcome(status=Status.OUT_OF_MEMORY, reason="too large")
        return super().run(trial, time_limit_seconds)


def test_a_series_stops_after_a_failed_size_if_asked_and_says_why() -> None:
    spec = sweep_spec(
        implementations=("ddp",), group_sizes=(1, 2, 4), batch_sizes=(4,), devices=("cpu",) * 4
    )
    launcher = FailingAt(2)
    records = run_trials(plan_trials(spec), launcher, stop_after_failure=True)
    sizes = [trial.group_size for trial in launcher.ran if trial.implementation == "ddp"]
    assert sizes == [1, 2, 1]
    (reason,) = {record.reason for record in records if record.status is Status.SKIPPED}
    assert reason == "ddp/gloo ×2, batch 4 failed"


def test_the_largest_group_of_a_script_runs_first_and_its_failure_ends_all() -> None:
    workload = WorkloadSpec(architecture="train.py", dataset="", script=("train.py", "--wrong"))
    spec = sweep_spec(
        workload=workload,
        implementations=("script", "independent"),
        group_sizes=(2,),
        backends=("own",),
        batch_sizes=(0,),
        repetitions=3,
    )
    ran: list[str] = []

    class Failing(SyntheticLauncher):
        """Runs fail of one implementation only."""

        fails: str

        def run(self, trial: TrialSpec, *_: object) -> Outcome:
            ran.append(trial.implementation)
            status = Status.FAILED if trial.implementation == self.fails else Status.COMPLETED
            return Outcome(status=status, reason="status 2")

    def reasons(fails: str) -> set[str | None]:
        ran.clear()
        launcher = Failing()
        launcher.fails = fails
        records = run_trials(plan_trials(spec), launcher)
        return {one.reason for one in records if one.status is Status.SKIPPED}

    assert reasons("script") == {"script ×2 failed"}
    assert ran == ["script"]
    assert reasons("independent") == {"independent ×2 failed"}
    assert ran.count("script") == 3
    assert ran.count("independent") == 1


def test_what_something_outside_has_ended_is_tried_again_once() -> None:
    """A crash of the trial's own is not, nor is a second kill."""
    killed = Outcome(status=Status.FAILED, reason="killed", killed=True)
    again = Outcome(status=Status.FAILED, reason="killed again", killed=True)
    completed = Outcome(status=Status.COMPLETED)
    crashed = Outcome(status=Status.FAILED, reason="crashed")
    answers = [killed, completed, crashed, killed, again]

    class Answering(SyntheticLauncher):
        def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
            return answers.pop(0)

    said: list[str] = []
    trials = plan_trials(sweep_spec())[:3]
    with said_to(said.append):
        records = run_trials(trials, Answering())
    assert [(r.status, r.reason, r.tried_again_after) for r in records] == [
        (Status.COMPLETED, None, "killed"),
        (Status.FAILED, "crashed", None),
        (Status.FAILED, "killed again", "killed"),
    ]
    assert said == [
        f"{plain_label(trial)}: killed; it is tried once more" for trial in (trials[0], trials[2])
    ]
    assert not answers
