"""A check in every form: text, JSON, Markdown for a pull request, and JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from dpbench import units
from dpbench.analysis.comparisons.verdict import (
    Assessment,
    MetricVerdict,
    RowVerdict,
    Verdict,
    VerdictOutcome,
)
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.metrics import METRICS
from dpbench.messages import one_line
from dpbench.report.answer import Answer, with_ends
from dpbench.report.comparison import plain_comparison
from dpbench.report.markup import render_template
from dpbench.report.numbers import decimals, quantity, rate_unit, sample_sizes
from dpbench.report.table import MISSING, Table, column, text_column

LISTED = 3
LONGEST_ADVICE_SECONDS = 3600.0
"""Repetitions that would take longer are not advised."""
NO_SPREAD = 1e-6
"""Percent; runs that differ by less are equal."""


def answer(assessment: Assessment, notes: Sequence[str], *, exit_status: int) -> Answer:
    """The whole answer; `notes` stand below the table. As data, ratios above 1 are worse, and None
    is not measured."""
    verdict = assessment.verdict
    shown = [part for title, table in tables(verdict) for part in (title, table)]
    return Answer(
        paragraphs=(
            f"{headline(verdict)}\n{sides(verdict.rows)}",
            *shown,
            [*dict.fromkeys((*reading(verdict.rows), *notes))],
        ),
        data={
            "outcome": verdict.outcome,
            "metrics": [
                {**asdict(one), **with_ends("slowdown", one.slowdown)} for one in verdict.metrics
            ],
            "rows": [
                {
                    **plain_comparison(row.comparison),
                    "candidate_name": row.comparison.candidate_label,
                    "tolerance": row.tolerance,
                    "outcome": row.outcome,
                }
                for row in verdict.rows
            ],
            "environment_differences": list(verdict.differences),
            "notes": list(notes),
            "exit_status": exit_status,
        },
    )


def headline(verdict: Verdict) -> str:
    """Says "regressed: time per image, mean of 2 rows: +5.2 % (+4.1 to +6.4 %), tolerance 3 %".

    It is about the first metric with the worst outcome, preferably one with inconclusive rows.
    """

    def importance(one: MetricVerdict) -> tuple[bool, bool]:
        has_open_rows = any(row.is_open for row in verdict.rows_of(one))
        return one.outcome == verdict.outcome, has_open_rows

    worst = max(verdict.metrics, key=importance)
    rows = verdict.rows_of(worst)
    mean = f", mean of {len(rows)} rows" if len(rows) > 1 else ""
    found = "too few repetitions to compare"
    if worst.slowdown is not None:
        tolerance = units.percent(worst.tolerance, 3)
        found = f"{change(worst.slowdown)}, tolerance {tolerance}"
    parts = [f"{quantity_of(rows)}{mean}: {found}"]
    word: str = verdict.outcome
    if len(rows) > 1:
        undecided = _counted([row.is_open for row in rows], rows)
        regressed = _counted([row.outcome == "regressed" for row in rows], rows)
        if undecided and word == "pass":
            word = "pass on average"
        if undecided and word != "regressed":
            parts.append(f"inconclusive in {undecided}")
        if regressed:
            parts.append(f"regressed in {regressed}")
    if word == "inconclusive":
        parts.append(
            "the machine was busy: free it and measure again"
            if verdict.is_untrustworthy
            else _what_would_decide(worst, rows)
        )
    if verdict.differences:
        changed = ", ".join(one.removeprefix("versions: ") for one in verdict.differences)
        parts.append(f"differs: {changed.replace(' -> ', ' → ')}")
    if len(verdict.metrics) > 1:
        parts.append(f"{len(verdict.metrics)} verdicts in all: see below")
    return f"{word}: {'; '.join(parts)}"


def quantity_of(rows: Sequence[RowVerdict]) -> str:
    """The quantity that changes; more of it is worse. Throughput is judged by "time per image"."""
    metric = rows[0].comparison.metric
    items = {row.comparison.unit.removesuffix("/s").removesuffix("s") for row in rows}
    if metric == "images_per_second":
        return f"time per {items.pop() if len(items) == 1 else 'sample'}"
    return f"1 ÷ {metric}" if METRICS[metric].higher_is_better else metric


def _counted(which: Sequence[bool], rows: Sequence[RowVerdict]) -> str:
    """Writes "1 of 2 rows (gloo ×2, batch 64)"; nothing for none."""
    names = [name for name, chosen in zip(labels(rows), which, strict=True) if chosen]
    return f"{len(names)} of {len(rows)} rows ({units.some_of(names, LISTED)})" if names else ""


def _what_would_decide(one: MetricVerdict, rows: Sequence[RowVerdict]) -> str:
    """How many repetitions would settle it, or what else would."""
    reasons = [row.comparison.reason for row in rows if row.outcome == "inconclusive"]
    if reasons and all(reasons):
        return str(reasons[0])
    if one.slowdown is None or one.slowdown.interval is None:
        return "measure at least 2 repetitions of both sides"
    needed, done = one.repetitions_needed, min(one.repetitions)
    if needed is not None and needed <= done:
        return "the change is close to the tolerance: add repetitions, or change the tolerance"
    if needed is None or (takes := needed * one.seconds_per_repetition) > LONGEST_ADVICE_SECONDS:
        return "too noisy to decide here: raise the tolerance, or find a quieter machine"
    return (
        f"about {needed} repetitions of each side would settle it (--repetitions {needed}, about "
        f"{units.seconds(takes)})"
    )


def sides(rows: Sequence[RowVerdict]) -> str:
    """Says "ddp (candidate) against torch-ddp (baseline)"."""
    candidates = dict.fromkeys(row.comparison.candidate_label for row in rows)
    baseline = rows[0].comparison.baseline_label
    return f"{', '.join(candidates)} (candidate) against {baseline} (baseline)"


def tables(verdict: Verdict) -> list[tuple[str, Table]]:
    """A table for each metric, and its title: the metric if there are several, else ""."""
    groups = [[*group] for _, group in groupby(verdict.rows, lambda row: row.comparison.metric)]
    titles = [group[0].comparison.metric if len(groups) > 1 else "" for group in groups]
    return [*zip(titles, map(_table, groups), strict=True)]


def _table(rows: Sequence[RowVerdict]) -> Table:
    found = [row.comparison for row in rows]
    rate = one_line(rate_unit(one.unit for one in found)).replace("(", "\n(")
    subject = one_line(quantity_of(rows))
    change = "Change" if subject == found[0].metric else f"Change\nin {subject}"
    return Table(
        columns=(
            text_column("Configuration", labels(rows), folds=True),
            *(
                column(
                    f"{name}{rate}",
                    [quantity(getattr(one, name.lower()), header=rate) for one in found],
                    leaves=2,
                )
                for name in ("Baseline", "Candidate")
            ),
            column(change.replace(" per", "\nper"), map(change_of, rows)),
            column("Runs", [sample_sizes(one.repetitions) for one in found], leaves=1),
            text_column("Verdict", [row.outcome for row in rows]),
        )
    )


def reading(rows: Sequence[RowVerdict]) -> list[str]:
    """How to read the table."""
    lines = []
    if len(rows) > 1:
        lines.append(
            "the verdict is on the mean change of all rows of a metric; one regressed row also "
            "makes it regressed, and with --strict one inconclusive row makes it inconclusive"
        )
    lines.append(f"+ is worse; ranges are {units.percent(CONFIDENCE)} intervals over repetitions")
    reasons: dict[str, dict[str, None]] = {}
    for row, label in zip(rows, labels(rows), strict=True):
        if row.comparison.reason and len(rows) > 1:  # the headline has that of a single one
            reasons.setdefault(row.comparison.reason, {})[label] = None
    lines += [f"{reason}: {units.some_of([*named], LISTED)}" for reason, named in reasons.items()]
    return lines


def labels(rows: Sequence[RowVerdict]) -> list[str]:
    """The configurations; where there are several candidates, as each of them calls it."""
    several = len({row.comparison.candidate_label for row in rows}) > 1
    return [
        row.comparison.candidate_configuration if several else row.comparison.label for row in rows
    ]


def sentence(row: RowVerdict) -> str:
    """Writes "pass: time per image: +1.2 % (-0.4 to +2.8 %), tolerance 3 %"; or why it has no
    number."""
    if row.comparison.reason:
        return f"{row.outcome}: {row.comparison.reason}"
    limit = f"tolerance {units.percent(row.tolerance, 3)}"
    return f"{row.outcome}: {quantity_of([row])}: {change_of(row)}, {limit}"


def change_of(row: RowVerdict) -> str:
    """The change of one row, as `change` writes it."""
    found = row.comparison.slowdown
    return MISSING if found is None else change(found)


def change(slowdown: Estimate) -> str:
    """Writes a ratio as "+1.2 % (-0.4 to +2.8 %)", to the digits that its interval supports."""
    percent = 100 * (slowdown.value - 1)
    if slowdown.interval is None:
        return f"{percent:+z,.1f} %"
    low, high = slowdown.interval
    spread = 50 * (high - low)
    places = decimals(spread, percent) if spread > NO_SPREAD else 1
    ends = " to ".join(f"{100 * (end - 1):+z,.{places}f}" for end in (low, high))
    return f"{percent:+z,.{places}f} % ({ends} %)"


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """Markdown: the headline, a table for each metric, and the notes folded away."""
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
    """JUnit: a testcase for each row, and for all rows of a metric and candidate together if there
    are several; a regression is a failure.

    What is inconclusive is skipped, with `strict` a failure; a row that neither side has measured
    is always skipped. What could not be measured is an error. Times are those of the trials of both
    sides. `started_utc` is ISO 8601 without fractions.
    """
    verdict, cases = assessment.verdict, list[dict[str, Any]]()

    def add(about: str, name: str, seconds: float, tag: str, message: str, kind: str) -> None:
        case = {"about": about, "name": one_line(name), "seconds": seconds, "tag": tag}
        cases.append({**case, "message": one_line(message), "type": kind})

    for one in verdict.metrics:
        rows = verdict.rows_of(one)
        if len(rows) > 1:
            seconds = sum(row.comparison.seconds for row in rows)
            said = headline(replace(verdict, outcome=one.outcome, metrics=(one,)))
            tag = _tag(one.outcome, strict=strict)
            add(one.metric, f"all rows of {one.candidate}", seconds, tag, said, one.outcome)
    for name, row in zip(labels(verdict.rows), verdict.rows, strict=True):
        found, tag = row.comparison, _tag(row.outcome, strict=strict and row.is_open)
        add(found.metric, name, found.seconds, tag, sentence(row), row.outcome)
    for label, how, seconds in assessment.failures:
        add("measuring", label, seconds, "error", how, "measuring")
    measured = (side for both in assessment.matched for side in (both.baseline, both.candidate))
    trials = {
        id(record): record.duration_seconds for side in measured for record in side.selected()
    }
    return render_template(
        "junit.xml",
        cases=cases,
        tags=[case["tag"] for case in cases],
        seconds=sum(trials.values()),
        started_utc=started_utc,
        said=[*map(one_line, (headline(verdict), *notes))],
    )


def _tag(outcome: VerdictOutcome, *, strict: bool) -> str:
    """The element that says how a testcase ended; "" if it passed."""
    if outcome == "regressed" or (outcome == "inconclusive" and strict):
        return "failure"
    return "skipped" if outcome == "inconclusive" else ""
