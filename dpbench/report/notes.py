"""What is said about a table of rows: warnings before a number is believed, and notes. Terminal,
page and exports print the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.metrics import UNDER_LOAD
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import MAX_LISTED, noise_warnings
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.specs.traits import INDEPENDENT


def warnings(analysis: Analysis) -> tuple[str, ...]:
    """Warnings before a number is believed, the most important first: one line each."""
    return tuple(map(one_line, _warnings(analysis)))


def _warnings(analysis: Analysis) -> Iterator[str]:
    rows = analysis.rows
    if wrong := [row for row in rows if row.verified is False]:
        yield f"wrong gradients, so their speeds do not count: {_some_of(wrong, rows)}"
    yield from analysis.warnings
    unchecked = [
        row
        for row in rows
        if row.throughput and row.verified is None
        if row.configuration and not row.configuration.workload.script
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {_some_of(unchecked, rows)}"
    if note := analysis.machine_load.note:
        loaded = [row for row in rows if row.is_under_load]
        yield f"{note}: {_some_of(loaded, rows)}" if analysis.machine_load.spoils_speeds else note
    # Under load, slow first steps say nothing about warming up.
    warming = [(row, row.warm_up) for row in rows if row.warm_up and not row.is_under_load]
    if warming:
        longer = units.percent(max(slow.change for _, slow in warming))
        enough = max(row.records[0].configuration.warmup + slow.steps for row, slow in warming)
        which = _some_of([row for row, _ in warming], rows)
        yield (
            f"still warming up: {which}; the first steps of a window take up to {longer} longer "
            f"than the rest; try --warmup {enough}"
        )


def notes(analysis: Analysis) -> tuple[str, ...]:
    """How to read the numbers: one line each."""
    rows = analysis.rows
    parts = (note(rows) for note in (_intervals, _scaling, _row_notes))
    return tuple(map(one_line, chain(*parts, analysis.notes)))


def table_notes(
    rows: Sequence[Row], common: Sequence[str], column_notes: Sequence[str]
) -> tuple[str, ...]:
    """The notes below a table of rows: what they have in `common`, what the signs in its cells
    mean, the notes of its columns, what failed, who published the rows, and how many repetitions
    were or would be enough."""
    lines = [f"All {len(rows):,} rows: {', '.join(common)}"] if common else []
    if any(row.implementation == INDEPENDENT for row in rows):
        lines.append(
            "* copies without communication: an upper bound within noise, not a way to train"
        )
    if any(row.is_under_load for row in rows):
        lines.append(f"{UNDER_LOAD} other programs used the cores during some of its trials")
    lines += column_notes
    sources = dict.fromkeys(filter(None, (row.published.source for row in rows if row.published)))
    published = (f"source: {name}" for name in sources)
    return (
        *map(
            one_line, chain(lines, reasons(rows), published, noise_warnings(rows, rows, "report"))
        ),
    )


def reasons(rows: Sequence[Row]) -> Iterator[str]:
    """The full reason of every row that has one; equal reasons share a line."""
    ended = [row for row in rows if row.reason or row.status is Status.WRONG_GRADIENTS]
    for status, reason in dict.fromkeys((row.status, row.reason) for row in ended):
        same = [row for row in ended if (row.status, row.reason) == (status, reason)]
        yield f"{status.words}, {_some_of(same, rows)}{f': {reason}' if reason else ''}"


def _intervals(rows: Sequence[Row]) -> Iterator[str]:
    """The meaning of ±."""
    estimates = chain.from_iterable((row.throughput, row.speedup) for row in rows)
    repeated = [e for e in estimates if e is not None and e.basis == "repetitions"]
    if repeated:
        yield (
            f"± is the {units.percent(repeated[0].confidence)} interval over "
            f"{units.span(e.sample_size for e in repeated)} repetitions (Student's t; for speeds "
            "and speedups, of their logarithms), or (low–high) where it is not symmetric"
        )


def relative_to(rows: Sequence[Row]) -> str:
    """The reference of their speedups, in words; empty without speedups."""
    references = dict.fromkeys(row.speedup_reference for row in rows if row.speedup_reference)
    return f"relative to {' or '.join(references)}" if references else ""


def _scaling(rows: Sequence[Row]) -> Iterator[str]:
    """The reference of speedups and efficiencies."""
    larger = [row for row in rows if row.speedup and row.group_size > 1]
    if larger:
        reference = f"{relative_to(larger)} at the same batch size and settings"
        yield f"speedup is {reference}; efficiency = speedup ÷ group size, with the same relative ±"


def _row_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Notes of the analysis on rows; equal notes share a line."""
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        yield f"{_some_of([row for row in rows if note in row.notes], rows)}: {note}"


def _some_of(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """The labels of some rows of a table; "all rows" where it has no others."""
    if len(some) == len(rows) > 1:
        return "all rows"
    return units.some_of([row.label for row in some], MAX_LISTED, "configuration")
