"""What differs between environments, and which of them may be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.comparison import Comparison, compare_sides
from dpbench.errors import NotComparable
from dpbench.records.environment import Environment
from tests.analysis.builders import rank, record, runs, side, trial, window
from tests.builders import HERE

SPEEDS = (100.0, 101.0, 99.0)


def compared(*environments: Environment, force: bool = False) -> Comparison:
    first, second = (
        side(
            label,
            runs(trial(), (100.0, 101.0), environment_ids=(environment.environment_id,)),
            environments={environment.environment_id: environment},
        )
        for label, environment in zip("ab", environments, strict=True)
    )
    return compare_sides(first, second, force=force)


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
    found = compare_sides(*(side("", runs(trial(workload=one), SPEEDS)) for one in workloads))
    assert len(found.pairs) == 1
    assert found.notes == notes


def test_the_same_machine_with_another_commit_may_be_compared_and_it_is_said() -> None:
    same = compared(HERE, HERE)
    assert (same.differences, same.notes) == ((), ())
    moved = compared(HERE, replace(HERE, git_commit="abc", hostname="x"))
    assert moved.notes == ("git commits differ: not known -> abc", "hosts differ: h -> x")


def test_another_machine_is_refused_and_the_difference_named() -> None:
    other = HERE, replace(HERE, cpu="Z80", cores=1)
    with pytest.raises(
        NotComparable, match=r"a and b come from .*cpu: .* -> 'Z80'; cores: .* -> 1"
    ):
        compared(*other)
    forced = compared(*other, force=True)
    assert (len(forced.differences), forced.notes) == (2, ())


def test_another_class_of_process_group_is_named_beside_the_version() -> None:
    environments = [replace(HERE, versions={"torch": torch}) for torch in ("2.14.0", "2.15.0")]
    sides = []
    for one, name in zip(environments, ("ProcessGroupNCCL", "ProcessGroupNCCL2"), strict=True):
        ranks = [rank(0, window([0.1], 32), group_class=name)]
        measured = record(trial(), ranks, environment_ids=(one.environment_id,))
        sides.append(side(name, [measured], environments={one.environment_id: one}))
    assert compare_sides(*sides, force=True).differences == (
        "versions: torch 2.14.0 -> 2.15.0",
        "process group ProcessGroupNCCL -> ProcessGroupNCCL2",
    )
