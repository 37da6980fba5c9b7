"""A check as text: a line that says the outcome, a row per comparison, notes; and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.assessment import Assessment
from dpbench.analysis.verdict import RowVerdict, Verdict
from dpbench.report.answer import Answer, bullets, with_ends
from dpbench.report.export.markup import escape
from dpbench.report.formats import is_for_terminals
from dpbench.report.numbers import decimals, quantity, sample_sizes
from dpbench.report.table import MISSING, text_table
from dpbench.report.terminal import folded, write_table

COLUMNS = (
    *("Configuration", "Metric", "Baseline", "Candidate", "Worse by", "Interval", "Tolerance"),
    *("Detectable", "n", "Verdict"),
)
WORDS = ("Configuration", "Metric", "Verdict")
"""Columns that are aligned left."""
FOLDED = ("Verdict", "Interval", "Configuration", "Candidate", "Baseline")
"""Columns that give way in a narrow terminal, the first one first."""
LISTED = 3
NO_SPREAD = 1e-6
"""Percent; runs that differ by less are equal."""


def answer(assessment: Assessment, notes: Sequence[str], *, exit_status: int) -> Answer:
    """The whole answer; `notes` stand below the table. As data, ratios above 1 are worse, and None
    is not measured."""
    verdict = assessment.verdict
    below = bullets([*reading(verdict.rows), *notes])
    return Answer(
        paragraphs=(
            sides(verdict.rows),
            table(verdict.rows, "simple"),
            f"{headline(verdict)}\n{below}",
        ),
        data={
            "outcome": verdict.outcome,
            "rows": [_row_data(row) for row in verdict.rows],
            "notes": list(notes),
            "exit_status": exit_status,
        },
    )


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
    rate = _rate(rows)
    by_name = [_cells(label, row, rate) for label, row in zip(labels(rows), rows, strict=True)]
    found = text_table(
        [_header(name, rows, rate) for name in names],
        [[cell[name] for name in names] for cell in by_name],
        words=WORDS,
    )
    if is_for_terminals(layout):
        headers = [one.replace(" (", "\n(").replace(" i", "\ni") for one in found.headers]
        columns = zip(found.columns, names, headers, strict=True)
        found = replace(
            found,
            columns=tuple(replace(c, key=name, header=header) for c, name, header in columns),
        )
        found = folded(found, FOLDED)
    return write_table(found, layout)


def _rate(rows: Sequence[RowVerdict]) -> str:
    """The unit in brackets, for the headers, where all rows are rates of the same items."""
    units_seen = {row.comparison.unit for row in rows}
    unit = units_seen.pop()
    return f" ({unit})" if unit.endswith("/s") and not units_seen else ""


def _header(name: str, rows: Sequence[RowVerdict], rate: str) -> str:
    if name in ("Baseline", "Candidate"):
        return f"{name}{rate}"
    return f"{units.fixed_percent(rows[0].confidence)} interval" if name == "Interval" else name


def headline(verdict: Verdict) -> str:
    """Says "regressed: 1 of 4 rows is slower than its tolerance: ddp/gloo ×2, batch 16"."""
    rows = verdict.rows
    counts = Counter(row.outcome for row in rows)
    total = units.counted(len(rows), "row")
    if verdict.outcome == "pass":
        return f"pass: {total}, none worse by more than its tolerance"
    named = zip(_names(rows), rows, strict=True)
    guilty = [name for name, row in named if row.outcome == verdict.outcome]
    more = f" and {len(guilty) - LISTED} more" if len(guilty) > LISTED else ""
    listed = f"{'; '.join(guilty[:LISTED])}{more}"
    if verdict.outcome == "regressed":
        return (
            f"regressed: {counts['regressed']} of {total}, worse by more than tolerated: {listed}"
        )
    return (
        f"inconclusive: {counts['inconclusive']} of {total}, neither surely within the tolerance "
        f"nor surely beyond it: {listed}"
    )


def reading(rows: Sequence[RowVerdict]) -> list[str]:
    """How to read the table, and changes that no tolerance speaks of."""
    lines = [
        "a row regressed if its interval lies above the tolerance (corrected for the number of "
        "rows), and passes if it lies below; detectable: the change that as many runs of this "
        "noise show in 4 of 5 cases"
    ]
    if any(len({*row.comparison.repetitions}) > 1 for row in rows if row.comparison.slowdown):
        lines.append("n: runs of the baseline, of the candidate")
    named = zip(_names(rows), rows, strict=True)
    if changed := [name for name, row in named if row.any_change and row.outcome == "pass"]:
        lines.append(f"changed within the tolerance: {'; '.join(changed)}")
    return lines


def _cells(name: str, row: RowVerdict, rate: str) -> dict[str, str]:
    comparison, detectable = row.comparison, row.minimum_detectable_effect
    why = f": {comparison.reason}" if comparison.reason else ""
    return {
        "Configuration": name,
        "Metric": comparison.metric,
        "Baseline": quantity(comparison.baseline, header=rate),
        "Candidate": quantity(comparison.candidate, header=rate),
        "Worse by": change(row),
        "Interval": interval(row),
        "Tolerance": units.percent(row.tolerance, 3),
        "Detectable": MISSING if detectable is None else units.percent(detectable),
        "n": sample_sizes(comparison.repetitions) if comparison.slowdown else MISSING,
        "Verdict": f"{row.outcome}{why}",
    }


def labels(rows: Sequence[RowVerdict]) -> list[str]:
    """The configurations; where there are several candidates, as each of them calls it."""
    several = len({row.comparison.candidate_label for row in rows}) > 1
    return [
        row.comparison.candidate_configuration if several else row.comparison.label for row in rows
    ]


def _names(rows: Sequence[RowVerdict]) -> list[str]:
    """The same for sentences: with the metric where there are several."""
    if len({row.comparison.metric for row in rows}) == 1:
        return labels(rows)
    named = zip(labels(rows), rows, strict=True)
    return [f"{row.comparison.metric} of {name}" for name, row in named]


def change(row: RowVerdict) -> str:
    """The slow-down in percent, to the digits that its interval supports: "+1.2 %"."""
    slowdown = row.comparison.slowdown
    return MISSING if slowdown is None else f"{_signed(slowdown.value, row)} %"


def sentence(row: RowVerdict) -> str:
    """Writes "worse by +1.2 % (90 % interval -0.4 to +2.8 %), tolerance 3 %"; "better by …" where
    it is; or why there is no number."""
    slowdown, reason = row.comparison.slowdown, row.comparison.reason
    if slowdown is None:
        return reason or "not measured"
    better = slowdown.value < 1
    text = f"{'better' if better else 'worse'} by {_signed(slowdown.value, row, better)} %"
    if row.low is not None and row.high is not None:
        low, high = (row.high, row.low) if better else (row.low, row.high)
        ends = f"{_signed(low, row, better)} to {_signed(high, row, better)} %"
        text += f" ({units.fixed_percent(row.confidence)} interval {ends})"
    text += f", tolerance {units.percent(row.tolerance, 3)}"
    return f"{text}, {reason}" if reason else text


def interval(row: RowVerdict) -> str:
    """The one-sided bounds, which at 95 % each are a 90 % interval: "-0.4 to +2.8 %"."""
    if row.low is None or row.high is None:
        return MISSING
    return f"{_signed(row.low, row)} to {_signed(row.high, row)} %"


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
        "minimum_detectable_effect": row.minimum_detectable_effect,
        "repetitions": comparison.slowdown and comparison.slowdown.sample_size,
        "baseline_repetitions": comparison.repetitions[0],
        "candidate_repetitions": comparison.repetitions[1],
        "paired": comparison.paired,
        "p_regressed": row.p_regressed,
        "any_change": row.any_change,
        "outcome": row.outcome,
        "reason": comparison.reason,
    }


def _signed(slowdown: float, row: RowVerdict, flipped: bool = False) -> str:
    percent = 100 * (1 - slowdown if flipped else slowdown - 1)
    spread = 0.0 if row.low is None or row.high is None else 50 * (row.high - row.low)
    return f"{percent:+z.{decimals(spread, percent) if spread > NO_SPREAD else 1}f}"


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, the table, and the notes folded away."""
    outcome, _, rest = headline(verdict).partition(": ")
    return "\n".join(
        [
            f"### dpbench check: {outcome}",
            "",
            escape(f"{sides(verdict.rows)}: {rest}"),
            "",
            table(verdict.rows, "markdown"),
            "",
            "<details><summary>Notes</summary>",
            "",
            *(f"- {escape(note)}" for note in (*reading(verdict.rows), *notes)),
            "",
            "</details>",
            "",
        ]
    )
