"""Which configurations belong together, what a selection is, and what cannot be compared."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dpbench.analysis.comparisons.matching import (
    IDENTITY,
    Matched,
    Side,
    compare_environments,
    environment_notes,
    match,
)
from dpbench.errors import NotComparable, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import Status
from dpbench.specs import Configuration, WorkloadSpec
from tests.analysis.builders import WRONG, rank, record, run, runs, side, trial, window
from tests.builders import HERE

SPEEDS = (100.0, 101.0, 99.0)
NOT_IDENTITY = {
    "workload",
    "devices",  # their kind counts
    "replicas_by_node",  # as "nodes"
    "window_seconds",  # how long it was measured
    "phase_steps",
    "gradient_steps",
    "compares_sync",
    "learning_rate_rule",  # the rate that it gives counts
    "script",  # whether other arguments make it slower is what people ask
    "files_sha256",  # whether an edit made it slower is what people ask
}


def grid(label: str, **changes: object) -> Side:
    """ddp and torch-ddp on gloo and shm at two group sizes."""
    return side(
        label,
        *(
            runs(trial(name, backend, group_size, **changes), SPEEDS)
            for name in ("ddp", "torch-ddp")
            for backend in ("gloo", "shm")
            for group_size in (1, 2)
        ),
        source="sweep",
    )


def labels(matched: Matched) -> list[str]:
    return [pair.label for pair in matched.pairs]


def test_every_setting_is_either_what_was_run_or_how_it_was_measured() -> None:
    names = {f.name for spec in (Configuration, WorkloadSpec) for f in fields(spec)}
    assert names - set(IDENTITY) == NOT_IDENTITY
    assert set(IDENTITY) - names == {"device", "nodes"}


def test_configurations_of_two_sweeps_are_paired_in_the_order_of_tables() -> None:
    matched = match(
        side("a", runs(trial("torch-ddp"), SPEEDS), runs(trial(group_size=2), SPEEDS)),
        side("b", runs(trial(group_size=2), SPEEDS), runs(trial("torch-ddp"), SPEEDS)),
    )
    assert labels(matched) == ["ddp/gloo ×2, batch 32", "torch-ddp/gloo ×1, batch 32"]
    assert not matched.same_sweep


def test_a_selection_settles_what_it_names_for_both_sides() -> None:
    whole = grid("x")
    ours = replace(whole, label="ours", where={"implementation": "ddp"})
    theirs = replace(whole, label="theirs", where={"implementation": "torch-ddp"})
    matched = match(theirs, ours)
    assert labels(matched) == [
        "gloo ×1, batch 32",
        "gloo ×2, batch 32",
        "shm ×1, batch 32",
        "shm ×2, batch 32",
    ]
    assert matched.same_sweep
    across = match(
        replace(ours, where={"implementation": "ddp", "backend": "shm"}),
        replace(theirs, where={"implementation": "torch-ddp", "backend": "gloo"}),
    )
    assert labels(across) == ["×1, batch 32", "×2, batch 32"]


def test_sides_that_share_trials_are_refused() -> None:
    whole = grid("x")
    with pytest.raises(UsageError, match="trials in common"):
        match(whole, replace(whole, label="y"))


def test_configurations_that_cannot_be_told_apart_are_refused() -> None:
    whole = grid("x")
    with pytest.raises(UsageError, match=r"more than one configuration .* differ in backend") as it:
        match(replace(whole, where={"backend": "gloo"}), side("y", whole.records))
    assert str(it.value).endswith("; select one with DIR:key=value")


def test_only_repetitions_that_may_be_believed_count() -> None:
    failed = record(trial(repetition=1), status=Status.FAILED)
    wrong = run(trial(repetition=2), 100.0, verification=WRONG)
    good = runs(trial(), SPEEDS)
    (pair,) = match(side("a", good), side("b", [good[0], failed])).pairs
    assert [one.trial.repetition for one in pair.candidate] == [0]
    (pair,) = match(side("a", good), side("b", [good[0], wrong])).pairs
    assert not pair.candidate


def test_nothing_in_common_is_not_comparable_and_says_why() -> None:
    slow, fast = (
        WorkloadSpec(architecture="mlp", dataset="digits", learning_rate=rate, seed=seed)
        for rate, seed in ((0.01, 0), (0.1, 1))
    )
    baseline = side("a", runs(trial(workload=slow), SPEEDS))
    candidate = side("b", runs(trial(workload=fast), SPEEDS))
    with pytest.raises(NotComparable, match=r"learning_rate: 0\.01 -> 0\.1; seed: 0 -> 1") as error:
        match(baseline, candidate)
    assert error.value.exit_status == 5


def test_a_selection_of_one_implementation_on_both_sides_leaves_its_settings_compared() -> None:
    """A setting that differs by accident is an error, and one that is selected is not."""
    where = {"implementation": "ddp"}
    small = runs(trial(bucket_cap_mb=2.0), SPEEDS)
    ours = side("a", runs(trial(), SPEEDS), where=where)
    with pytest.raises(NotComparable, match="bucket_cap_mb: auto -> 2"):
        match(ours, side("b", small, where=where))
    chosen = side("b", small, where={**where, "bucket_cap_mb": "2"})
    assert labels(match(ours, chosen)) == ["ddp/gloo ×1, batch 32"]


def test_a_window_that_fills_a_time_is_not_named_by_its_fewest_steps() -> None:
    filling = side("a", runs(trial(window_seconds=1.0), SPEEDS), where={"timed_steps": "1000"})
    with pytest.raises(UsageError, match="no trial has timed_steps '1000'; there is fill 1 s"):
        filling.selected()


@pytest.mark.parametrize("here", [replace(HERE, cores=2), replace(HERE, cores=64, quota_cores=2.5)])
def test_replicas_that_share_cores_are_told(here: Environment) -> None:
    measured = run(trial(group_size=4), 100.0, environment_ids=("e0",))
    (note,) = environment_notes([measured], {"e0": here})
    assert note == "oversubscribed, 4 threads on 2 cores: ddp/gloo ×4, batch 32"


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


@pytest.mark.parametrize(
    ("now", "notes"), [("a", ()), ("b", ("model.py has changed between the two",))]
)
def test_an_edited_model_may_be_compared_with_what_it_was_and_it_is_said(
    now: str, notes: tuple[str, ...]
) -> None:
    workloads = (
        replace(trial().workload, architecture="model.py:build", files_sha256=letter * 64)
        for letter in ("a", now)
    )
    matched = match(*(side("", runs(trial(workload=one), SPEEDS)) for one in workloads))
    assert len(matched.pairs) == 1
    assert compare_environments(matched)[1] == notes


def test_the_same_machine_with_another_commit_may_be_compared_and_it_is_said() -> None:
    assert compare_environments(sides(HERE, HERE)) == ((), ())
    _, notes = compare_environments(sides(HERE, replace(HERE, git_commit="abc", hostname="x")))
    assert notes == ("git commits differ: not known -> abc", "hosts differ: h -> x")


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
        measured = record(trial(), ranks, environment_ids=(one.environment_id,))
        sides.append(side(name, [measured], environments={one.environment_id: one}))
    differences, _ = compare_environments(match(*sides), force=True)
    assert differences == (
        "versions: torch 2.14.0 -> 2.15.0",
        "process group ProcessGroupNCCL -> ProcessGroupNCCL2",
    )
