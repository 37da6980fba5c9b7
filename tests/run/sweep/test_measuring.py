"""What a sweep prepares for its ranks before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.data import datasets
from dpbench.errors import DataError
from dpbench.grid import plan
from dpbench.launch.agent import ElasticLauncher
from dpbench.launch.machine import inspect_machine
from dpbench.run.sweep.measuring import Measurement, launcher_for
from dpbench.specs import Variant, WorkloadSpec
from tests.builders import sweep_spec

CONTEXTS = {f"gpt:layers=1,width=32,context={length}": length for length in (16, 32)}


def measurement(folder: Path, **changes: object) -> Measurement:
    """A sweep of both on a text of 2,000 characters."""
    text = folder / "text.txt"
    text.write_text("a b c d e " * 200)
    first, *more = (WorkloadSpec(architecture=name, dataset="text") for name in CONTEXTS)
    spec = sweep_spec(
        workload=first,
        more_workloads=tuple(more),
        variants=tuple(Variant(architecture=name) for name in CONTEXTS),
        **changes,
    )
    return Measurement(spec=spec, folder=folder, command=(), data_dir=text, embedded=True)


def test_each_architecture_has_a_text_cut_into_sequences_of_its_length(tmp_path: Path) -> None:
    job = measurement(tmp_path)
    with launcher_for(job, inspect_machine()) as launcher:
        assert isinstance(launcher, ElasticLauncher)
        for trial in plan(job.spec, 1):
            _, folder = launcher.work(trial).args  # type: ignore[attr-defined]
            inputs, _ = datasets.read_arrays(folder)
            assert inputs.shape[1] == CONTEXTS[trial.workload.architecture]


def test_a_batch_that_one_architecture_has_no_samples_for_is_refused(tmp_path: Path) -> None:
    """62 sequences of 32 characters, but 125 of 16."""
    job = measurement(tmp_path, batch_sizes=(40,))
    message = "a global batch of 80 is more than the 62 samples of text"
    with (
        pytest.raises(DataError, match=message),
        launcher_for(job, inspect_machine()),
    ):
        pass
