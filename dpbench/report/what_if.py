"""Changes against the step as it is, as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.assumptions import band_meaning
from dpbench.analysis.projection.what_if import AS_IS, Outcome, WhatIf
from dpbench.analysis.provenance import Kind
from dpbench.report.assumed import assumed
from dpbench.report.notes import bullet
from dpbench.report.numbers import plus_minus
from dpbench.report.plain_estimate import plain_estimate
from dpbench.report.projection import meanings, signed_percent, step
from dpbench.report.ranged import ranged
from dpbench.report.table import text_table
from dpbench.report.terminal import write_table

SMALLEST = 5e-5
"""A ratio is not shown finer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """One series at all group sizes."""

    label: str
    network: str
    item: str
    found: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]


def render(
    answers: Sequence[Answers], *, premise: str | None = None, notes: Sequence[str] = ()
) -> str:
    """A table for each series and group size, the changes in words, and how to read them."""
    paragraphs = [] if premise is None else [bullet(premise)]
    for one in answers:
        for at in one.found:
            if at.outcomes:
                paragraphs.append(_title(one, at))
                paragraphs.append(_table(at.outcomes, one.item))
    every = [(one, at) for one in answers for at in one.found]
    reading = [
        meanings(at.kind for _, at in every),
        *(f"{o.change}: {o.words}" for _, at in every for o in at.outcomes if o.change != AS_IS),
        "ratio: of throughputs, against the step as it is; both sides share their inputs, so that "
        "it is known better than they are. All steps are simulated; n: repetitions traced",
        band_meaning(),
        *(
            f"{one.label}, {at.group_size:,} replicas: {at.reason}"
            for one, at in every
            if at.reason
        ),
        *notes,
    ]
    paragraphs.append("\n".join(map(bullet, filter(None, dict.fromkeys(reading)))))
    paragraphs += assumed([(one.label, one.assumptions) for one in answers])
    return "\n\n".join(paragraphs) + "\n"


def to_json(
    answers: Sequence[Answers], *, premise: str | None = None, notes: Sequence[str] = ()
) -> str:
    """An object with "series"; every number with its unit, interval and kind."""
    content = {
        "series": [
            {
                "series": one.label,
                "network": one.network,
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
            for one in answers
        ],
        "premise": premise,
        "interval": band_meaning(),
        "notes": list(notes),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _title(one: Answers, at: WhatIf) -> str:
    """With where the numbers come from, and how far they are off where that is known."""
    replicas = units.counted(at.group_size, "replica")
    count = at.outcomes[0].step_seconds.sample_size
    title = f"{one.label}, on {one.network}, {replicas} ({at.kind}, n = {count:,})"
    if at.simulation_error is None:
        return title
    return f"{title}\nas is, {signed_percent(at.simulation_error)} off the measured step"


def _table(outcomes: Sequence[Outcome], item: str) -> str:
    rows = [
        (
            outcome.change,
            step(outcome.step_seconds),
            step(outcome.exposed_seconds),
            ranged(outcome.throughput),
            _ratio(outcome.ratio),
        )
        for outcome in outcomes
    ]
    headers = ("Change", "Step", "Exposed comm", f"{item.capitalize()}/s", "Ratio")
    return write_table(text_table(headers, rows, words=("Change",)))


def _ratio(ratio: Estimate) -> str:
    """To three decimals, without an interval that is nothing beside them."""
    if ratio.half_width is not None and ratio.half_width < SMALLEST:
        ratio = replace(ratio, low=None, high=None)
    return plus_minus(ratio)


def _plain(outcome: Outcome, kind: Kind) -> dict[str, Any]:
    return {
        "change": outcome.change,
        "words": outcome.words,
        "step_seconds": plain_estimate(outcome.step_seconds, kind),
        "exposed_seconds": plain_estimate(outcome.exposed_seconds, kind),
        "items_per_second": plain_estimate(outcome.throughput, kind),
        "ratio": plain_estimate(outcome.ratio, kind),
    }
