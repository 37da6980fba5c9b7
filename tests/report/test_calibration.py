"""The noise of a machine as text and as data."""

from __future__ import annotations

import re
import shlex

from dpbench.analysis.comparisons.calibration import calibrate
from dpbench.analysis.comparisons.matching import Side
from dpbench.report.calibration import answer, command
from tests.analysis.builders import runs, trial
from tests.analysis.comparisons.test_calibration import steady

SPEEDS = [1000.0 * factor for factor in (1.0, 1.004, 0.996, 1.002, 0.998, 1.0, 1.003, 0.997)]
QUIET = calibrate(runs(trial(), steady(0.01, 10)), {})
HOPELESS = calibrate(runs(trial(), steady(1.0, 8)), {})

BESIDE = "--arch model.py:make --against-ref origin/main"


def test_a_row_has_its_spread_and_the_tolerances_it_supports() -> None:
    row = answer(QUIET, "results/x", BESIDE).text.splitlines()[2]
    expected = "ddp/gloo ×1, batch 32 | 1.0 (0.7–1.8) % | 3.3 % | 2.1 % | 1.4 % | 0.95 % | 10"
    assert re.sub(r"  +", " | ", row) == expected


def test_it_ends_with_the_check_that_it_supports() -> None:
    text = answer(QUIET, "results/x", BESIDE).text.splitlines()
    assert text[-1] == f"dpbench check {BESIDE} --tolerance 3% --repetitions 5"


def test_a_stored_baseline_is_advised_only_where_a_second_occasion_has_confirmed_it() -> None:
    earlier = Side(label="results/monday", records=tuple(runs(trial(), SPEEDS)), environments={})

    def told(factor: float) -> list[str]:
        now = runs(trial(), [speed * factor for speed in SPEEDS])
        text = answer(calibrate(now, {}, earlier), "results/x", BESIDE).text
        return [" ".join(text.split()), text.splitlines()[-1]]

    lasting, moved = told(1.002), told(1.04)
    assert "since results/monday the speeds moved by up to 0.2 %, surely within" in lasting[0]
    assert lasting[1].startswith("dpbench check --baseline results/x --tolerance ")
    assert "moved by up to 4 %, not surely within" in moved[0]
    assert "a stored baseline would raise false alarms" in moved[0]
    assert moved[1].startswith(f"dpbench check {BESIDE} ")
    once = " ".join(answer(QUIET, "results/x", BESIDE).text.split())
    assert "measure again later with --again results/x" in once
    again = command(calibrate(runs(trial(), SPEEDS), {}, earlier), "my results/x", BESIDE)
    assert again is not None
    assert shlex.split(again)[3] == "my results/x"


def test_without_a_usable_tolerance_it_says_what_to_do() -> None:
    assert (
        answer(HOPELESS, "results/x", BESIDE)
        .text.splitlines()[-1]
        .startswith("No check: runs of ddp")
    )
    assert command(HOPELESS, "results/x", BESIDE) is None


def test_the_rehearsal_and_the_repetitions_are_in_the_notes() -> None:
    notes = " ".join(answer(QUIET, "results/x", BESIDE).text.split())
    assert "1 % takes 19, 3 % takes 4, 5 % takes 3, 10 % takes 2 runs a side" in notes
    assert "of 2 rows 0 regressed (false alarms), 2 pass, 0 inconclusive" in notes


def test_data_hold_fractions() -> None:
    data = answer(QUIET, "results/x", BESIDE).data
    (row,) = data["rows"]
    assert round(row["spread"], 6) == 0.01
    assert row["repetitions_needed"] == {"0.01": 19, "0.03": 4, "0.05": 3, "0.1": 2}
    assert data["rehearsal"]["pass"] == 2
    assert answer(HOPELESS, "results/x", BESIDE).data["rehearsal"] is None
