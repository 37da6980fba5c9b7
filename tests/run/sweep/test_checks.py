"""Which options of a sweep go together: precision and repetitions, datasets and loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.run.shared_options import dataset_name
from dpbench.run.sweep.checks import Amounts, parse_amounts, with_loading
from dpbench.run.sweep.rules import Axes
from tests.cli.typed import axes_of, options_of


def amounts(**typed: str) -> tuple[Amounts, list[str]]:
    notes: list[str] = []
    return parse_amounts(options_of([], **typed), notes), notes


def test_without_a_precision_steps_and_repetitions_are_fixed() -> None:
    fixed, notes = amounts()
    assert (fixed.timed_steps, fixed.repetitions, fixed.steps_grow) == ((50,), 4, False)
    assert (fixed.precision, fixed.budget_seconds, notes) == (None, None, [])
    assert amounts(steps="7", repetitions="2")[0].timed_steps == (7,)
    assert amounts(steps="7,9")[0].timed_steps == (7, 9)


def test_a_precision_lets_steps_and_repetitions_grow_within_a_budget_that_is_told() -> None:
    growing, notes = amounts(precision="2%")
    assert growing == Amounts(
        timed_steps=(10_000,), steps_grow=True, repetitions=6, precision=0.02, budget_seconds=600.0
    )
    assert notes == ["--budget 10m for repetitions, the default with --precision"]


def test_given_steps_stay_fixed_when_repetitions_grow() -> None:
    growing, notes = amounts(precision="0.5%", steps="40", budget="90s", repetitions="2")
    assert (growing.timed_steps, growing.steps_grow, growing.repetitions) == ((40,), False, 2)
    assert (growing.precision, growing.budget_seconds, notes) == (0.005, 90.0, [])
    several, _ = amounts(precision="0.5%", steps="40,80")
    assert (several.timed_steps, several.steps_grow) == ((40, 80), False)


def test_steps_that_grow_alone_have_a_precision_that_is_told() -> None:
    growing, notes = amounts(steps="auto", budget="1m")
    assert (growing.precision, growing.steps_grow) == (0.01, True)
    assert notes == ["--steps auto: until --precision 1%"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"budget": "3s"}, "--precision, which is not given"),
        ({"precision": "3"}, "is not a percentage"),
        ({"precision": "0%"}, "is not a percentage"),
        ({"precision": "100%"}, "is not a percentage"),
        ({"precision": "1%", "repetitions": "1"}, "at least 2 repetitions"),
        ({"precision": "1%", "budget": "soon"}, "is not a duration"),
        ({"repetitions": "100000"}, "expected at most 10,000"),
        ({"steps": "many"}, "--steps: 'many'"),
        ({"steps": "20,"}, "--steps: '20,' has an empty entry"),
        ({"steps": "20,auto"}, "--steps 20,auto: windows of auto grow as far as --precision takes"),
        ({"steps": "many", "precision": "1%"}, "--steps: 'many'"),
    ],
)
def test_values_that_do_not_fit_are_refused(typed: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        amounts(**typed)


THEIRS = "theirs.py:dataset"


def axes(prefetch: str | None, workers: str | None) -> Axes:
    return axes_of(["ddp"], prefetch=prefetch, data_workers=workers)


def loading(
    dataset: str, prefetch: str | None = None, workers: str | None = None
) -> tuple[Axes, list[str]]:
    notes: list[str] = []
    options = replace(options_of([], prefetch=prefetch), data=dataset)
    return with_loading(axes(prefetch, workers), options, notes), notes


def test_samples_lie_on_the_device_unless_something_else_is_asked_for() -> None:
    found, notes = loading("digits")
    assert (found.base("prefetch"), found.base("data_workers"), notes) == (None, 0, [])


def test_those_of_a_users_dataset_are_loaded_by_each_step_and_it_is_said() -> None:
    found, notes = loading(THEIRS)
    assert (found.base("prefetch"), found.variants()) == (0, ())
    assert notes == [
        "--prefetch 0, the default of datasets of your own: each step loads its samples of "
        "theirs.py:dataset; --prefetch 2 loads two steps ahead"
    ]
    assert loading(THEIRS, "2")[1] == []


@pytest.mark.parametrize("prefetch", ["resident", "0,resident"])
def test_they_cannot_be_told_to_lie_on_the_device(prefetch: str) -> None:
    with pytest.raises(UsageError, match=f"--prefetch {prefetch}: the samples of {THEIRS} may be"):
        loading(THEIRS, prefetch)


@pytest.mark.parametrize(("prefetch", "shown"), [(None, "resident"), ("resident,0", "resident,0")])
def test_workers_need_something_to_load_ahead(prefetch: str | None, shown: str) -> None:
    with pytest.raises(UsageError, match=f"--data-workers 2 with --prefetch {shown}: workers load"):
        loading("digits", prefetch, "2")


def test_rows_that_load_nothing_ahead_have_no_workers_and_it_is_said() -> None:
    _, notes = loading("digits", "resident,0,2", "0,2")
    assert notes == [
        "--data-workers 0,2: rows with --prefetch resident and 0 have none, as workers load ahead"
    ]
    assert loading("digits", "2", "2")[1] == []


def test_a_dataset_is_a_name_or_a_function_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text("raise AssertionError('not imported')")
    assert [dataset_name("--data", name) for name in ("iris", THEIRS)] == ["iris", THEIRS]
    for name, words in (
        ("irsi", "Did you mean 'iris'"),
        ("other.py:dataset", "dataset 'other.py:dataset': no file other.py here"),
        ("theirs.py", "dataset 'theirs.py': expected path/to/file.py:dataset"),
        ("no.such:dataset", "no module 'no.such' found"),
    ):
        with pytest.raises(UsageError, match=words):
            dataset_name("--data", name)
