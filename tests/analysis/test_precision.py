"""Which speeds are precise enough."""

from __future__ import annotations

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.precision import precision_note, too_wide
from dpbench.records.trial import Status
from tests.analysis.builders import run, runs, trial


def test_only_what_has_a_speed_can_be_too_wide() -> None:
    precise, wide, alone = trial(), trial(batch_size=8), trial(batch_size=16)
    failed = run(trial(batch_size=4), 1.0, status=Status.FAILED)
    records = [*runs(precise, (2.0, 2.0)), *runs(wide, (1.0, 1.1)), *runs(alone, (2.0,)), failed]
    assert too_wide(records, 0.01) == {wide, alone}
    # ln 1 and ln 1.1 at one degree of freedom: up by exp(12.706 x 0.04766) - 1 = 83 %.
    assert too_wide(records, 0.83) == {wide, alone}
    assert too_wide(records, 0.84) == {alone}


def test_the_note_names_the_rows_that_are_not_precise_enough() -> None:
    precise, wide = (LogMean.of_runs(speeds).estimate("") for speeds in ((2.0, 2.0), (1.0, 1.1)))
    assert precision_note([("a", precise)], 0.01) == (
        "--precision 1 % is reached in every row; the widest interval is ± 0 %"
    )
    assert precision_note([("a", precise), ("b", wide), ("c", None)], 0.01) == (
        "--precision 1 % is not reached within the budget by b (± 83.2 %); c (no interval)"
    )
