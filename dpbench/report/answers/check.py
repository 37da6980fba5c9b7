"""`dpbench check`: the verdict in every form, text, Markdown, JSON and JUnit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.change import Change
from dpbench.analysis.comparisons.comparison import ComparedRow
from dpbench.analysis.comparisons.verdict import MetricVerdict, Verdict
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.analysis.noise import FREE_THE_MACHINE, repetitions_advice
from dpbench.messages import one_line
from dpbench.report.answer import Answer, with_ends
from dpbench.report.answers.compare import plain_comparison, sample_sizes, side_columns
from dpbench.report.formatting import decimals
from dpbench.report.markup import render_template
from dpbench.report.table import MISSING, Table, column, text_column

MOST_NAMED = 3
EQUAL_RUNS_PERCENT = 1e-6
"""Percent; runs that differ by less are equal."""


def check_answer(verdict: Verdict, *, exit_status: int) -> Answer:
    """The whole answer. As data, ratios above 1 are worse, and None is not measured."""
    first, rows = summary_of(verdict), verdict.rows
    reading = [f"+ is worse; ranges are {units.percent(CONFIDENCE)} intervals over repetitions"]
    if len(rows) > 1:  # the headline has the reason of a single one
        reading.insert(
            0,
            "the verdict is on the mean change of all rows of a metric; one regressed row also "
            "makes it regressed",
        )
        for reason in dict.fromkeys(row.reason for row in rows if row.reason):
            named = dict.fromkeys(row.label for row in rows if row.reason == reason)
            reading.append(f"{reason}: {units.some_of([*named], MOST_NAMED)}")
    plain_rows = [
        plain_comparison(row) | {"tolerance": one.rule.tolerance}
        for one in verdict.by_metric
        for row in one.rows
    ]
    return Answer(
        paragraphs=(
            f"{first}\n{verdict.candidate} (candidate) against {verdict.baseline} (baseline)",
            *_tables(verdict),
            [*reading, *all_notes(verdict)],
        ),
        data={
            "outcome": verdict.outcome,
            "summary": first,
            "baseline": verdict.baseline,
            "candidate": verdict.candidate,
            "metrics": [
                {
                    "metric": one.metric,
                    "outcome": one.outcome,
                    "tolerance": one.rule.tolerance,
                    **with_ends("slowdown", one.change.estimate if one.change else None),
                    "repetitions": one.change.repetitions if one.change else (0, 0),
                    "repetitions_needed": one.repetitions_needed,
                }
                for one in verdict.by_metric
            ],
            "rows": plain_rows,
            "environment_differences": list(verdict.differences),
            "notes": all_notes(verdict),
            "exit_status": exit_status,
        },
        exit_status=exit_status,
    )


def summary_of(verdict: Verdict) -> str:
    """Says "regressed: time per image, mean of 2 rows: +5.2 % (+4.1 to +6.4 %), tolerance 3 %".

    It is about the first metric with the worst outcome, preferably one with inconclusive rows.
    """
    deciding = [one for one in verdict.by_metric if one.outcome == verdict.outcome]
    with_open_rows = [one for one in deciding if any(row.is_open for row in one.rows)]
    worst = [*with_open_rows, *deciding, *verdict.by_metric][0]
    rows, word = worst.rows, str(verdict.outcome)
    quantity = quantity_of(rows) + (f", mean of {len(rows)} rows" if len(rows) > 1 else "")
    parts = [_change_text(quantity, worst.change, worst.rule.tolerance)]
    if len(rows) > 1:
        undecided = _rows_words([row for row in rows if row.is_open], rows)
        regressed = _rows_words([row for row in rows if row.outcome == "regressed"], rows)
        if undecided and word == "pass":
            word = "pass on average"
        if undecided and word != "regressed":
            parts.append(f"inconclusive in {undecided}")
        if regressed:
            parts.append(f"regressed in {regressed}")
    if verdict.load.spoils_speeds and verdict.load_matters and "pass" not in word:
        parts.append(FREE_THE_MACHINE)
    elif word == "inconclusive":
        parts.append(_what_would_decide(worst, _seconds_of_repetition(verdict)))
    if verdict.differences:
        changed = ", ".join(text.removeprefix("versions: ") for text in verdict.differences)
        parts.append(f"differs: {changed.replace(' -> ', ' → ')}")
    if len(verdict.by_metric) > 1:
        parts.append(f"{len(verdict.by_metric)} verdicts in all: see below")
    return f"{word}: {'; '.join(parts)}"


def quantity_of(rows: Sequence[ComparedRow]) -> str:
    """The quantity that changes; more of it is worse. Throughput is judged by "time per image"."""
    if rows[0].metric != "images_per_second":
        return rows[0].metric
    rates = {row.unit for row in rows if row.baseline or row.candidate}
    rate = rates.pop() if len(rates) == 1 else "samples/s"
    one = re.sub(r"(x|ss|ch|sh)es$|s$", r"\1", rate.removesuffix("/s"))
    return f"time per {one}"


def _change_text(quantity: str, change: Change | None, tolerance: float) -> str:
    if change is None:
        return f"{quantity}: too few repetitions to compare"
    return f"{quantity}: {change_words(change)}, tolerance {units.percent(tolerance, 3)}"


def _rows_words(some: Sequence[ComparedRow], rows: Sequence[ComparedRow]) -> str:
    """Writes "1 of 2 rows (gloo ×2, batch 64)"; nothing for none."""
    names = [row.label for row in some]
    return f"{len(names)} of {len(rows)} rows ({units.some_of(names, MOST_NAMED)})" if names else ""


def _seconds_of_repetition(verdict: Verdict) -> float:
    """Time of one repetition of all rows on both sides."""
    sides = (side for row in verdict.rows for side in (row.baseline_records, row.candidate_records))
    records = {id(record): record for side in sides for record in side}.values()
    count = len({record.trial.repetition for record in records})
    return sum(record.duration_seconds for record in records) / max(1, count)


def _what_would_decide(metric: MetricVerdict, seconds: float) -> str:
    """How many repetitions of so many seconds would settle it, or what else would."""
    reasons = [row.reason for row in metric.rows if row.outcome == "inconclusive"]
    if reasons and all(reasons):
        return str(reasons[0])
    if metric.change is None or metric.change.error is None:
        return "measure at least 2 repetitions of both sides"
    needed = metric.repetitions_needed
    if needed is None:
        return "too noisy to decide here: find a quieter machine, or raise the tolerance"
    if needed <= min(metric.change.repetitions):
        return "the change is close to the tolerance: add repetitions"
    return repetitions_advice(needed, min(metric.change.repetitions), seconds)


def _tables(verdict: Verdict) -> Iterator[str | Table]:
    """The table of each metric, after its name and tolerance if there are several."""
    for one in verdict.by_metric:
        metric, rows = one.metric, one.rows
        if len(verdict.by_metric) > 1:
            yield f"{metric}, tolerance {units.percent(one.rule.tolerance, 3)}"
        subject = one_line(quantity_of(rows))
        change = "Change" if subject == metric else f"Change\nin {subject}"
        yield Table(
            columns=(
                text_column("Configuration", [row.label for row in rows]),
                *side_columns(rows, ("Baseline", "Candidate"), leaves=2, gap="\n"),
                column(
                    change.replace(" per", "\nper"),
                    [change_words(row.change) if row.change else MISSING for row in rows],
                ),
                column("Runs", map(sample_sizes, rows), leaves=1),
                text_column("Verdict", [row.outcome for row in rows]),
            )
        )


def all_notes(verdict: Verdict) -> list[str]:
    """Failures, load on the machine if it matters, and other notes."""
    failed = [f"{label}: {how}" for label, how in verdict.failures]
    load = [verdict.load.note] if verdict.load_matters else []
    return [*failed, *filter(None, load), *verdict.notes]


def change_words(change: Change) -> str:
    """Writes a change as "+1.2 % (-0.4 to +2.8 %)", to the digits that its interval supports."""
    percent = 100 * (change.estimate.value - 1)
    if change.error is None:
        return f"{percent:+z,.1f} %"
    low, high = change.estimate.ends
    spread = 50 * (high - low)
    places = decimals(spread, percent) if spread > EQUAL_RUNS_PERCENT else 1
    ends = " to ".join(f"{100 * (end - 1):+z,.{places}f}" for end in (low, high))
    return f"{percent:+z,.{places}f} % ({ends} %)"


def junit(verdict: Verdict, *, strict: bool, started_utc: str) -> str:
    """JUnit: a testcase for all rows of a metric together, and one for each row if
    there are several.

    A regression is a failure, and what is inconclusive is skipped, or, if `strict`, a failure of
    all rows. What could not be measured is an error. `started_utc` is ISO 8601 without fractions.
    """
    cases: list[dict[str, Any]] = []

    def add(about: str, name: str, outcome: str, said: str, if_open: str = "skipped") -> None:
        tags = {"pass": "", "regressed": "failure", "inconclusive": if_open, "error": "error"}
        message = one_line(f"{outcome}: {said}")
        case = {"about": about, "name": one_line(name), "message": message, "type": outcome}
        cases.append({**case, "tag": tags[outcome]})

    for one in verdict.by_metric:
        said = _change_text(quantity_of(one.rows), one.change, one.rule.tolerance)
        name, is_single = f"all rows of {verdict.candidate}", len(one.rows) == 1
        if is_single:
            name, said = one.rows[0].label, one.rows[0].reason or said
        add(one.metric, name, one.outcome, said, "failure" if strict else "skipped")
        for row in () if is_single else one.rows:
            said = row.reason or _change_text(quantity_of([row]), row.change, one.rule.tolerance)
            add(row.metric, row.label, row.outcome, said)
    for label, how in verdict.failures:
        add("measuring", label, "error", how)
    return render_template(
        "junit.xml",
        cases=cases,
        tags=[case["tag"] for case in cases],
        started_utc=started_utc,
        said=[*map(one_line, (summary_of(verdict), *all_notes(verdict)))],
    )
