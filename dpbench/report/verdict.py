"""A check in every form: text, Markdown, JSON and JUnit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from dpbench import units
from dpbench.analysis.comparisons.comparison import Comparison, RowOutcome
from dpbench.analysis.comparisons.verdict import MetricVerdict, Verdict
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.messages import one_line
from dpbench.report.answer import Answer, with_ends
from dpbench.report.comparison import plain_comparison, sample_sizes, side_columns
from dpbench.report.markup import render_template
from dpbench.report.numbers import decimals, or_missing
from dpbench.report.table import Table, column, text_column

LISTED = 3
LONGEST_ADVICE_SECONDS = 3600.0
"""Repetitions that would take longer are not advised."""
NO_SPREAD = 1e-6
"""Percent; runs that differ by less are equal."""


def answer(verdict: Verdict, notes: Sequence[str], *, exit_status: int) -> Answer:
    """The whole answer; `notes` stand below the table. As data, ratios above 1 are worse, and None
    is not measured."""
    candidates = dict.fromkeys(row.candidate_label for row in verdict.rows)
    baseline = verdict.rows[0].baseline_label
    return Answer(
        paragraphs=(
            f"{headline(verdict)}\n"
            f"{', '.join(candidates)} (candidate) against {baseline} (baseline)",
            *tables(verdict),
            [*dict.fromkeys((*reading(verdict.rows), *notes))],
        ),
        data={
            "outcome": verdict.outcome,
            "metrics": [
                {
                    "metric": one.metric,
                    "candidate": one.candidate,
                    "outcome": one.outcome,
                    "tolerance": one.tolerance,
                    **with_ends("slowdown", one.slowdown),
                    "repetitions": one.repetitions,
                    "repetitions_needed": one.repetitions_needed,
                }
                for one in verdict.metrics
            ],
            "seconds_per_repetition": verdict.seconds_per_repetition,
            "rows": [
                {
                    **plain_comparison(row),
                    "candidate_name": row.candidate_label,
                    "tolerance": one.tolerance,
                }
                for one in verdict.metrics
                for row in one.rows
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
        return one.outcome == verdict.outcome, any(row.is_open for row in one.rows)

    worst = max(verdict.metrics, key=importance)
    rows = worst.rows
    mean = f", mean of {len(rows)} rows" if len(rows) > 1 else ""
    found = "too few repetitions to compare"
    if worst.slowdown is not None:
        tolerance = units.percent(worst.tolerance, 3)
        found = f"{change_words(worst.slowdown)}, tolerance {tolerance}"
    parts = [f"{quantity_of(rows)}{mean}: {found}"]
    word: str = verdict.outcome
    if len(rows) > 1:
        undecided = _counted([row for row in rows if row.is_open], rows)
        regressed = _counted([row for row in rows if row.outcome == "regressed"], rows)
        if undecided and word == "pass":
            word = "pass on average"
        if undecided and word != "regressed":
            parts.append(f"inconclusive in {undecided}")
        if regressed:
            parts.append(f"regressed in {regressed}")
    if verdict.is_untrustworthy and word in ("inconclusive", "regressed"):
        parts.append("the machine was busy: free it and measure again")
    elif word == "inconclusive":
        parts.append(_what_would_decide(worst, verdict.seconds_per_repetition))
    if verdict.differences:
        changed = ", ".join(one.removeprefix("versions: ") for one in verdict.differences)
        parts.append(f"differs: {changed.replace(' -> ', ' → ')}")
    if len(verdict.metrics) > 1:
        parts.append(f"{len(verdict.metrics)} verdicts in all: see below")
    return f"{word}: {'; '.join(parts)}"


def quantity_of(rows: Sequence[Comparison]) -> str:
    """The quantity that changes; more of it is worse. Throughput is judged by "time per image"."""
    metric = rows[0].metric
    items = {row.unit.removesuffix("/s").removesuffix("s") for row in rows}
    if metric == "images_per_second":
        return f"time per {items.pop() if len(items) == 1 else 'sample'}"
    return metric


def _counted(some: Sequence[Comparison], rows: Sequence[Comparison]) -> str:
    """Writes "1 of 2 rows (gloo ×2, batch 64)"; nothing for none."""
    names = labels(some)
    return f"{len(names)} of {len(rows)} rows ({units.some_of(names, LISTED)})" if names else ""


def _what_would_decide(one: MetricVerdict, seconds_per_repetition: float) -> str:
    """How many repetitions would settle it, or what else would."""
    reasons = [row.reason for row in one.rows if row.outcome == "inconclusive"]
    if reasons and all(reasons):
        return str(reasons[0])
    if one.slowdown is None or one.slowdown.interval is None:
        return "measure at least 2 repetitions of both sides"
    needed, done = one.repetitions_needed, min(one.repetitions)
    if needed is not None and needed <= done:
        return "the change is close to the tolerance: add repetitions, or change the tolerance"
    if needed is None or (takes := needed * seconds_per_repetition) > LONGEST_ADVICE_SECONDS:
        return "too noisy to decide here: raise the tolerance, or find a quieter machine"
    return (
        f"about {needed} repetitions of each side would settle it (--repetitions {needed}, about "
        f"{units.seconds(takes)})"
    )


def tables(verdict: Verdict) -> Iterator[str | Table]:
    """The table of each metric, after its name if there are several."""
    groups = [[*group] for _, group in groupby(verdict.rows, lambda row: row.metric)]
    for rows in groups:
        if len(groups) > 1:
            yield rows[0].metric
        yield _table(rows)


def _table(rows: Sequence[Comparison]) -> Table:
    subject = one_line(quantity_of(rows))
    change = "Change" if subject == rows[0].metric else f"Change\nin {subject}"
    return Table(
        columns=(
            text_column("Configuration", labels(rows), folds=True),
            *side_columns(rows, ("Baseline", "Candidate"), leaves=2, gap="\n"),
            column(
                change.replace(" per", "\nper"),
                [or_missing(row.slowdown, change_words) for row in rows],
            ),
            column("Runs", map(sample_sizes, rows), leaves=1),
            text_column("Verdict", [row.outcome for row in rows]),
        )
    )


def reading(rows: Sequence[Comparison]) -> list[str]:
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
        if row.reason and len(rows) > 1:  # the headline has that of a single one
            reasons.setdefault(row.reason, {})[label] = None
    lines += [f"{reason}: {units.some_of([*named], LISTED)}" for reason, named in reasons.items()]
    return lines


def labels(rows: Sequence[Comparison]) -> list[str]:
    """The configurations; where there are several candidates, as each of them calls it."""
    several = len({row.candidate_label for row in rows}) > 1
    return [row.candidate_configuration if several else row.label for row in rows]


def sentence(row: Comparison, tolerance: float) -> str:
    """Writes "pass: time per image: +1.2 % (-0.4 to +2.8 %), tolerance 3 %"; or why it has no
    number."""
    if row.reason:
        return f"{row.outcome}: {row.reason}"
    change = or_missing(row.slowdown, change_words)
    limit = f"tolerance {units.percent(tolerance, 3)}"
    return f"{row.outcome}: {quantity_of([row])}: {change}, {limit}"


def change_words(slowdown: Estimate) -> str:
    """Writes a ratio as "+1.2 % (-0.4 to +2.8 %)", to the digits that its interval supports."""
    percent = 100 * (slowdown.value - 1)
    if slowdown.interval is None:
        return f"{percent:+z,.1f} %"
    low, high = slowdown.interval
    spread = 50 * (high - low)
    places = decimals(spread, percent) if spread > NO_SPREAD else 1
    ends = " to ".join(f"{100 * (end - 1):+z,.{places}f}" for end in (low, high))
    return f"{percent:+z,.{places}f} % ({ends} %)"


def junit(verdict: Verdict, *, strict: bool, notes: Sequence[str], started_utc: str) -> str:
    """JUnit: a testcase for each row, and for all rows of a metric and candidate together if there
    are several; a regression is a failure.

    What is inconclusive is skipped, with `strict` a failure; a row that neither side has measured
    is always skipped. What could not be measured is an error. Times are those of the trials of both
    sides. `started_utc` is ISO 8601 without fractions.
    """
    cases: list[dict[str, Any]] = []

    def add(about: str, name: str, seconds: float, tag: str, message: str, kind: str) -> None:
        case = {"about": about, "name": one_line(name), "seconds": seconds, "tag": tag}
        cases.append({**case, "message": one_line(message), "type": kind})

    names = iter(labels(verdict.rows))
    for one in verdict.metrics:
        if len(one.rows) > 1:
            seconds = sum(row.seconds for row in one.rows)
            said = headline(replace(verdict, outcome=one.outcome, metrics=(one,)))
            tag = _tag(one.outcome, strict=strict)
            add(one.metric, f"all rows of {one.candidate}", seconds, tag, said, one.outcome)
        for row in one.rows:
            tag = _tag(row.outcome, strict=strict and row.is_open)
            said = sentence(row, one.tolerance)
            add(row.metric, next(names), row.seconds, tag, said, row.outcome)
    for label, how, seconds in verdict.failures:
        add("measuring", label, seconds, "error", how, "measuring")
    return render_template(
        "junit.xml",
        cases=cases,
        tags=[case["tag"] for case in cases],
        seconds=verdict.seconds,
        started_utc=started_utc,
        said=[*map(one_line, (headline(verdict), *notes))],
    )


def _tag(outcome: RowOutcome, *, strict: bool) -> str:
    """The element that says how a testcase ended; "" if it passed."""
    if outcome == "regressed" or (outcome == "inconclusive" and strict):
        return "failure"
    return "skipped" if outcome == "inconclusive" else ""
