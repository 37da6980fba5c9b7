"""The extrapolator on published tables: what is aimed at is reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dpbench.analysis.laws.band import (
    LawError,
    Misspecification,
    misspecification_from,
    published_misspecification,
)
from dpbench.analysis.laws.fit import fit
from dpbench.analysis.laws.series import Series
from dpbench.analysis.laws.series_file import read_series
from dpbench.analysis.laws.study import MOST_LEFT_OUT, leave_one_out
from dpbench.errors import StoreError
from tests.analysis.laws.series import PUBLISHED, ring_and_log, series
from tests.benchmarks.hold_outs import (
    AMDAHL,
    FREE_USL,
    LAST,
    LAW,
    RULE_OF_THUMB,
    USL,
    HoldOut,
    as_csv,
    between_hold_outs,
    errors,
    hold_outs,
    leave_one_series_out,
    own_error,
    two_size_between_hold_outs,
    two_size_hold_outs,
    unusable_reason,
)
from tests.benchmarks.published_tables import main, run

WEAK = PUBLISHED / "weak_scaling.csv"
SERIES = read_series(PUBLISHED / "weak_scaling.csv")
CASES = hold_outs(SERIES)
ERRORS = {(found.model, found.factor): found for found in errors(CASES)}


def test_the_law_predicts_twice_and_four_times_the_data() -> None:
    assert len(CASES) == 23
    assert ERRORS[LAW, 2].median <= 0.015
    assert ERRORS[LAW, 4].median <= 0.03


@pytest.mark.parametrize("model", [LAST, AMDAHL, USL, FREE_USL, RULE_OF_THUMB])
@pytest.mark.parametrize("factor", [2, 4])
def test_the_law_beats_the_others(model: str, factor: int) -> None:
    assert ERRORS[LAW, factor].median < ERRORS[model, factor].median


def test_amdahls_law_is_const_and_lin() -> None:
    (case,) = hold_outs([series(ring_and_log, (1, 2, 4, 8))])
    found = fit(series(ring_and_log, (1, 2, 4)), basis=("const", "lin"), refits=0)
    assert case.predicted[AMDAHL] == pytest.approx(8 * 32 / found.seconds(8))


def test_free_signs_are_no_way_to_extrapolate() -> None:
    assert ERRORS[FREE_USL, 2].median > 0.2
    assert ERRORS[FREE_USL, 4].median > 1


def test_bands_cover() -> None:
    assert sum(case.is_covered for case in CASES) / len(CASES) >= 0.85
    independent = leave_one_series_out(CASES)
    assert independent is not None
    assert sum(case.is_covered for case in independent) / len(CASES) >= 0.85


def test_a_band_of_the_other_series_knows_nothing_of_its_own() -> None:
    """The case that is slowest of all sets the band of all others, not its own."""
    independent = leave_one_series_out(CASES)
    assert independent is not None
    worst = max(range(len(CASES)), key=lambda place: CASES[place].residual)
    assert CASES[worst].is_covered
    assert not independent[worst].is_covered
    others = max(c.residual for c in CASES if c.series != CASES[worst].series)
    assert independent[worst].low == pytest.approx(
        CASES[worst].predicted[LAW] * math.exp(-others * math.sqrt(CASES[worst].octaves))
    )


def test_the_error_beyond_is_that_of_the_shipped_table() -> None:
    error, own = published_misspecification().beyond, own_error(CASES)
    assert own is not None
    assert error.hold_outs == own.hold_outs
    # Rounded outwards to three decimals.
    assert error.low == pytest.approx(math.floor(1000 * own.low) / 1000)
    assert error.high == pytest.approx(math.ceil(1000 * own.high) / 1000)


@pytest.mark.parametrize(
    ("cases", "which"),
    [
        (between_hold_outs(SERIES), lambda m: m.between),
        (two_size_hold_outs(SERIES), lambda m: m.of_fit(2).beyond),
        (two_size_between_hold_outs(SERIES), lambda m: m.of_fit(2).between),
    ],
)
def test_the_other_errors_are_those_of_the_shipped_table(
    cases: Sequence[HoldOut], which: Callable[[Misspecification], LawError]
) -> None:
    error, own = which(published_misspecification()), own_error(cases)
    assert own is not None
    assert error.hold_outs == own.hold_outs == len(cases)
    assert error.low == pytest.approx(math.floor(1000 * own.low) / 1000)
    assert error.high == pytest.approx(math.ceil(1000 * own.high) / 1000)


@pytest.mark.parametrize("factor", [2, 4])
def test_two_sizes_predict_no_worse_than_keeping_the_last_efficiency(factor: int) -> None:
    found = {(one.model, one.factor): one for one in errors(two_size_hold_outs(SERIES))}
    assert found[LAW, factor].median <= found[LAST, factor].median + 0.005


@pytest.mark.parametrize(
    "hold_outs_of", [two_size_hold_outs, between_hold_outs, two_size_between_hold_outs]
)
def test_the_other_bands_cover_series_that_they_were_not_calibrated_on(
    hold_outs_of: Callable[[Sequence[Series]], Sequence[HoldOut]],
) -> None:
    independent = leave_one_series_out(hold_outs_of(SERIES))
    assert independent is not None
    assert sum(case.is_covered for case in independent) / len(independent) >= 0.85


def test_what_other_terms_span_is_no_error_of_the_law() -> None:
    """ln 1.3 at two doublings, of which terms that fit as well span ln 1.2."""
    case = replace(
        CASES[0],
        measured=100.0,
        predicted={LAW: 130.0},
        octaves=2.0,
        alternatives=(math.log(0.9), math.log(1.2)),
    )
    left = math.sqrt(math.log(1.3) ** 2 - math.log(1.2) ** 2)
    assert case.residual == pytest.approx(left / math.sqrt(2))
    error = LawError(low=-0.01, high=case.residual, hold_outs=20, source="made up")
    low, high = case.band(error)
    assert low == pytest.approx(100.0)
    assert high == pytest.approx(130 * math.exp(math.hypot(math.log(0.9), 0.01 * math.sqrt(2))))
    assert replace(case, measured=115.0).residual == 0


def test_a_true_law_leaves_nothing_out() -> None:
    (case,) = hold_outs([series(ring_and_log, (1, 2, 4, 8))])
    assert (case.trained_up_to, case.group_size) == (4, 8)
    assert case.error(LAW) == pytest.approx(0, abs=1e-9)
    assert case.residual == pytest.approx(0, abs=1e-9)
    assert case.error(LAST) == pytest.approx(ring_and_log(8) / ring_and_log(4) - 1)
    assert case.predicted[RULE_OF_THUMB] == pytest.approx(7.7 * 32 / ring_and_log(1))


def test_series_without_a_case_say_why() -> None:
    assert "fewer than 3" in (unusable_reason(series(ring_and_log, (1, 2, 4))) or "")
    assert "strong" in (unusable_reason(series(ring_and_log, scaling="strong")) or "")
    assert "not stated" in (unusable_reason(series(ring_and_log, batch_size=None)) or "")


def test_few_cases_calibrate_nothing() -> None:
    few = hold_outs(SERIES[:5])
    assert own_error(few) is None
    assert leave_one_series_out(few) is None


def test_a_long_series_leaves_out_some_of_its_points() -> None:
    found = leave_one_out(series(ring_and_log, range(1, 200)))
    assert found is not None
    assert found.points == MOST_LEFT_OUT
    assert found.law < 1e-9


def test_leave_one_out_beside_its_baseline() -> None:
    found = leave_one_out(series(ring_and_log))
    assert found is not None
    assert found.points == 3
    # 2, 4 and 8 from the size before: the relative growth of the step, symmetric.
    times = [ring_and_log(n) for n in (1, 2, 4, 8)]
    growth = [2 * (b - a) / (a + b) for a, b in pairwise(times)]
    assert found.last_efficiency == pytest.approx(sum(growth) / 3)
    assert found.law < found.last_efficiency / 5
    assert leave_one_out(series(ring_and_log, (1, 2))) is None


def test_shipped_hold_outs_are_those_of_the_shipped_table() -> None:
    assert (PUBLISHED / "hold_outs" / "weak_scaling.csv").read_text() == as_csv(CASES)


def test_hold_outs_are_a_calibration(tmp_path: Path) -> None:
    error = own_error(CASES)
    found = misspecification_from(PUBLISHED / "hold_outs" / "weak_scaling.csv")
    assert error is not None
    assert found.beyond.low == pytest.approx(error.low, abs=1e-5)
    assert found.beyond.high == pytest.approx(error.high, abs=1e-5)
    few = tmp_path / "few.csv"
    few.write_text(as_csv(CASES[:5]))
    with pytest.raises(StoreError, match="5 hold-outs; a band of 90 % takes at least 19"):
        misspecification_from(few)
    with pytest.raises(StoreError, match="expected a column 'series'"):
        misspecification_from(PUBLISHED / "tabtune_tabicl.csv")


def test_the_error_table_of_the_shipped_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PUBLISHED.parents[1])
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "MISSED" not in out
    assert out.count(" reached") >= 6
    # What a band of the other series misses, with its series.
    assert "8x P100 DGX-1, ResNet-50, " in out
    assert "8x P100 DGX-1, VGG16, synthetic, " in out
    assert max(map(len, out.splitlines())) <= 100
    assert "100 % (23 of 23)" in out
    assert "91 % (21 of 23)" in out
    assert "what it covers of that table is no test" in " ".join(out.split())
    assert "tabtune_typical_speedups.csv: not used: the work of a replica is not stated" in out


def test_every_target_is_a_figure_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PUBLISHED.parents[1])
    figures = list(run())
    assert len(figures) == 11
    assert all(figure.met for figure in figures)


def test_a_table_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(WEAK), str(WEAK.parent / "." / WEAK.name), str(WEAK.parent)]) == 0
    assert "23 hold-outs of 15 series" in capsys.readouterr().out
    rows = "batch_per_gpu,gpus,seconds_per_step\n32,1,0.1\n32,2,0.11\n32,4,0.112\n32,8,0.2\n"
    for name in ("mine.csv", "yours.csv"):
        (tmp_path / name).write_text(rows)
    target = tmp_path / "hold_outs"
    assert main([str(tmp_path), "--residuals", str(target)]) == 0
    labels = [line.partition(",4,8,")[0] for line in target.read_text().splitlines()[1:]]
    assert labels == [f"{tmp_path / name}: batch 32" for name in ("mine.csv", "yours.csv")]


def test_hold_outs_are_written(tmp_path: Path) -> None:
    target = tmp_path / "hold_outs.csv"
    assert main([str(WEAK), "--residuals", str(target)]) == 0
    assert target.read_text() == (WEAK.parent / "hold_outs" / WEAK.name).read_text()


def test_few_cases_say_what_they_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "batch_per_gpu,gpus,seconds_per_step\n32,1,0.1\n32,2,0.11\n32,4,0.112\n32,8,0.2\n"
    )
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "too few cases" in out
    assert "no case" in out
    assert "MISSED" in out


def test_nothing_to_test_on_takes_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"no tables in {tmp_path}; expected .csv files" in capsys.readouterr().err
    assert main([str(WEAK.parent / "torch_ddp_rtx3090.csv")]) == 2
    assert "no series to withhold a group size from" in capsys.readouterr().err
