"""The error table of the hold-outs as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.laws.holdout import (
    LAST,
    LAW,
    HoldOut,
    errors,
    leave_one_series_out,
    own_error,
)
from dpbench.report.answer import Answer, bullets
from dpbench.report.table import Table, text_table
from dpbench.report.terminal import folded

TARGETS = {2: 0.015, 4: 0.03}
"""Median |error| of the law that is aimed at, by how far it predicts."""
TARGET_COVERAGE = 0.85
SHIPPED = "results/published/weak_scaling.csv"
NAMES = {LAW: "law (const, ring, log)", LAST: "keep the last efficiency"}


def answer(cases: Sequence[HoldOut], *, notes: Sequence[str] = ()) -> Answer:
    """The errors of every model, the targets, and every case that its band misses."""
    missed = [case for case in leave_one_series_out(cases) or cases if not case.is_covered]
    return Answer(
        paragraphs=(
            _errors(cases),
            _targets(cases),
            *([_misses(missed)] if missed else []),
            bullets([*_common(cases), *notes]),
        ),
        data=_data(cases, notes),
    )


def _data(cases: Sequence[HoldOut], notes: Sequence[str]) -> dict[str, Any]:
    independent = leave_one_series_out(cases)
    error = own_error(cases)
    return {
        "errors": [
            {
                "model": found.model,
                "factor": found.factor,
                "cases": found.cases,
                "median": found.median,
                "p90": found.p90,
                "largest": found.largest,
            }
            for found in errors(cases)
        ],
        "coverage": _coverage(cases),
        "coverage_leaving_one_series_out": None if independent is None else _coverage(independent),
        "own_band": None if error is None else {"low": error.low, "high": error.high},
        "cases": [
            _case(case, other)
            for case, other in zip(cases, independent or [None] * len(cases), strict=True)
        ],
        "notes": list(notes),
    }


def _errors(cases: Sequence[HoldOut]) -> Table:
    rows = [
        [
            NAMES.get(found.model, found.model),
            f"{found.factor}×",
            str(found.cases),
            *(
                f"{units.fixed_percent(value, 1)}"
                for value in (found.median, found.p90, found.largest)
            ),
        ]
        for found in errors(cases)
    ]
    headers = ("Model", "Predicted", "Cases", "Median |error|", "90 % of cases", "Largest")
    return text_table(headers, rows, words=("Model",))


def _targets(cases: Sequence[HoldOut]) -> Table:
    """What is aimed at, and whether it is reached."""
    found = {(one.model, one.factor): one for one in errors(cases)}
    lines = []
    for factor, target in TARGETS.items():
        law, last = found.get((LAW, factor)), found.get((LAST, factor))
        if law is None or last is None:
            lines.append(
                [
                    f"median |error| at {factor}×",
                    f"<= {units.fixed_percent(target, 1)}",
                    "no case",
                    "",
                ]
            )
            continue
        lines.append(
            _target(
                f"median |error| at {factor}×",
                f"<= {units.fixed_percent(target, 1)}",
                f"{units.fixed_percent(law.median, 1)}",
                reached=law.median <= target,
            )
        )
        lines.append(
            _target(
                f"  beats the last efficiency at {factor}×",
                f"< {units.fixed_percent(last.median, 1)}",
                f"{units.fixed_percent(law.median, 1)}",
                reached=law.median < last.median,
            )
        )
    lines += _coverages(cases)
    headers = ("Target", "Aim", "Reached", "")
    return text_table(headers, lines, words=headers)


def _coverages(cases: Sequence[HoldOut]) -> list[list[str]]:
    name = f"{units.fixed_percent(CONFIDENCE)} band covers"
    independent = leave_one_series_out(cases)
    others = f"{name}, calibrated on the other series"
    if independent is None:
        aim = f">= {units.fixed_percent(TARGET_COVERAGE)}"
        return [_covers(name, cases), [others, aim, "too few cases", ""]]
    return [_covers(name, cases), _covers(others, independent)]


def _covers(name: str, cases: Sequence[HoldOut]) -> list[str]:
    share = _coverage(cases)
    return _target(
        name,
        f">= {units.fixed_percent(TARGET_COVERAGE)}",
        f"{units.fixed_percent(share)} ({sum(case.is_covered for case in cases)} of {len(cases)})",
        reached=share >= TARGET_COVERAGE,
    )


def _target(name: str, aim: str, got: str, *, reached: bool) -> list[str]:
    return [name, aim, got, "reached" if reached else "MISSED"]


def _coverage(cases: Sequence[HoldOut]) -> float:
    return sum(case.is_covered for case in cases) / len(cases)


def _misses(missed: Sequence[HoldOut]) -> Table:
    rows = [
        [
            case.series,
            str(case.trained_up_to),
            str(case.group_size),
            f"{case.measured:,.5g}",
            f"{case.predicted[LAW]:,.5g} ({case.low:,.5g}–{case.high:,.5g})",
            f"{units.fixed_percent(case.error(LAW), 1, signed=True)}",
        ]
        for case in missed
    ]
    headers = ("Outside its band", "Fitted up to", "Group", "Measured", "Predicted", "Error")
    return folded(text_table(headers, rows, words=headers[:1]), headers[:1])


def _common(cases: Sequence[HoldOut]) -> list[str]:
    series = len({case.series for case in cases})
    notes = [
        f"{len(cases)} hold-outs of {series} series: fitted to the sizes up to one, predicted at "
        "2 and 4 times that; throughputs, single values as published",
        f"the band of dpbench fit is set on {SHIPPED}: what it covers of that table is no test; "
        "the line calibrated on the other series is one, and what is outside is outside that band",
    ]
    if (error := own_error(cases)) is not None:
        notes.append(
            f"a band calibrated on these hold-outs alone would have the law's error at "
            f"{error.low:+.3f} to {error.high:+.3f} (logarithm of the step time, one doubling "
            "beyond the data); dpbench fit --residuals FILE takes it"
        )
    return notes


def _case(case: HoldOut, independent: HoldOut | None) -> dict[str, Any]:
    return {
        "series": case.series,
        "trained_up_to": case.trained_up_to,
        "group_size": case.group_size,
        "measured": case.measured,
        "predicted": case.predicted[LAW],
        "low": case.low,
        "high": case.high,
        "covered": case.is_covered,
        "covered_leaving_one_series_out": None if independent is None else independent.is_covered,
        "error": case.error(LAW),
        "last_efficiency_error": case.error(LAST),
    }
