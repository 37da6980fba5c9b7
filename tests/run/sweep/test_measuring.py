"""What a sweep prepares for its ranks before it measures."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from dpbench import store
from dpbench.errors import DataError
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import inspect_machine
from dpbench.run.sweep.job import Job
from dpbench.run.sweep.measuring import launcher_for
from dpbench.specs import TrialSpec, WorkloadSpec
from tests.builders import sweep_spec
from tests.cli.synthetic import dpbench
from tests.launch.synthetic import SyntheticLauncher

SPINNING_ITEMS = """
import threading, time, torch

def items():
    threading.Thread(target=lambda: time.sleep(3600), daemon=True, name="spinning").start()
    return [(torch.rand(4), torch.rand(2))] * 20
"""


def test_a_batch_that_the_dataset_has_no_samples_for_is_refused(tmp_path: Path) -> None:
    spec = sweep_spec(workload=WorkloadSpec(architecture="mlp", dataset="iris"), batch_sizes=(100,))
    job = Job(spec=spec, machine=inspect_machine(), folder=tmp_path, command=())
    message = "a global batch of 200 for 2 replicas is more than the 150 samples of iris"
    with pytest.raises(DataError, match=message), launcher_for(job):
        pass


@pytest.mark.slow
def test_threads_of_the_users_dataset_end_before_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items.py").write_text(SPINNING_ITEMS)
    spec = sweep_spec(workload=WorkloadSpec(architecture="linear", dataset="items.py:items"))
    job = Job(spec=spec, machine=inspect_machine(), folder=tmp_path / "out", command=())
    with launcher_for(job):
        assert "spinning" not in {thread.name for thread in threading.enumerate()}
    few = replace(job, spec=replace(spec, batch_sizes=(16,)))
    message = "a global batch of 32 for 2 replicas is more than the 20 samples of items.py:items"
    with pytest.raises(DataError, match=message), launcher_for(few):
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
