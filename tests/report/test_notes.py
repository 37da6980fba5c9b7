"""Lines below a table about slow first steps and ties, and cells that are too noisy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.frames import row_frame
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.rows import summarize
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.report.configurations import cell
from dpbench.report.table import MISSING
from tests.analysis.builders import rank, record, run, runs, steps_of, trial, window

METRIC = {metric.key: metric for metric in METRICS}
EVEN = [1.0] * 50
SLOW_START = [2.0] * 5 + EVEN[5:]


def windows_of(*windows: Sequence[float], batch_size: int = 32) -> list[TrialRecord]:
    """A repetition for each list of step seconds."""
    spec = trial(steps=len(windows[0]), warmup=10, batch_size=batch_size)
    return [
        record(spec, [rank(0, window(steps, 32 * len(steps)))], repetition=number)
        for number, steps in enumerate(windows)
    ]


def warming_up(records: Sequence[TrialRecord]) -> list[str]:
    found = Analysis(name="", rows=summarize(records))
    return [line for line in found.warnings if line.startswith("still warming up: ")]


def test_rows_that_warm_up_share_a_line_with_the_warmup_that_all_of_them_need() -> None:
    longer = [1.5] * 10 + EVEN[10:]
    records = [*windows_of(SLOW_START, SLOW_START), *windows_of(longer, longer, batch_size=64)]
    records += windows_of(EVEN, EVEN, batch_size=128)
    assert warming_up(records) == [
        "still warming up: ddp/gloo ×1, batch 32; ddp/gloo ×1, batch 64; the first steps of a "
        "window take up to 100 % longer than the rest; try --warmup 20"
    ]
    assert warming_up(windows_of(EVEN, EVEN)) == []
    busy = HostLoad(cores=2, during=1.0, stolen=0.0)
    records = [replace(record, host_load=busy) for record in windows_of(SLOW_START, SLOW_START)]
    assert warming_up(records) == [], "others disturbed the steps"


def test_rates_that_come_from_a_speed_that_is_too_noisy_are_not_printed_either() -> None:
    (wild,), (calm,) = (
        summarize(
            [steps_of("ddp", [s] * 2, [0.01] * 2, repetition=n) for n, s in enumerate(seconds)]
        )
        for seconds in ((0.02, 0.2), (0.02, 0.0202))
    )
    for name in ("images_per_second", "exposed_communication_seconds"):
        metric = METRIC[name]
        assert cell(metric, wild, metric.read(wild)) == "too noisy"
        assert cell(metric, calm, metric.read(calm)) not in ("too noisy", MISSING)
    assert row_frame([wild])["exposed_communication_seconds"].notna().all()


def test_a_ratio_without_an_interval_is_not_printed_beside_a_speed_that_is_too_noisy() -> None:
    """As if one run of the reference made it the most exact number of the row."""
    alone = run(trial("single", "none"), 100.0)
    wild = runs(trial("ddp", "gloo", 2), (100.0, 400.0))
    row = next(row for row in summarize([alone, *wild]) if row.implementation == "ddp")
    for key in ("speedup", "efficiency"):
        assert cell(METRIC[key], row, METRIC[key].read(row)) == "too noisy"
