"""Changes against the step as it is, as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpbench.analysis.projection.assumptions import band_meaning
from dpbench.analysis.projection.what_if import AS_IS, Outcome, WhatIf
from dpbench.analysis.provenance import Kind
from dpbench.report.notes import bullet
from dpbench.report.numbers import compact_time, plus_minus
from dpbench.report.plain_table import plain_table
from dpbench.report.projection import ends, meanings, part, plain_estimate, signed_percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """One series at all group sizes."""

    label: str
    network: str
    item: str
    found: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]


def render(answers: Sequence[Answers], *, notes: Sequence[str] = ()) -> str:
    """A table for each series and group size, the changes in words, and how to read them."""
    paragraphs = []
    for one in answers:
        for at in one.found:
            if at.outcomes:
                paragraphs.append(_title(one, at))
                paragraphs.append(_table(at.outcomes, one.item))
    every = [(one, at) for one in answers for at in one.found]
    reading = [
        meanings(at.kind for _, at in every if at.kind != "interpolated"),
        *(f"{o.change}: {o.words}" for _, at in every for o in at.outcomes if o.change != AS_IS),
        "ratio: of throughputs, against the step as it is; both sides share their inputs, so that "
        "it is known better than they are. All steps are simulated",
        band_meaning(),
        *(
            f"{one.label}, {at.group_size:,} replicas: {at.reason}"
            for one, at in every
            if at.reason
        ),
        *notes,
    ]
    paragraphs.append("\n".join(map(bullet, filter(None, dict.fromkeys(reading)))))
    assumed = dict.fromkeys(line for one in answers for line in one.assumptions)
    paragraphs.append("\n".join(["Assumed", *map(bullet, assumed)]))
    return "\n\n".join(paragraphs) + "\n"


def to_json(answers: Sequence[Answers], *, notes: Sequence[str] = ()) -> str:
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
        "interval": band_meaning(),
        "notes": list(notes),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _title(one: Answers, at: WhatIf) -> str:
    """With where the numbers come from, unless it is between measured group sizes."""
    where = "" if at.kind == "interpolated" else f" ({at.kind})"
    if at.simulation_error is not None:
        where = f" (as is, {signed_percent(at.simulation_error)} off the measured step)"
    return f"{one.label}, on {one.network}, {at.group_size:,} replicas{where}"


def _table(outcomes: Sequence[Outcome], item: str) -> str:
    rows = [
        (
            outcome.change,
            compact_time(outcome.step_seconds),
            part(outcome.exposed_seconds),
            ends(outcome.throughput),
            plus_minus(outcome.ratio),
        )
        for outcome in outcomes
    ]
    headers = ("Change", "Step", "Exposed comm", f"{item.capitalize()}/s", "Ratio")
    return plain_table(headers, rows, words=("Change",))


def _plain(outcome: Outcome, kind: Kind) -> dict[str, Any]:
    return {
        "change": outcome.change,
        "words": outcome.words,
        "step_seconds": plain_estimate(outcome.step_seconds, kind),
        "exposed_seconds": plain_estimate(outcome.exposed_seconds, kind),
        "items_per_second": plain_estimate(outcome.throughput, kind),
        "ratio": plain_estimate(outcome.ratio, kind),
    }
