"""Text and JSON of `dpbench project`: a table for each series, then what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.project import ProjectedRow, Simulated, band_meaning
from dpbench.analysis.projection.series import Series
from dpbench.analysis.provenance import Provenance
from dpbench.report.answer import Answer, plain_estimate
from dpbench.report.numbers import or_missing, rounded
from dpbench.report.prediction.answer import (
    Brief,
    kind_meanings,
    predicted_answer,
    step_text,
    summary_table,
)
from dpbench.report.table import MISSING, Table, text_table

MODELLED = ("straggler_seconds",)
"""Numbers that are never measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """All group sizes of a series, and what the numbers stand on."""

    series: Series
    rows: tuple[ProjectedRow, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()


class _Column(NamedTuple):
    header: str
    cell: Callable[[ProjectedRow], str]


SEVERAL_ITEMS = "items"
_KIND = _Column("Kind", lambda row: row.kind)
_REPLICAS = _Column("Replicas", lambda row: f"{row.group_size:,}")


def answer(
    projections: Sequence[Projection],
    *,
    premise: str | None = None,
    notes: Sequence[str] = (),
    verbose: bool = True,
) -> Answer:
    """Up to two tables a series (speed; losses), and how to read them; one table for all of them
    unless `verbose`. As data, every number with its unit, interval and kind.
    """
    return predicted_answer(
        [block for one in projections for block in _blocks(one)],
        reading=_reading(projections),
        assumptions=[(one.series.label, (*one.assumptions, *one.notes)) for one in projections],
        data={
            "series": [
                {
                    "implementation": one.series.trial.implementation_label,
                    "backend": one.series.trial.backend,
                    "batch_size": one.series.trial.batch_size,
                    "network": one.series.network.name,
                    "rows": [_plain(row) for row in one.rows],
                    "assumptions": list(one.assumptions),
                    "notes": list(one.notes),
                }
                for one in projections
            ]
        },
        premise=premise,
        notes=notes,
        interval=band_meaning(),
        brief=None if verbose else _brief(projections),
    )


def item_of(projections: Sequence[Projection]) -> str:
    """What they count: "images"; "items" where they count several things."""
    counted = {one.series.item for one in projections}
    return counted.pop() if len(counted) == 1 else SEVERAL_ITEMS


def _brief(projections: Sequence[Projection]) -> Brief:
    """Speed and efficiency."""
    item = item_of(projections)
    columns = (*_speed(item)[:4], _KIND)
    rows = [
        [one.series.label, *(column.cell(row) for column in columns)]
        for one in projections
        for row in one.rows
        if row.kind != "refused"
    ]
    headers = ("Series", *(column.header for column in columns))
    kinds = [row.kind for one in projections for row in one.rows if row.kind != "refused"]
    return Brief(
        blocks=[summary_table(rows, headers, ("Series", "Kind"))],
        reading=[
            kind_meanings(kinds),
            *_refusals(projections),
            *(note for one in projections for note in one.notes),
        ],
    )


def _blocks(one: Projection) -> Iterable[str | Table]:
    item = one.series.item
    yield f"{one.series.label}, on {one.series.network.name}"
    yield _table(one.rows, _speed(item))
    numbers = [row for row in one.rows if row.kind != "refused"]
    yield _table(numbers, _LOSSES)


def _percent(efficiency: Estimate) -> str:
    if efficiency.basis == "baseline":
        return "100 %"
    return f"{rounded(efficiency, scale=100)} %"


def _speed(item: str) -> tuple[_Column, ...]:
    """Speeds say their unit themselves where the header cannot."""

    def rate(throughput: Estimate) -> str:
        unit = f" {throughput.unit}" if item == SEVERAL_ITEMS else ""
        return f"{rounded(throughput)}{unit}"

    return (
        _REPLICAS,
        _Column("Step", lambda row: or_missing(row.step_seconds, step_text)),
        _Column(f"{item.capitalize()}/s", lambda row: or_missing(row.throughput, rate)),
        _Column("Efficiency", lambda row: or_missing(row.efficiency, _percent)),
        _Column("n", _sample_size),
        _KIND,
    )


def _sample_size(row: ProjectedRow) -> str:
    return MISSING if row.step_seconds is None else f"{row.step_seconds.sample_size:,}"


def _simulated(row: ProjectedRow) -> str:
    """The simulated step beside a measured one, with its error."""
    error = row.simulation_error
    if error is None or row.simulated is None:
        return MISSING
    seconds = units.seconds(row.simulated.step_seconds.value)
    return f"{seconds} ({units.fixed_percent(error, signed=True)})"


_LOSSES = (
    _REPLICAS,
    _Column("Simulated step", _simulated),
    _Column("Exposed comm", lambda row: or_missing(row.exposed_seconds, step_text)),
    _Column("Stragglers", lambda row: or_missing(row.straggler_seconds, step_text)),
)


def _table(rows: Sequence[ProjectedRow], columns: Sequence[_Column]) -> str | Table:
    """The table without empty columns; "" if only the group size is left."""
    shown = [columns[0]]
    shown += [c for c in columns[1:] if any(c.cell(row) != MISSING for row in rows)]
    if len(shown) == 1:
        return ""
    return text_table(
        [column.header for column in shown],
        [[column.cell(row) for column in shown] for row in rows],
        words=("Kind",),
    )


def _reading(projections: Sequence[Projection]) -> Iterable[str]:
    rows = [row for one in projections for row in one.rows]
    yield kind_meanings(row.kind for row in rows)
    yield (
        "efficiency is against the same implementation at group size 1; n: repetitions that were "
        "measured or traced; how far a simulated step is off the measured one shows how far to "
        "trust the others"
    )
    if any(row.kind not in ("measured", "refused") for row in rows):
        yield band_meaning()
    if any(row.exposed_seconds for row in rows):
        yield (
            "exposed comm: what communication adds to a step; stragglers: what waiting for the "
            "slowest replica adds, always simulated; their bands leave out the model's own error"
        )
    yield from _refusals(projections)


def _refusals(projections: Sequence[Projection]) -> Iterable[str]:
    for one in projections:
        refused = [row for row in one.rows if row.reason is not None]
        if refused:
            sizes = ", ".join(f"{row.group_size:,}" for row in refused)
            yield f"refused, {sizes} replicas: {refused[0].reason}"


def _plain(row: ProjectedRow) -> dict[str, Any]:
    numbers = {
        "step_seconds": row.step_seconds,
        "items_per_second": row.throughput,
        "efficiency": row.efficiency,
        "exposed_seconds": row.exposed_seconds,
        "straggler_seconds": row.straggler_seconds,
    }
    return {
        "group_size": row.group_size,
        "kind": row.kind,
        "reason": row.reason,
        **{name: plain_estimate(number, _kind(row, name)) for name, number in numbers.items()},
        "simulated": None if row.simulated is None else _plain_simulation(row.simulated),
        "simulation_error": row.simulation_error,
    }


def _kind(row: ProjectedRow, name: str) -> Provenance:
    """Kind of a number from a law or a simulation: never "measured", even if the step was."""
    if row.kind != "measured" or name not in MODELLED:
        return row.kind
    return "extrapolated" if row.simulated is None else row.simulated.kind


def _plain_simulation(simulated: Simulated) -> dict[str, Any]:
    numbers = {
        "step_seconds": simulated.step_seconds,
        "efficiency": simulated.efficiency,
        "exposed_seconds": simulated.exposed_seconds,
        "straggler_seconds": simulated.straggler_seconds,
    }
    return {name: plain_estimate(number, simulated.kind) for name, number in numbers.items()}
