"""Notes on a table of rows, and warnings about its numbers, from which terminal, page and exports
choose by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.remarks import hints
from dpbench.analysis.rows import MAX_LISTED, Row, noise_lines
from dpbench.messages import one_line
from dpbench.records.trial import Status

Rows = Sequence[Row]
NoteKind = Literal["warning", "failed", "source", "repetitions", "reading"]
"""Subject of a note: what to know before a number is believed; why trials failed or were skipped;
who published rows; how many repetitions were or would be enough; how to read the numbers."""


def notes_of(analysis: Analysis, *kinds: NoteKind) -> list[str]:
    """The notes on the rows, each one line; only those of these kinds if any is given. That on
    missing trials stands apart, in `Analysis.unfinished`."""
    rows = analysis.rows
    environments = analysis.stored.environments if analysis.stored else {}
    sources = dict.fromkeys(filter(None, (row.stated.get("source") for row in rows)))
    notes: dict[NoteKind, Iterable[str]] = {
        "warning": warnings(analysis),
        "failed": reasons(rows),
        "source": [f"source: {name}" for name in sources],
        "repetitions": noise_lines(rows, rows, "report"),
        "reading": chain(
            *(note(rows) for note in (_intervals, _scaling, _local_sgd, _own)),
            hints(rows, environments),
        ),
    }
    return [one_line(text) for kind in kinds or notes for text in notes[kind]]


def warnings(analysis: Analysis) -> Iterator[str]:
    """Warnings to read before a number is believed, the same wherever results are shown."""
    yield from analysis.stored.warnings if analysis.stored else ()
    if wrong := [row for row in analysis.rows if row.verified is False]:
        yield f"wrong gradients, so their speeds do not count: {_some_of(wrong)}"
    unchecked = [
        row
        for row in analysis.rows
        if row.throughput and row.verified is None
        if row.configuration and not row.configuration.workload.script
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {_some_of(unchecked)}"
    if note := analysis.disturbance.note:
        disturbed = [row for row in analysis.rows if row.is_disturbed]
        yield f"{note}: {_some_of(disturbed)}" if analysis.disturbance.is_busy else note
    yield from analysis.warnings
    # Where others disturbed a row, slow first steps say nothing about warming up.
    warming = [(row, row.warm_up) for row in analysis.rows if row.warm_up and not row.is_disturbed]
    if warming:
        longer = units.percent(max(slow.change for _, slow in warming))
        enough = max(row.records[0].trial.warmup + slow.steps for row, slow in warming)
        yield (
            f"still warming up: {_some_of([row for row, _ in warming])}; the first steps of a "
            f"window take up to {longer} longer than the rest; try --warmup {enough}"
        )


def reasons(rows: Rows) -> Iterator[str]:
    """The full reason of every row that has one; equal reasons share a line."""
    ended = [row for row in rows if row.reason or row.status is Status.WRONG_GRADIENTS]
    for status, reason in dict.fromkeys((row.status, row.reason) for row in ended):
        same = [row for row in ended if (row.status, row.reason) == (status, reason)]
        yield f"{status.words}, {_some_of(same)}{f': {reason}' if reason else ''}"


def _intervals(rows: Rows) -> Iterator[str]:
    """The meaning of ±."""
    estimates = chain.from_iterable((row.throughput, row.speedup) for row in rows)
    repeated = [e for e in estimates if e is not None and e.basis == "repetitions"]
    if repeated:
        yield (
            f"± is the {units.percent(repeated[0].confidence)} interval over "
            f"{units.span(e.sample_size for e in repeated)} repetitions (Student's t; for speeds "
            "and speedups, of their logarithms), or (low–high) where it is not symmetric"
        )


def relative_to(rows: Rows) -> str:
    """What their speedups are over, in words; empty without speedups."""
    references = dict.fromkeys(row.speedup_reference for row in rows if row.speedup_reference)
    return f"relative to {' or '.join(references)}" if references else ""


def _scaling(rows: Rows) -> Iterator[str]:
    """What speedups and efficiencies are relative to."""
    larger = [row for row in rows if row.speedup and row.group_size > 1]
    if larger:
        reference = f"{relative_to(larger)} at the same batch size and settings"
        yield f"speedup is {reference}; efficiency = speedup ÷ group size"


def _local_sgd(rows: Rows) -> Iterator[str]:
    """Which rows are another algorithm, as they average parameters."""
    averaging = {
        row.implementation_label: row.configuration.sync_every for row in rows if row.configuration
    }
    for name, steps in averaging.items():
        if steps > 1:
            yield (
                f"{name} averages parameters every {steps} steps, gradients never: a different "
                "algorithm from ddp, so a higher speed may bring less progress per step"
            )


def _own(rows: Rows) -> Iterator[str]:
    """What the analysis noted about rows; equal notes share a line, and a note on all rows names
    none."""
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        same = [row for row in rows if note in row.notes]
        yield note if len(same) == len(rows) > 1 else f"{_some_of(same)}: {note}"


def _some_of(rows: Rows) -> str:
    return units.some_of([row.label for row in rows], MAX_LISTED, "configuration")
