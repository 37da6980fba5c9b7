"""The headline in words, for the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.headline import LargestLoss, headline
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from dpbench.records.trial import HostLoad
from dpbench.report.headline import findings
from dpbench.report.screen import verdict
from tests.analysis.builders import record, run, runs, trial
from tests.report.sample import sample_records, subject

SPEEDS = {"ddp": 100.0, "torch-ddp": 50.0}


def test_the_findings_are_the_fastest_the_best_scaling_and_what_limits_it() -> None:
    found = [(one.title, one.value) for one in findings(subject(sample_records()).headlines)]
    assert found == [
        ("Fastest", "7,033 ± 25 images/s"),
        ("Best scaling", "91.9 ± 1.2 % of linear at 2 replicas"),
        ("What limits it", "6.8 ± 0.3 % of a step"),
    ]


@pytest.mark.parametrize("steps", [200, 1])
def test_a_single_run_separates_nothing(steps: int) -> None:
    """Twice as fast, and with an interval over its steps that is far from the other's."""
    records = [run(trial(name, timed_steps=steps), v, losses=()) for name, v in SPEEDS.items()]
    about = next(findings(subject(records).headlines)).about
    assert "a single run cannot show whether another is as good" in about
    alone = next(findings(subject(records[:1]).headlines)).about
    assert "cannot show" not in alone
    assert ("one repetition, n = 20 batches of its steps" in alone) is (steps == 200)


def test_rows_that_tie_within_the_noise_have_no_winner() -> None:
    speeds = {"ddp": (100.0, 102.0, 98.0), "torch-ddp": (99.0, 101.0, 97.0)}
    records = [one for name, several in speeds.items() for one in runs(trial(name), several)]
    fastest = next(findings(subject(records).headlines))
    assert (fastest.title, fastest.value) == ("Fastest", "no clear winner")
    assert fastest.about == (
        "100 ± 5 images/s of ddp/gloo ×1, batch 32; n = 3; statistically tied with "
        "torch-ddp/gloo ×1, batch 32"
    )


def test_a_busy_machine_has_no_winner_and_no_best_scaler() -> None:
    busy = HostLoad(cores=2, before=1.9, during=2.0, stolen=0.0)
    records = [
        run(trial(group_size=size, repetition=k), 100.0 * size + k, host_load=busy)
        for size in (1, 2)
        for k in range(3)
    ]
    found = subject(records)
    first, *others = findings(found.headlines)
    assert (first.title, first.value) == ("Busy machine", "not to be trusted")
    assert first.about.startswith("other processes used 100 % of 2 cores during 6 of 6 trials")
    assert [one.value for one in others] == ["not known", "not known", "none found"]
    (line,) = verdict(found.headlines)
    assert line == (
        "No fastest configuration: the machine was busy, and no figure is to be trusted."
    )


def test_speeds_that_are_too_noisy_have_no_winner() -> None:
    wild = [one for size in (1, 2) for one in runs(trial(group_size=size), (100.0, 400.0))]
    fastest, scaling, _ = findings(subject(wild).headlines)
    assert (fastest.about, scaling.about) == (
        "the speeds are too noisy",
        "the speedups are too noisy",
    )


def test_the_largest_loss_has_its_remedy() -> None:
    (row,) = summarize([run(trial(), 100.0)])
    share = LogMean.of_runs([0.09, 0.1]).estimate("")
    loss = "waiting for rank 1 (cuda:1), the slowest in all 2 repetitions"
    limit = LargestLoss(share=share, row=row, loss=loss, remedy="compare its clock")
    whole = replace(headline([row]), limit=limit)
    assert f"{loss}: compare its clock ({row.label}; n = 2)" in list(findings({"": whole}))[2].about


def test_gradients_that_nobody_checked_are_a_caveat() -> None:
    unchecked = [run(trial(repetition=k), 100.0 + k, verification=None) for k in range(3)]
    (fastest, *_) = findings(subject(unchecked).headlines)
    assert "its gradients were not compared with one process" in fastest.about


def test_what_is_missing_has_its_reason() -> None:
    failed = subject([record(trial(), reason="rank 0 ended with signal 9")])
    fastest, scaling, limit = findings(failed.headlines)
    assert (fastest.value, scaling.value, limit.value) == ("not known", "not known", "none found")
    assert "failed" in fastest.about


def test_each_work_of_a_sweep_has_a_headline_of_its_own() -> None:
    """The faster kind of scaling is not the fastest row of the other one, and no rival of it."""
    speeds = {("weak", 1): 100.0, ("weak", 2): 180.0, ("strong", 1): 100.0, ("strong", 2): 120.0}
    records = [
        run(
            trial(group_size=n, scaling=scaling, compared=("scaling",), repetition=k),
            speed * (1 + k / 1000),
        )
        for (scaling, n), speed in speeds.items()
        for k in range(3)
    ]
    found = subject(records)
    assert set(found.headlines) == {"weak", "strong"}
    said = {one.title: one.value for one in findings(found.headlines)}
    assert said["Fastest: weak"].startswith("180")
    assert said["Best scaling: weak"].startswith("90")
    assert said["Fastest: strong"].startswith("120")
    assert said["Best scaling: strong"].startswith("60")
    with pytest.raises(UsageError, match="rows are of several works"):
        _ = found.headline
