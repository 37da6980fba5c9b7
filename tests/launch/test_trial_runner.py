"""Real trials of every implementation: verified gradients, counted steps, disjoint samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from dpbench.data.registry import prepare_dataset
from dpbench.launch.machine import inspect_machine
from dpbench.launch.trial_runner import TrialRunner
from dpbench.records.trial import Status, TrialRecord, Verification
from dpbench.specs import Configuration
from dpbench.specs.traits import BUILT_IN, IMPLEMENTATIONS
from tests.builders import WORKLOAD, configuration

pytestmark = pytest.mark.slow

# As narrow as still makes two buckets.
MLP = replace(WORKLOAD, architecture="mlp:width=512")
MLP_BYTES = 4 * 669_706
Completed = Callable[[Configuration], TrialRecord]


def verification_of(record: TrialRecord) -> Verification:
    assert record.facts.verification is not None
    return record.facts.verification


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TrialRunner:
    folder = tmp_path_factory.mktemp("trials")
    prepare_dataset("digits", data_dir=None, cache=folder)
    return TrialRunner(inspect_machine(), folder / "logs", folder)


@pytest.fixture(scope="module")
def completed(runner: TrialRunner) -> Completed:
    """Runs a trial, once for all tests that look at it."""

    @cache
    def run(settings: Configuration) -> TrialRecord:
        outcome = runner.run(settings, 0, 60)
        assert outcome.reason is None
        assert outcome.status is Status.COMPLETED
        assert verification_of(outcome).passed
        return outcome

    return run


def configurations() -> list[tuple[str, int]]:
    """Every implementation that needs a CPU alone at group sizes 1 and 2, and dp at 4."""
    pairs = [
        (name, size)
        for name, traits in BUILT_IN.items()
        for size in (1, 2)
        if size <= (traits.largest_group or size) and name != "torch-dp" and traits.requires is None
    ]
    return [*pairs, ("dp", 4)]


def trial_of(implementation: str, size: int, **changes: object) -> Configuration:
    exchange = IMPLEMENTATIONS[implementation].exchange
    backend = "gloo" if exchange == "ranks" else exchange
    values: dict[str, object] = {"workload": MLP, **changes}
    return configuration(implementation=implementation, backend=backend, group_size=size, **values)


@pytest.mark.parametrize(("implementation", "size"), configurations())
def test_gradients_are_those_of_one_process(
    completed: Completed, implementation: str, size: int
) -> None:
    outcome = completed(trial_of(implementation, size))
    parameters, steps = 6, 2
    assert verification_of(outcome).max_relative_error < 1e-12
    assert verification_of(outcome).tensors_compared == parameters * steps


@pytest.mark.parametrize("every", [2, 5])
def test_local_sgd_averages_as_often_as_asked_and_after_its_last_step(
    completed: Completed, every: int
) -> None:
    """Twelve steps and the last average; verified until the step after the first average."""
    trial = trial_of("local-sgd", 2, sync_every=every, warmup=2, steps=10)
    outcome = completed(trial)
    assert verification_of(outcome).max_relative_error < 1e-12
    assert verification_of(outcome).tensors_compared == (min(every, 4) + 1) * 6
    assert len({rank.final_checksum for rank in outcome.ranks}) == 1
    in_the_window = {2: 5, 5: 2}[every]
    assert {rank.reduced_bytes_per_step for rank in outcome.ranks} == {
        in_the_window * MLP_BYTES // 10
    }


def test_ranks_are_different_processes_on_different_samples(completed: Completed) -> None:
    for name in ("ddp", "independent"):
        outcome = completed(trial_of(name, 2))
        assert len({rank.pid for rank in outcome.ranks}) == 2
        assert len({rank.sample_checksum for rank in outcome.ranks}) == 2
        assert outcome.facts.group_class == "ProcessGroupGloo"


def test_ranks_stop_together(completed: Completed) -> None:
    """Each rank alone would fill the time with another number of steps."""
    tiny = replace(WORKLOAD, architecture="tests.launch.faulty:Healthy", dataset="synthetic")
    outcome = completed(trial_of("ddp", 2, workload=tiny, window_seconds=0.1))
    windows = [window for rank in outcome.ranks for window in rank.windows.values()]
    assert len(windows) == 2 * 2
    assert len({len(window.step_seconds) for window in windows}) == 1
