"""Text and JSON of `dpbench check`: the verdict in one line, a row per comparison, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from dpbench import units
from dpbench.analysis.comparisons.differences import MOST_REPETITIONS
from dpbench.analysis.comparisons.verdict import Assessment, MetricVerdict, RowVerdict, Verdict
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.analysis.metrics import METRICS
from dpbench.report.answer import Answer, bullets, with_ends
from dpbench.report.numbers import decimals, quantity, sample_sizes
from dpbench.report.progress.terminal import WIDTH
from dpbench.report.table import MISSING, text_table
from dpbench.report.terminal import DEFAULT, folded, write_table

COLUMNS = (
    *("Configuration", "Metric", "Baseline", "Candidate", "Change", "Interval", "n"),
    "Verdict",
)
WORDS = ("Configuration", "Metric", "Verdict")
"""Columns that are aligned left."""
FOLDED = ("Verdict", "Interval", "Change", "Configuration", "Candidate", "Baseline")
"""Columns that give way in a narrow terminal, the first one first."""
LISTED = 3
NO_SPREAD = 1e-6
"""Percent; runs that differ by less are equal."""


def answer(assessment: Assessment, notes: Sequence[str], *, exit_status: int) -> Answer:
    """The whole answer; `notes` stand below the table. As data, ratios above 1 are worse, and None
    is not measured."""
    verdict = assessment.verdict
    return Answer(
        paragraphs=(
            "\n".join(
                fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
                for line in (headline(verdict), sides(verdict.rows))
            ),
            table(verdict.rows, DEFAULT),
            bullets([*reading(verdict.rows), *notes]),
        ),
        data={
            "outcome": verdict.outcome,
            "metrics": [_metric_data(one) for one in verdict.metrics],
            "rows": [_row_data(row) for row in verdict.rows],
            "notes": list(notes),
            "exit_status": exit_status,
        },
    )


def headline(verdict: Verdict) -> str:
    """Says "regressed: images_per_second is 5.2 % slower over 2 rows (+4.1 to +6.4 %, …)"."""
    worst = next(one for one in verdict.metrics if one.outcome == verdict.outcome)
    rows = _rows_of(worst, verdict.rows)
    parts = [_change_sentence(worst, len(rows))]
    guilty = [name for name, row in zip(labels(rows), rows, strict=True) if row.regressed]
    if guilty and len(rows) > 1:
        parts.append(f"beyond the tolerance by itself: {units.some_of(guilty, LISTED)}")
    if verdict.outcome == "inconclusive":
        parts.append(_what_would_decide(worst, rows))
    word = "INCONCLUSIVE" if verdict.outcome == "inconclusive" else verdict.outcome
    others = len(verdict.metrics) - 1
    more = f"; {units.counted(others, 'other metric or candidate')} below" if others else ""
    return f"{word}: {'; '.join(parts)}{more}"


def _rows_of(one: MetricVerdict, rows: Sequence[RowVerdict]) -> list[RowVerdict]:
    return [
        row
        for row in rows
        if (row.comparison.metric, row.comparison.candidate_label) == (one.metric, one.candidate)
    ]


def _change_sentence(one: MetricVerdict, rows: int) -> str:
    """Says "images_per_second over 2 rows: 1.2 % slower (-0.4 to +2.8 %), tolerance 3 %"."""
    where = f"{one.metric} over {units.counted(rows, 'row')}"
    tolerance = f"tolerance {units.percent(one.tolerance, 3)}"
    if one.slowdown is None:
        return f"{where}: too few runs to compare"
    change = _worded(one.slowdown, one.low, one.high, one.metric)
    return f"{where}: {change} ({_signed(one.low, one.high)}), {tolerance}"


def _what_would_decide(one: MetricVerdict, rows: Sequence[RowVerdict]) -> str:
    """What the interval excludes, and how many passes would settle it."""
    if one.high is None or one.low is None:
        return rows[0].comparison.reason or "measure at least 2 repetitions of both sides"
    excluded = f"it excludes more than {_percent(one.high, one.low, one.high)} % worse"
    needed, done = one.repetitions_needed, min(one.passes)
    if needed is None:
        advice = (
            f"not even {MOST_REPETITIONS} passes would settle it: raise the tolerance, or find a "
            "quieter machine"
        )
    elif needed <= done:
        advice = "the change is close to the tolerance: add passes, or change the tolerance"
    else:
        advice = f"about {needed} passes would settle it (--repetitions {needed})"
    return f"{excluded}; {advice}"


def sides(rows: Sequence[RowVerdict]) -> str:
    """Says "images_per_second of ddp (candidate) against torch-ddp (baseline)"."""
    metrics = dict.fromkeys(row.comparison.metric for row in rows)
    candidates = dict.fromkeys(row.comparison.candidate_label for row in rows)
    return (
        f"{', '.join(metrics)} of {', '.join(candidates)} (candidate) against "
        f"{rows[0].comparison.baseline_label} (baseline)"
    )


def table(rows: Sequence[RowVerdict], layout: str) -> str:
    """The rows in one of the layouts for people."""
    one_metric = len({row.comparison.metric for row in rows}) == 1
    names = [name for name in COLUMNS if name != "Metric" or not one_metric]
    seen = {row.comparison.unit for row in rows}
    unit = seen.pop()
    rate = f" ({unit})" if unit.endswith("/s") and not seen else ""
    headers = {name: f"{name}{rate}" for name in ("Baseline", "Candidate")}
    headers["Interval"] = f"{units.fixed_percent(rows[0].confidence)} interval"
    by_name = [_cells(label, row, rate) for label, row in zip(labels(rows), rows, strict=True)]
    found = text_table(
        [headers.get(name, name) for name in names],
        [[cell[name] for name in names] for cell in by_name],
        words=WORDS,
    )
    if layout == DEFAULT:
        broken = [one.replace(" (", "\n(").replace(" i", "\ni") for one in found.headers]
        columns = zip(found.columns, names, broken, strict=True)
        found = replace(
            found,
            columns=tuple(replace(c, key=name, header=header) for c, name, header in columns),
        )
        found = folded(found, FOLDED)
    return write_table(found, layout)


def _cells(name: str, row: RowVerdict, rate: str) -> dict[str, str]:
    comparison = row.comparison
    return {
        "Configuration": name,
        "Metric": comparison.metric,
        "Baseline": quantity(comparison.baseline, header=rate),
        "Candidate": quantity(comparison.candidate, header=rate),
        "Change": change(row),
        "Interval": _signed(row.low, row.high),
        "n": sample_sizes(comparison.repetitions) if comparison.slowdown else MISSING,
        "Verdict": row_verdict(row),
    }


def row_verdict(row: RowVerdict) -> str:
    """What a row says by itself: "regressed", "within 3 %", or why it says nothing."""
    if row.comparison.reason:
        return row.comparison.reason
    if row.regressed:
        return "regressed"
    if row.high is not None and row.high < 1 + row.tolerance:
        return f"within {units.percent(row.tolerance, 3)}"
    return "not clear alone"


def reading(rows: Sequence[RowVerdict]) -> list[str]:
    """How to read the table."""
    lines = [
        "the verdict is over the mean change of all rows in each pass; a single row beyond its "
        "tolerance is a regression, too (corrected for the number of rows); + is slower, or worse",
    ]
    if rows[0].confidence != CONFIDENCE:
        side = units.fixed_percent((1 + rows[0].confidence) / 2)
        lines.append(
            f"± of baseline and candidate is their {units.exact_percent(CONFIDENCE)} interval; the "
            f"ends of a change are one-sided bounds at {side}"
        )
    if any(len({*row.comparison.repetitions}) > 1 for row in rows if row.comparison.slowdown):
        lines.append("n: runs of the baseline, of the candidate")
    return lines


def labels(rows: Sequence[RowVerdict]) -> list[str]:
    """The configurations; where there are several candidates, as each of them calls it."""
    several = len({row.comparison.candidate_label for row in rows}) > 1
    return [
        row.comparison.candidate_configuration if several else row.comparison.label for row in rows
    ]


def change(row: RowVerdict) -> str:
    """The change in percent, to the digits that its interval supports: "1.2 % slower"."""
    slowdown = row.comparison.slowdown
    if slowdown is None:
        return MISSING
    return _worded(slowdown.value, row.low, row.high, row.comparison.metric)


def sentence(row: RowVerdict) -> str:
    """Writes "1.2 % slower (-0.4 to +2.8 %), tolerance 3 %"; or why there is no number."""
    if row.comparison.slowdown is None:
        return row.comparison.reason or "not measured"
    ends = f" ({_signed(row.low, row.high)})" if row.low is not None else ""
    return f"{change(row)}{ends}, tolerance {units.percent(row.tolerance, 3)}"


def _signed(low: float | None, high: float | None) -> str:
    """One-sided bounds as "-0.4 to +2.8 %"."""
    if low is None or high is None:
        return MISSING
    ends = (_percent(low, low, high), _percent(high, low, high))
    first, second = (end if end.startswith("-") else f"+{end}" for end in ends)
    return f"{first} to {second} %"


def _worded(slowdown: float, low: float | None, high: float | None, metric: str) -> str:
    """Writes "1.2 % slower", "0.4 % better", "0.0 %"."""
    percent = _percent(slowdown, low, high)
    if float(percent) == 0:
        return f"{percent} %"
    better, worse = ("faster", "slower") if METRICS[metric].is_speed else ("better", "worse")
    return f"{percent.lstrip('-')} % {better if percent.startswith('-') else worse}"


def _percent(slowdown: float, low: float | None, high: float | None) -> str:
    """Percentage such as "-1.2", to the digits that the interval supports."""
    percent = 100 * (slowdown - 1)
    spread = 0.0 if low is None or high is None else 50 * (high - low)
    return f"{percent:z.{decimals(spread, percent) if spread > NO_SPREAD else 1}f}"


def _metric_data(one: MetricVerdict) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "candidate": one.candidate,
        "outcome": one.outcome,
        "tolerance": one.tolerance,
        "slowdown": one.slowdown,
        "slowdown_low": one.low,
        "slowdown_high": one.high,
        "baseline_passes": one.passes[0],
        "candidate_passes": one.passes[1],
        "repetitions_needed": one.repetitions_needed,
    }


def _row_data(row: RowVerdict) -> dict[str, Any]:
    comparison = row.comparison
    return {
        "configuration": comparison.label,
        "baseline": comparison.baseline_label,
        "candidate": comparison.candidate_label,
        "metric": comparison.metric,
        "unit": comparison.unit,
        **with_ends("baseline_value", comparison.baseline),
        **with_ends("candidate_value", comparison.candidate),
        "slowdown": comparison.slowdown and comparison.slowdown.value,
        "slowdown_low": row.low,
        "slowdown_high": row.high,
        "confidence": row.confidence,
        "tolerance": row.tolerance,
        "baseline_repetitions": comparison.repetitions[0],
        "candidate_repetitions": comparison.repetitions[1],
        "paired": comparison.paired,
        "regressed": row.regressed,
        "reason": comparison.reason,
    }
