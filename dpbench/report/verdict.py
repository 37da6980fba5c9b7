"""Text and JSON of `dpbench check`: the outcome, a row per comparison, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.comparisons.power import MOST_REPETITIONS, Chances
from dpbench.analysis.comparisons.verdict import Assessment, RowVerdict, Verdict
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.analysis.metrics import METRICS
from dpbench.report.answer import Answer, bullets, with_ends
from dpbench.report.numbers import decimals, quantity, sample_sizes
from dpbench.report.table import MISSING, text_table
from dpbench.report.terminal import DEFAULT, folded, write_table

COLUMNS = (
    *("Configuration", "Metric", "Baseline", "Candidate", "Change", "Interval", "Tolerance"),
    *("Chances", "n", "Verdict"),
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
    below = bullets([*reading(verdict.rows), *notes])
    return Answer(
        paragraphs=(
            f"{headline(verdict)}\n{sides(verdict.rows)}",
            table(verdict.rows, DEFAULT),
            below,
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
    if layout == DEFAULT:
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
    listed = units.some_of(guilty, LISTED)
    if verdict.outcome == "regressed":
        return (
            f"regressed: {counts['regressed']} of {total}, worse by more than tolerated: {listed}"
        )
    return (
        f"INCONCLUSIVE: {counts['inconclusive']} of {total}, neither surely within the tolerance "
        f"nor surely beyond it: {listed}; {_to_settle(rows)}"
    )


def _to_settle(rows: Sequence[RowVerdict]) -> str:
    """How many runs would decide the inconclusive rows that can be decided."""
    open_rows = [row for row in rows if row.outcome == "inconclusive"]
    needed = [row.repetitions_needed for row in open_rows]
    known = [count for count in needed if count is not None]
    if len(known) < len(needed):
        return (
            f"not even {MOST_REPETITIONS} repetitions would settle it: raise the tolerance, or "
            "find a quieter machine"
        )
    done = max(min(row.comparison.repetitions) for row in open_rows)
    if max(known) <= done:
        return "the change is too close to the tolerance: raise --repetitions, or the tolerance"
    return f"{max(known)} repetitions would settle it (--repetitions {max(known)})"


def reading(rows: Sequence[RowVerdict]) -> list[str]:
    """How to read the table, and changes that no tolerance speaks of."""
    lines = [
        "a row regressed if its interval lies above the tolerance (corrected for the number of "
        "rows), and passes if it lies below; + is slower, or worse",
        "chances at the spread of these runs: that an unchanged candidate passes / that one slower "
        "by the tolerance is caught / by twice the tolerance",
    ]
    confidence = units.fixed_percent(rows[0].confidence)
    if rows[0].confidence != CONFIDENCE:
        side = units.fixed_percent((1 + rows[0].confidence) / 2)
        lines.append(
            f"± of baseline and candidate is their {units.exact_percent(CONFIDENCE)} interval; the "
            f"change has a {confidence} one, of two one-sided bounds at {side}"
        )
    if any(len({*row.comparison.repetitions}) > 1 for row in rows if row.comparison.slowdown):
        lines.append("n: runs of the baseline, of the candidate")
    passed = [one for one in zip(_names(rows), rows, strict=True) if one[1].outcome == "pass"]
    if worse := [name for name, row in passed if row.any_change and (row.low or 0) > 1]:
        lines.append(f"slower or worse, within the tolerance: {'; '.join(worse)}")
    if better := [name for name, row in passed if row.any_change and (row.high or 2) < 1]:
        lines.append(f"faster or better, by its whole interval: {'; '.join(better)}")
    return lines


def _cells(name: str, row: RowVerdict, rate: str) -> dict[str, str]:
    comparison = row.comparison
    why = f": {comparison.reason}" if comparison.reason else ""
    return {
        "Configuration": name,
        "Metric": comparison.metric,
        "Baseline": quantity(comparison.baseline, header=rate),
        "Candidate": quantity(comparison.candidate, header=rate),
        "Change": change(row),
        "Interval": _signed_interval(row),
        "Tolerance": units.percent(row.tolerance, 3),
        "Chances": MISSING if row.chances is None else _chances(row.chances),
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
    """Names for sentences: with the metric if there are several."""
    if len({row.comparison.metric for row in rows}) == 1:
        return labels(rows)
    named = zip(labels(rows), rows, strict=True)
    return [f"{row.comparison.metric} of {name}" for name, row in named]


def change(row: RowVerdict) -> str:
    """The change in percent, to the digits that its interval supports: "1.2 % slower"."""
    slowdown = row.comparison.slowdown
    return MISSING if slowdown is None else _worded(slowdown.value, row)


def sentence(row: RowVerdict) -> str:
    """Writes "1.2 % slower (90 % interval 0.4 % faster to 2.8 % slower), tolerance 3 %"; or why
    there is no number."""
    slowdown, reason = row.comparison.slowdown, row.comparison.reason
    if slowdown is None:
        return reason or "not measured"
    text = change(row)
    if row.low is not None and row.high is not None:
        text += f" ({units.fixed_percent(row.confidence)} interval {interval(row)})"
    text += f", tolerance {units.percent(row.tolerance, 3)}"
    return f"{text}, {reason}" if reason else text


def interval(row: RowVerdict) -> str:
    """The one-sided bounds, which at 95 % each are a 90 % interval: "0.4 % faster to 2.8 % slower",
    "46 to 48 % faster"."""
    if row.low is None or row.high is None:
        return MISSING
    low, high = _percent(row.low, row), _percent(row.high, row)
    if low.startswith("-") != high.startswith("-"):
        return f"{_worded(row.low, row)} to {_worded(row.high, row)}"
    smaller, larger = sorted((low.lstrip("-"), high.lstrip("-")), key=float)
    return f"{smaller} to {larger} % {_direction(row, better=low.startswith('-'))}"


def _signed_interval(row: RowVerdict) -> str:
    """Interval for the narrow column of a table: "-0.4 to +2.8 %"."""
    if row.low is None or row.high is None:
        return MISSING
    ends = (_percent(row.low, row), _percent(row.high, row))
    low, high = (end if end.startswith("-") else f"+{end}" for end in ends)
    return f"{low} to {high} %"


def _worded(slowdown: float, row: RowVerdict) -> str:
    percent = _percent(slowdown, row)
    if float(percent) == 0:
        return f"{percent} %"
    return f"{percent.lstrip('-')} % {_direction(row, better=percent.startswith('-'))}"


def _direction(row: RowVerdict, *, better: bool) -> str:
    if METRICS[row.comparison.metric].is_speed:
        return "faster" if better else "slower"
    return "better" if better else "worse"


def _percent(slowdown: float, row: RowVerdict) -> str:
    """Percentage such as "-1.2", to the digits that the interval supports."""
    percent = 100 * (slowdown - 1)
    spread = 0.0 if row.low is None or row.high is None else 50 * (row.high - row.low)
    return f"{percent:z.{decimals(spread, percent) if spread > NO_SPREAD else 1}f}"


def _chances(found: Chances) -> str:
    """Chances, as in "99 / 5 / 99 %"."""
    parts = (found.passes_unchanged, found.caught_at_tolerance, found.caught_at_twice)
    return f"{' / '.join(f'{100 * part:.0f}' for part in parts)} %"


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
        "chance_that_unchanged_passes": row.chances and row.chances.passes_unchanged,
        "chance_of_catching_tolerance": row.chances and row.chances.caught_at_tolerance,
        "chance_of_catching_twice_tolerance": row.chances and row.chances.caught_at_twice,
        "repetitions_needed": row.repetitions_needed,
        "repetitions": comparison.slowdown and comparison.slowdown.sample_size,
        "baseline_repetitions": comparison.repetitions[0],
        "candidate_repetitions": comparison.repetitions[1],
        "paired": comparison.paired,
        "p_regressed": row.p_regressed,
        "any_change": row.any_change,
        "outcome": row.outcome,
        "reason": comparison.reason,
    }
