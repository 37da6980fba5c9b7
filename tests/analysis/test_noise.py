"""Trials under load, rows that are too noisy, and the one cure that is advised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.noise import (
    MachineLoad,
    disturbed_repetitions,
    is_under_load,
    machine_load,
)
from dpbench.analysis.rows import summarize
from dpbench.analysis.sentences import noise_warnings, warnings_on
from dpbench.records.trial import HostLoad, TrialRecord
from tests.analysis.builders import run, runs, trial

WILD = (100.0, 200.0, 400.0)


def load(during: float, stolen: float = 0.0) -> HostLoad:
    return HostLoad(cores=2, during=during, stolen=stolen)


def trials(loads: Sequence[HostLoad | None], **changes: object) -> list[TrialRecord]:
    return [
        run(trial(**changes), 1000.0, host_load=one, repetition=number)
        for number, one in enumerate(loads)
    ]


def test_a_busy_machine_is_named_with_what_it_was_busy_with_and_how_often() -> None:
    records = trials([load(0.8)] * 31 + [load(0.1)] * 11)
    found = machine_load(records)
    assert found.note == (
        "other processes used 40 % of 2 cores during 31 of 42 trials: free the machine and "
        "measure again before acting on this"
    )
    assert (found.spoils_speeds, found.spoils_differences) == (True, False)
    assert [*warnings_on(summarize(trials([None])), (), found)][-1] == found.note, "no row had it"
    for loaded, spoiled in ((1, False), (6, True)):  # of ten: 0.1 and 0.57 of the cores
        found = machine_load(trials([load(1.9)] * loaded + [load(0.0)] * (10 - loaded)))
        assert (found.spoils_speeds, found.spoils_differences) == (True, spoiled)


def test_a_quiet_machine_and_old_results_have_nothing_to_say() -> None:
    assert machine_load(trials([load(0.19), None])) == MachineLoad()


def test_repetitions_are_disturbed_if_they_spoil_the_speeds_and_others_were_quiet() -> None:
    busy, quiet = [load(1.0)], [load(0.0)]
    assert disturbed_repetitions(trials(busy * 2 + quiet * 2)) == {0, 1}
    assert disturbed_repetitions(trials(busy * 2 + quiet)) == set(), "it is busy all the time"
    assert disturbed_repetitions(trials(busy + quiet * 10)) == set(), "one of 11 spoils nothing"


def test_trials_on_gpus_bear_more_of_it() -> None:
    on_cpu, on_gpu = (trials([load(0.8)], devices=(device,))[0] for device in ("cpu", "cuda:0"))
    assert (is_under_load(on_cpu), is_under_load(on_gpu)) == (True, False)


def note(records: Sequence[TrialRecord]) -> list[str]:
    rows = summarize(records)
    return [*noise_warnings(rows, rows, "report")]


def test_rows_that_are_too_noisy_say_what_is_known_and_what_would_be_enough() -> None:
    """Their logarithms deviate by ln 2: t(12) × ln 2 ÷ √13 is below 0.8 × ln 3 ÷ 2 = 0.44."""
    wild = [row for size in (1, 2) for row in runs(trial(group_size=size), WILD)]
    assert note(wild) == [
        "too noisy to report: ddp/gloo ×1, batch 32 (100–400 images/s); ddp/gloo ×2, batch 32 "
        "(100–400 images/s); about 13 repetitions (now 3), 26 s: --repetitions 13"
    ]
    (hopeless,) = note(runs(trial(), (1.0, 10_000.0)))
    assert hopeless.endswith("; more than 200 repetitions (now 2)")
    assert note(runs(trial(), (100.0, 101.0))) == []


def test_where_other_processes_ran_no_repetitions_are_advised() -> None:
    busy = [replace(one, host_load=load(1.0)) for one in runs(trial(), WILD)]
    (line,) = note(busy)
    assert line.endswith(" (100–400 images/s); the machine was busy: free it and measure again")


def test_a_row_whose_speed_is_known_says_which_speedup_is_too_noisy() -> None:
    (line,) = note([*runs(trial(), (60.0, 100.0, 180.0)), *runs(trial(group_size=2), (190.0,) * 3)])
    assert "×2, batch 32 (speedup 0.47–7.3)" in line
