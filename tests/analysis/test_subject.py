"""The headline: what is best, what is not told apart from it, or why none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.published import from_csv
from dpbench.analysis.rows import summarize
from dpbench.analysis.subject import Best, Headline, headline_of
from dpbench.records.trial import Status, TrialRecord
from tests.analysis.builders import noisy_sweep, record, run, trial

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


def repeated(
    name: str, backend: str, speeds: Sequence[float], *, group_size: int = 1
) -> list[TrialRecord]:
    return [
        run(trial(name, backend, group_size, repetition=k), speed) for k, speed in enumerate(speeds)
    ]


def of(records: Sequence[TrialRecord]) -> Headline:
    return headline_of(summarize(records))


def best(found: Best | None) -> Best:
    assert found is not None
    return found


def test_whoever_overlaps_the_best_is_named_nearest_first() -> None:
    found = best(
        of(
            repeated("ddp", "gloo", (100, 130, 160))
            + repeated("ddp", "shm", (140, 150, 160))
            + repeated("torch-ddp", "gloo", (141, 142, 143))
            + repeated("torch-ddp", "shm", (10, 10.1, 10.2))
        ).fastest
    )
    assert found.row.series == "ddp/shm"
    assert [row.series for row in found.rivals] == ["torch-ddp/gloo", "ddp/gloo"]


def test_independent_copies_are_never_the_best() -> None:
    found = of(
        repeated("ddp", "gloo", (100, 101, 99))
        + repeated("ddp", "gloo", (150, 151, 149), group_size=2)
        + repeated("independent", "none", (100, 101, 99))
        + repeated("independent", "none", (200, 201, 199), group_size=2)
    )
    assert best(found.fastest).row.label == "ddp/gloo ×2, batch 32"
    assert best(found.scaling).row.label == "ddp/gloo ×2, batch 32"
    assert best(found.scaling).value.value == pytest.approx(0.75, rel=1e-3)


def test_scaling_is_that_of_the_largest_group() -> None:
    found = best(
        of(
            [
                *(run(trial(group_size=n), speed) for n, speed in ((1, 100), (2, 198), (4, 320))),
                *(run(trial("torch-ddp", group_size=n), s) for n, s in ((1, 100), (4, 360))),
            ]
        ).scaling
    )
    assert found.row.label == "torch-ddp/gloo ×4, batch 32"
    assert found.value.value == pytest.approx(0.9)


def test_nothing_is_named_where_the_highest_speed_is_too_noisy() -> None:
    found = of(noisy_sweep())
    assert found == Headline(reason="the speeds are too noisy")


def test_only_failures_are_said_by_how_they_ended() -> None:
    found = of(
        [
            record(trial(), status=Status.TIMED_OUT, reason="no step in 30 s"),
            record(trial("torch-ddp"), status=Status.FAILED, reason="rank 0 ended"),
        ]
    )
    assert found.reason == "no configuration completed (failed, timed out)"


def test_the_baseline_is_not_the_fastest_where_what_was_asked_for_failed() -> None:
    single = repeated("single", "none", (100, 101, 99))
    assert best(of(single).fastest).row.label == "single ×1, batch 32"
    found = of([*single, record(trial(), status=Status.TIMED_OUT, reason="no step in 30 s")])
    assert found.reason == "no configuration but single completed (timed out)"


def test_settings_that_are_not_the_default_make_no_other_implementation() -> None:
    """`single` stays the baseline and `independent` unranked, whatever their labels say."""

    def with_adamw(records: Sequence[TrialRecord]) -> list[TrialRecord]:
        workload = replace(records[0].trial.workload, optimizer="adamw")
        return [replace(one, trial=replace(one.trial, workload=workload)) for one in records]

    single = with_adamw(repeated("single", "none", (100, 101, 99)))
    failed = with_adamw([record(trial(), status=Status.TIMED_OUT, reason="no step in 30 s")])
    assert of([*single, *failed]).reason == "no configuration but single completed (timed out)"
    copies = with_adamw(repeated("independent", "none", (200, 201, 199), group_size=2))
    assert best(of([*single, *copies]).fastest).row.label == "single(adamw) ×1, batch 32"


def test_of_published_times_the_least_is_the_fastest() -> None:
    found = headline_of(from_csv(PUBLISHED / "tabtune_tabicl.csv"))
    assert best(found.fastest).row.group_size == 8
    assert best(found.scaling).value.value == pytest.approx(0.75)


def test_other_load_is_not_the_reason_where_every_row_failed() -> None:
    busy = "other processes used 90 % of 2 cores"
    failed = summarize([record(trial(), status=Status.FAILED, reason="no memory")])
    assert headline_of(failed, load=busy).reason == "no configuration completed (failed)"
    measured = summarize(repeated("ddp", "gloo", (100, 101, 99)))
    assert headline_of(measured, load=busy).reason == busy
