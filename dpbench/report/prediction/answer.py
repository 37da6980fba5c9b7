"""Answers about steps that were not measured: their premise, what they assume, and the meaning of
the kinds of numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.provenance import MEANINGS, Provenance
from dpbench.report.answer import Answer, bullets
from dpbench.report.numbers import ROUNDING, time_text
from dpbench.report.progress.terminal import WIDTH
from dpbench.report.table import MISSING, Table, text_table
from dpbench.report.terminal import bullet, folded, write_table

MORE = "more numbers, how to read them, and what is assumed: --verbose"
Assumptions = Sequence[tuple[str, Sequence[str]]]
"""Labels of series, as "ddp/gloo, batch 32", with the sentences that each takes for granted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """An answer in the fewest lines."""

    blocks: Sequence[str | Table]
    reading: Sequence[str]


def predicted_answer(
    blocks: Iterable[str | Table],
    *,
    reading: Iterable[str],
    assumptions: Assumptions,
    data: Mapping[str, Any],
    premise: str | None,
    notes: Sequence[str],
    interval: str | None = None,
    brief: Brief | None = None,
) -> Answer:
    """The premise (how the simulation relates to this machine), `blocks`, how to read them and
    `notes`, and what is assumed; as data, all of that behind `data`.

    With `brief` people get that in place of all but the premise and the notes.
    """
    shown = (*blocks, bullets(_once([*reading, *notes])), *assumption_paragraphs(assumptions))
    if brief is not None:
        shown = (*brief.blocks, bullets(_once([*brief.reading, *notes, MORE])))
    return Answer(
        paragraphs=("" if premise is None else bullet(premise), *shown),
        data={
            **data,
            "premise": premise,
            **({} if interval is None else {"interval": interval}),
            "notes": list(notes),
        },
    )


def _once(lines: Iterable[str]) -> Iterable[str]:
    return filter(None, dict.fromkeys(lines))


def summary_table(
    rows: Sequence[Sequence[str]], headers: Sequence[str], words: Sequence[str]
) -> str:
    """One table for all series; what the row above says already in the first columns of `words` is
    left out, and so are columns that are empty."""
    kept = [
        place
        for place in range(len(headers))
        if any(row[place] not in ("", MISSING) for row in rows)
    ]
    last, cells = "", []
    for row in rows:
        cells.append([("" if place == 0 and row[0] == last else row[place]) for place in kept])
        last = row[0]
    table = text_table([headers[place] for place in kept], cells, words=words)
    return write_table(folded(table, headers[:1]))


def step_text(estimate: Estimate) -> str:
    """Seconds of a step or a part of one; a simulated one alone if no input has a spread."""
    half_width = estimate.half_width or 0.0
    if estimate.basis == "model" and half_width <= ROUNDING * abs(estimate.value):
        estimate = replace(estimate, low=None, high=None)
    return time_text(estimate)


def kind_meanings(kinds: Iterable[Provenance]) -> str:
    """Meanings of the kinds that occur."""
    found = set(kinds)
    return "; ".join(f"{kind}: {words}" for kind, words in MEANINGS.items() if kind in found)


def assumption_paragraphs(series: Assumptions) -> list[str]:
    """A paragraph for each set of series that share sentences, the largest set first.

    Series of one label count as one.
    """
    everyone = tuple(dict.fromkeys(label for label, _ in series))
    concerned: dict[str, dict[str, None]] = {}
    for label, lines in series:
        for line in lines:
            concerned.setdefault(line, {})[label] = None
    shared: dict[tuple[str, ...], list[str]] = {}
    for line, labels in concerned.items():
        shared.setdefault(tuple(labels), []).append(line)
    ordered = sorted(shared.items(), key=lambda pair: -len(pair[0]))
    return [
        "\n".join([_heading(labels, everyone), *map(bullet, lines)]) for labels, lines in ordered
    ]


def _heading(labels: Sequence[str], everyone: Sequence[str]) -> str:
    if len(labels) == len(everyone):
        return "Assumed"
    names = dict.fromkeys(_name(label) for label in labels)
    every = [label for label in everyone if _name(label) in names]
    listed = "; ".join(labels if len(labels) < len(every) else names)
    return textwrap.fill(f"Assumed of {listed}", WIDTH, break_on_hyphens=False)


def _name(label: str) -> str:
    """Name in a label: "ddp/gloo" for "ddp/gloo, batch 32" and "ddp/gloo ×2, batch 32"."""
    return label.partition(", batch ")[0].partition(" ×")[0]
