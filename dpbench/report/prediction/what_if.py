"""Text and JSON of `dpbench what-if`: each change against the step as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.project import band_meaning
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.what_if import AS_IS, ChangedStep, WhatIf
from dpbench.analysis.provenance import Provenance
from dpbench.report.answer import Answer, plain_estimate
from dpbench.report.numbers import plus_minus, rounded
from dpbench.report.prediction.answer import (
    Brief,
    kind_meanings,
    predicted_answer,
    step_text,
    summary_table,
)
from dpbench.report.table import Table, text_table

SHOWN = 3
"""Changes that a short answer has of each series."""
SMALLEST = 5e-5
"""A ratio is not shown finer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """One series at all group sizes."""

    series: Series
    found: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]


def answer(
    answers: Sequence[Answers],
    *,
    premise: str | None = None,
    notes: Sequence[str] = (),
    verbose: bool = True,
) -> Answer:
    """A table for each series and group size, the changes in words, and how to read them; as data,
    every number with its unit, interval and kind."""
    every = [(one, at) for one in answers for at in one.found]
    return predicted_answer(
        [
            block
            for one, at in every
            if at.outcomes
            for block in (_title(one.series, at), _table(at.outcomes, one.series.item))
        ],
        reading=_reading(every),
        assumptions=[(one.series.label, one.assumptions) for one in answers],
        data={"series": [_series(one) for one in answers]},
        premise=premise,
        notes=notes,
        interval=band_meaning(),
        brief=None if verbose else _brief(every),
    )


def _brief(every: Sequence[tuple[Answers, WhatIf]]) -> Brief:
    """The changes that bring most, for each series and group size."""
    rows = []
    for one, at in every:
        changes = [outcome for outcome in at.outcomes if outcome.change != AS_IS]
        changes.sort(key=lambda outcome: -outcome.ratio.value)
        best = [f"{outcome.change}: {_ratio(outcome.ratio)}" for outcome in changes[:SHOWN]]
        if changes:
            now = step_text(at.outcomes[0].step_seconds)
            rows.append(
                [one.series.label, f"{at.group_size:,}", now, *best, *[""] * (SHOWN - len(best))]
            )
    headers = ("Series", "Replicas", "Step", "Largest gain", "Second", "Third")
    return Brief(
        blocks=[summary_table(rows, headers, ("Series", "Largest gain", "Second", "Third"))],
        reading=[
            "behind a change: throughput with it ÷ throughput as it is, both simulated",
            *_reasons(every),
        ],
    )


def _reading(every: Sequence[tuple[Answers, WhatIf]]) -> Iterable[str]:
    yield kind_meanings(at.kind for _, at in every)
    for _, at in every:
        yield from (f"{o.change}: {o.words}" for o in at.outcomes if o.change != AS_IS)
    yield (
        "ratio: of throughputs, against the step as it is; both sides share their inputs, so that "
        "it is known better than they are. All steps are simulated; n: repetitions traced"
    )
    yield band_meaning()
    yield from _reasons(every)


def _reasons(every: Sequence[tuple[Answers, WhatIf]]) -> Iterable[str]:
    """Why there are no numbers."""
    for one, at in every:
        if at.reason:
            yield f"{one.series.label}, {at.group_size:,} replicas: {at.reason}"


def _series(one: Answers) -> dict[str, Any]:
    return {
        "series": one.series.label,
        "network": one.series.network.name,
        "group_sizes": [
            {
                "group_size": at.group_size,
                "kind": at.kind,
                "reason": at.reason,
                "simulation_error": at.simulation_error,
                "changes": [_plain(outcome, at.kind) for outcome in at.outcomes],
            }
            for at in one.found
        ],
        "assumptions": list(one.assumptions),
    }


def _title(one: Series, at: WhatIf) -> str:
    """Title that says where the numbers come from, and how far they are off if that is known."""
    replicas = units.counted(at.group_size, "replica")
    count = at.outcomes[0].step_seconds.sample_size
    title = f"{one.label}, on {one.network.name}, {replicas} ({at.kind}, n = {count:,})"
    if at.simulation_error is None:
        return title
    off = units.fixed_percent(at.simulation_error, signed=True)
    return f"{title}\nas is, {off} off the measured step"


def _table(outcomes: Sequence[ChangedStep], item: str) -> Table:
    rows = [
        (
            outcome.change,
            step_text(outcome.step_seconds),
            step_text(outcome.exposed_seconds),
            rounded(outcome.throughput),
            _ratio(outcome.ratio),
        )
        for outcome in outcomes
    ]
    headers = ("Change", "Step", "Exposed comm", f"{item.capitalize()}/s", "Ratio")
    return text_table(headers, rows, words=("Change",))


def _ratio(ratio: Estimate) -> str:
    """Writes the ratio, without an interval too small to show."""
    if ratio.half_width is not None and ratio.half_width < SMALLEST:
        ratio = replace(ratio, low=None, high=None)
    return plus_minus(ratio)


def _plain(outcome: ChangedStep, kind: Provenance) -> dict[str, Any]:
    return {
        "change": outcome.change,
        "words": outcome.words,
        "step_seconds": plain_estimate(outcome.step_seconds, kind),
        "exposed_seconds": plain_estimate(outcome.exposed_seconds, kind),
        "items_per_second": plain_estimate(outcome.throughput, kind),
        "ratio": plain_estimate(outcome.ratio, kind),
    }
