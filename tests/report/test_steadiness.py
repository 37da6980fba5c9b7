"""What stands below a table about windows that were not steady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.fields.levels import configuration_row
from dpbench.analysis.summary import summarize
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.report.steadiness import noisy_repetitions, steadiness
from tests.analysis.builders import rank, record, trial, window

EVEN = [0.99, 1.01] * 250
DOWN = [2.0] * 25 + EVEN[:475]


def windows_of(*windows: Sequence[float], batch_size: int = 32) -> list[TrialRecord]:
    """A repetition for each list of step seconds."""
    spec = trial(timed_steps=len(windows[0]), warmup_steps=10, batch_size=batch_size)
    return [
        record(replace(spec, repetition=number), [rank(0, window(steps, 32 * len(steps)))])
        for number, steps in enumerate(windows)
    ]


def lines(records: Sequence[TrialRecord]) -> list[str]:
    return list(steadiness(summarize(records), "; ".join))


def test_steady_windows_need_no_line() -> None:
    assert lines(windows_of(EVEN, EVEN)) == []


def test_rows_that_warm_up_share_a_line_with_the_warmup_that_all_of_them_need() -> None:
    longer = [2.0] * 50 + EVEN[:450]
    records = [*windows_of(DOWN, DOWN, EVEN), *windows_of(longer, batch_size=64)]
    assert lines(records) == [
        "still warming up: ddp/gloo ×1, batch 32 (2 of 3); ddp/gloo ×1, batch 64 (1 of 1); the "
        "first steps of a window change the mean step by up to +9.1 %; raise --warmup to 60"
    ]


def test_a_single_repetition_that_warms_up_among_steady_ones_brings_no_advice() -> None:
    records = [*windows_of(EVEN, DOWN, EVEN), *windows_of(EVEN[:5], batch_size=64)]
    (short,) = lines(records)
    (few,) = noisy_repetitions(summarize(records), "; ".join)
    assert few == (
        "steps were not in a steady state in at most half of a row's repetitions, as noise of the "
        "machine does it (too short a warmup shows in most of them); the intervals contain it: "
        "ddp/gloo ×1, batch 32 (1 of 3)"
    )
    assert short.startswith("fewer than 40 timed steps")


def test_a_change_at_the_end_is_told_with_its_steps() -> None:
    throttled = EVEN[:400] + [1.05 * step for step in EVEN[:100]]
    assert lines(windows_of(throttled, EVEN)) == [
        "steps change at the end of the window: ddp/gloo ×1, batch 32 (1 of 2); the last 100 "
        "change the mean step by up to +1.0 %; look for heat, a power limit, or load that set in "
        "or ended"
    ]


def test_no_warmup_is_advised_where_other_processes_disturbed_the_steps() -> None:
    busy = HostLoad(cores=2, before=1.0, during=1.0, stolen=0.0)
    records = windows_of(EVEN, DOWN)
    assert any("raise --warmup" in line for line in lines(records))
    assert lines([replace(record, host_load=busy) for record in records]) == []


def test_a_drift_and_its_direction_are_told() -> None:
    faster = [step * (1 - 0.0001 * place) for place, step in enumerate(EVEN[:200])]
    (line,) = lines(windows_of(faster))
    assert line.startswith("steps drift: ddp/gloo ×1, batch 32 (1 of 1); by up to -")
    assert line.endswith("; raise --warmup")
    (line,) = lines(windows_of(faster[::-1]))
    assert "look for heat or other load" in line


def test_no_steady_state_is_a_verdict() -> None:
    (row,) = summarize(windows_of([1 + math.exp(-place / 200) for place in range(500)]))
    assert configuration_row(row)["steady"] == "no steady state"
    (line,) = steadiness([row], "; ".join)
    assert "the first half of a window changes the mean step by up to +" in line
    assert "raise --warmup above 260" in line


def test_too_few_steps_are_told_once() -> None:
    (line,) = lines([*windows_of(EVEN[:5]), *windows_of(EVEN[:5], batch_size=64)])
    assert line.startswith("fewer than 40 timed steps cannot tell")
