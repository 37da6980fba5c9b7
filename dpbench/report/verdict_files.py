"""A check's verdict as files: Markdown for a pull request, and JUnit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpbench.analysis.comparisons.verdict import Assessment, Verdict, VerdictOutcome
from dpbench.messages import one_line
from dpbench.report.markup import render_template
from dpbench.report.verdict import headline, labels, reading, sentence, sides, tables


@dataclass(frozen=True, kw_only=True, slots=True)
class JUnitCase:
    """One testcase of JUnit."""

    about: str
    """The metric, or "measuring"."""
    name: str
    seconds: float
    tag: Literal["", "failure", "skipped", "error"]
    """The element that says how it ended; "" if it passed."""
    message: str
    type: str


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, a table for each metric, and the notes folded away."""
    outcome, _, change = headline(verdict).partition(": ")
    return render_template(
        "verdict.md",
        outcome=outcome,
        change=change,
        sides=sides(verdict.rows),
        tables=tables(verdict),
        notes=(*reading(verdict.rows), *notes),
    )


def junit(assessment: Assessment, *, strict: bool, notes: Sequence[str], started_utc: str) -> str:
    """A testcase for each row, and for all rows of a metric and candidate together if there are
    several; a regression is a failure.

    What is inconclusive is skipped, with `strict` a failure; a row that neither side has measured
    is always skipped. What could not be measured is an error. Times are those of the trials of both
    sides. `started_utc` is ISO 8601 without fractions.
    """
    cases = [*_cases(assessment, strict=strict)]
    measured = (side for both in assessment.matched for side in (both.baseline, both.candidate))
    trials = {
        id(record): record.duration_seconds for side in measured for record in side.selected()
    }
    return render_template(
        "junit.xml",
        cases=cases,
        tags=[case.tag for case in cases],
        seconds=sum(trials.values()),
        started_utc=started_utc,
        said=[*map(one_line, (headline(assessment.verdict), *notes))],
    )


def _cases(assessment: Assessment, *, strict: bool) -> Iterator[JUnitCase]:
    verdict = assessment.verdict
    for one in verdict.metrics:
        rows = verdict.rows_of(one)
        if len(rows) > 1:
            yield _judged(
                one.metric,
                f"all rows of {one.candidate}",
                sum(row.comparison.seconds for row in rows),
                one.outcome,
                headline(replace(verdict, outcome=one.outcome, metrics=(one,))),
                strict=strict,
            )
    for name, row in zip(labels(verdict.rows), verdict.rows, strict=True):
        found = row.comparison
        strictly = strict and row.is_open
        yield _judged(
            found.metric, name, found.seconds, row.outcome, sentence(row), strict=strictly
        )
    for label, how, seconds in assessment.failures:
        yield JUnitCase(
            about="measuring",
            name=one_line(label),
            seconds=seconds,
            tag="error",
            message=one_line(how),
            type="measuring",
        )


def _judged(
    metric: str,
    name: str,
    seconds: float,
    outcome: VerdictOutcome,
    message: str,
    *,
    strict: bool,
) -> JUnitCase:
    """The testcase with its outcome; an inconclusive one fails if `strict`."""
    fails = outcome == "regressed" or (outcome == "inconclusive" and strict)
    return JUnitCase(
        about=metric,
        name=one_line(name),
        seconds=seconds,
        tag="failure" if fails else "skipped" if outcome == "inconclusive" else "",
        message=one_line(message),
        type=outcome,
    )
