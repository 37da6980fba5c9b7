"""Environments that forbid a comparison, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.comparability import (
    compare_environments,
    environment_notes,
)
from dpbench.analysis.comparisons.matching import Matched, match
from dpbench.analysis.resources import memory_imbalance
from dpbench.errors import NotComparable
from dpbench.records import environment
from dpbench.records.environment import Environment, capture
from dpbench.records.trial import TrialRecord
from dpbench.run.sweep.measuring import run_trials
from tests.analysis.builders import rank, runs, side, trial, window
from tests.analysis.builders import record as built
from tests.builders import trial_spec
from tests.launch.synthetic import SyntheticLauncher

ENVIRONMENTS_HERE = replace(environment.capture(), cores=2)


def record(here: Environment = ENVIRONMENTS_HERE, group_size: int = 2) -> TrialRecord:
    trial = trial_spec(group_size=group_size)
    identifier = here.environment_id
    (only,) = run_trials(
        [trial], SyntheticLauncher(), environment_ids=[identifier], time_limit_seconds=1
    )
    return only


def test_two_environments_are_told_with_what_differs() -> None:
    there = replace(ENVIRONMENTS_HERE, cpu="another")
    known = {ENVIRONMENTS_HERE.environment_id: ENVIRONMENTS_HERE, there.environment_id: there}
    (note,) = environment_notes([record(), record(there)], known)
    assert note == (f"trials ran in 2 environments: cpu: {ENVIRONMENTS_HERE.cpu!r} -> 'another'")


def test_replicas_that_share_cores_are_told() -> None:
    (note,) = environment_notes(
        [record(group_size=4)], {ENVIRONMENTS_HERE.environment_id: ENVIRONMENTS_HERE}
    )
    assert note == "oversubscribed, 4 threads on 2 cores: ddp/gloo ×4, batch 4"
    container = replace(ENVIRONMENTS_HERE, cores=64, quota_cores=2.5)
    (note,) = environment_notes(
        [record(container, group_size=4)], {container.environment_id: container}
    )
    assert note == "oversubscribed, 4 threads on 2 cores: ddp/gloo ×4, batch 4"


def test_memory_imbalance_is_the_largest_rank_over_the_mean() -> None:
    first, second = record().ranks
    uneven = replace(
        record(),
        ranks=(
            replace(first, peak_host_memory_bytes=300),
            replace(second, peak_host_memory_bytes=100),
        ),
    )
    assert memory_imbalance(record(), uneven) == 1.5
    assert memory_imbalance(replace(uneven, ranks=uneven.ranks[:1])) is None


HERE = replace(capture(), git_commit="abc", hostname="here")


def sides(*environments: Environment) -> Matched:
    first, second = (
        side(
            label,
            runs(trial(), (100.0, 101.0), environment_ids=(environment.environment_id,)),
            environments={environment.environment_id: environment},
        )
        for label, environment in zip("ab", environments, strict=True)
    )
    return match(first, second)


def of_files(sha256: str) -> list[TrialRecord]:
    workload = replace(trial().workload, architecture="model.py:build", files_sha256=sha256)
    return runs(trial(workload=workload), (100.0, 101.0))


def test_an_edited_model_may_be_compared_with_what_it_was_and_it_is_said() -> None:
    def said(before: str, now: str) -> tuple[str, ...]:
        matched = match(side("a", of_files(before)), side("b", of_files(now)))
        assert len(matched.pairs) == 1
        return compare_environments(matched)[1]

    assert said("a" * 64, "a" * 64) == ()
    assert said("a" * 64, "b" * 64) == ("model.py has changed between the two",)


def test_the_same_machine_with_another_commit_may_be_compared_and_it_is_said() -> None:
    assert compare_environments(sides(HERE, HERE)) == ((), ())
    _, notes = compare_environments(sides(HERE, replace(HERE, git_commit="def", hostname="x")))
    assert notes == ("git commits differ: abc -> def", "hosts differ: here -> x")
    _, notes = compare_environments(sides(replace(HERE, git_commit=None), HERE))
    assert notes == ("git commits differ: not known -> abc",)


def test_another_machine_is_refused_and_the_difference_named() -> None:
    other = sides(HERE, replace(HERE, cpu="Z80", cores=1))
    with pytest.raises(
        NotComparable, match=r"a and b come from .*cpu: .* -> 'Z80'; cores: .* -> 1"
    ):
        compare_environments(other)
    differences, notes = compare_environments(other, force=True)
    assert (len(differences), notes) == (2, ())


def test_another_class_of_process_group_is_named_beside_the_version() -> None:
    torch = (("torch", "2.14.0"),), (("torch", "2.15.0"),)
    environments = [replace(HERE, versions=versions) for versions in torch]
    sides = []
    for one, name in zip(environments, ("ProcessGroupNCCL", "ProcessGroupNCCL2"), strict=True):
        ranks = [rank(0, window([0.1], 32), group_class=name)]
        measured = built(trial(), ranks, environment_ids=(one.environment_id,))
        sides.append(side(name, [measured], environments={one.environment_id: one}))
    differences, _ = compare_environments(match(*sides), force=True)
    assert differences == (
        "versions: torch 2.14.0 -> 2.15.0",
        "process group ProcessGroupNCCL -> ProcessGroupNCCL2",
    )
