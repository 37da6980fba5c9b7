from __future__ import annotations

from dataclasses import replace

from dpbench import environment
from dpbench.analysis.environments import environment_notes
from dpbench.analysis.resources import memory_imbalance
from dpbench.environment import Environment
from dpbench.grid import run
from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.records import TrialRecord
from tests.builders import trial_spec

HERE = replace(environment.capture(), cores=2)


def record(here: Environment = HERE, group_size: int = 2) -> TrialRecord:
    trial = trial_spec(group_size=group_size)
    identifier = here.environment_id
    (only,) = run([trial], SyntheticLauncher(), environment_id=identifier, time_limit_seconds=1)
    return only


def test_one_environment_needs_no_note() -> None:
    assert environment_notes([record()], {HERE.environment_id: HERE}) == ()


def test_two_environments_are_told_with_what_differs() -> None:
    there = replace(HERE, cpu="another")
    known = {HERE.environment_id: HERE, there.environment_id: there}
    first, second = environment_notes([record(), record(there)], known)
    assert "trials come from 2 environments" in first
    assert f"cpu: {HERE.cpu!r} -> 'another'" in second


def test_a_commit_between_two_trials_is_told_and_forbids_nothing() -> None:
    before, after = (replace(HERE, git_commit=commit) for commit in ("aaa", "bbb"))
    known = {here.environment_id: here for here in (before, after)}
    (note,) = environment_notes([record(before), record(after)], known)
    assert note == "trials come from 2 git commits: aaa, bbb"


def test_a_missing_environment_is_told() -> None:
    (note,) = environment_notes([record()], {})
    assert "is not stored" in note


def test_made_up_numbers_are_said_to_be_so() -> None:
    synthetic = replace(HERE, launcher="synthetic")
    (note,) = environment_notes([record(synthetic)], {synthetic.environment_id: synthetic})
    assert "nothing was run" in note


def test_replicas_that_share_cores_are_told() -> None:
    (note,) = environment_notes([record(group_size=4)], {HERE.environment_id: HERE})
    assert note == "oversubscribed, 4 threads on 2 cores: ddp/gloo ×4, batch 4"


def test_many_configurations_that_share_cores_are_counted() -> None:
    trials = [trial_spec(group_size=size, batch_size=8 * size) for size in range(2, 12)]
    ended = run(
        trials, SyntheticLauncher(), environment_id=HERE.environment_id, time_limit_seconds=1
    )
    (note,) = environment_notes([*ended], {HERE.environment_id: HERE})
    assert note == (
        "oversubscribed, 3 to 11 threads on 2 cores: 9 configurations of group size 3 to 11"
    )


def test_memory_imbalance_is_the_largest_rank_over_the_mean() -> None:
    first, second = record().ranks
    uneven = replace(
        record(),
        ranks=(
            replace(first, peak_host_memory_bytes=300),
            replace(second, peak_host_memory_bytes=100),
        ),
    )
    assert memory_imbalance([record(), uneven]) == 1.5
    assert memory_imbalance([replace(uneven, ranks=uneven.ranks[:1])]) is None
