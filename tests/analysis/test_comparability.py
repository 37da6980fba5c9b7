"""Environments that forbid a comparison, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparability import check_environments, environment_differences
from dpbench.analysis.matching import Matched, NotComparable, match
from dpbench.analysis.outcome import by_configuration
from dpbench.environment import SYNTHETIC, Environment, capture
from dpbench.errors import UsageError
from dpbench.records import TrialRecord
from tests.analysis.builders import runs, side, trial

HERE = replace(capture(), git_commit="abc", hostname="here")


def sides(*environments: Environment, stored: bool = True) -> Matched:
    first, second = (
        side(
            label,
            runs(trial(), (100.0, 101.0), environment_id=environment.environment_id),
            environments={environment.environment_id: environment} if stored else {},
        )
        for label, environment in zip("ab", environments, strict=True)
    )
    return match(first, second)


def of_files(sha256: str | None) -> list[TrialRecord]:
    workload = replace(trial().workload, architecture="model.py:build", files_sha256=sha256)
    return runs(trial(workload=workload), (100.0, 101.0))


def test_an_edited_model_may_be_compared_with_what_it_was_and_it_is_said() -> None:
    def said(before: str | None, now: str | None) -> tuple[str, ...]:
        matched = match(side("a", of_files(before)), side("b", of_files(now)))
        assert len(matched.pairs) == 1
        return check_environments(matched)

    assert said("a" * 64, "a" * 64) == ()
    assert said("a" * 64, "b" * 64) == (
        "model.py or what it imports has changed between the two: SHA-256 aaaaaaaaaaaa -> "
        "bbbbbbbbbbbb",
    )
    (unknown,) = said(None, "b" * 64)
    assert unknown.startswith("model.py or what it imports may have changed between the two")


def test_a_model_before_and_after_an_edit_in_one_folder_stays_two_things() -> None:
    records = (of_files("a" * 64), of_files("b" * 64))
    with pytest.raises(UsageError, match=r"Select one, e\.g\. DIR:files=aaaaaaaaaaaa$"):
        match(side("DIR", *records), side("other", records[0]))
    both = [side("DIR", *records, where={"files": one}, source="DIR") for one in ("aaa", "bbb")]
    (pair,) = match(*both).pairs
    assert (len(pair.baseline), len(pair.candidate)) == (2, 2)
    assert len(by_configuration([*records[0], *records[1]])) == 2


def test_the_same_machine_with_another_commit_may_be_compared_and_it_is_said() -> None:
    assert check_environments(sides(HERE, HERE)) == ()
    assert check_environments(sides(HERE, replace(HERE, git_commit="def", hostname="x"))) == (
        "git commits differ: abc -> def",
        "hosts differ: here -> x",
    )
    assert check_environments(sides(replace(HERE, git_commit=None), HERE)) == (
        "git commits differ: not known -> abc",
    )


def test_another_machine_is_refused_and_the_difference_named() -> None:
    other = sides(HERE, replace(HERE, cpu="Z80", cores=1))
    with pytest.raises(
        NotComparable, match=r"a and b come from .*cpu: .* -> 'Z80'; cores: .* -> 1"
    ):
        check_environments(other)
    (note,) = check_environments(other, force=True)
    assert "'Z80'" in note


def test_an_environment_that_is_not_stored_may_be_any() -> None:
    matched = sides(HERE, replace(HERE, cores=99), stored=False)
    assert len(environment_differences(matched)) == 2
    assert "of a is not stored" in environment_differences(matched)[0]
    assert environment_differences(sides(HERE, HERE, stored=False)) == ()


def test_a_side_without_measurements_has_no_environment() -> None:
    matched = sides(HERE, replace(HERE, cores=99))
    (pair,) = matched.pairs
    empty = replace(matched, pairs=(replace(pair, candidate={}),))
    assert check_environments(empty) == ()


def test_sides_that_are_mixtures_alike_are_compared_with_a_note() -> None:
    other = replace(HERE, cpu="Z80")
    first, second = (
        side(
            label,
            runs(trial(), (100.0, 101.0), environment_id=HERE.environment_id),
            runs(trial(batch_size=8), (100.0, 101.0), environment_id=other.environment_id),
            environments={e.environment_id: e for e in (HERE, other)},
        )
        for label in "ab"
    )
    (note,) = check_environments(match(first, second))
    assert note.startswith("both sides mix 2 environments (")


def test_synthetic_numbers_are_named() -> None:
    made_up = replace(HERE, launcher=SYNTHETIC)
    (note,) = check_environments(sides(made_up, made_up))
    assert note == "synthetic numbers from a cost model: nothing was run"
