"""Text and JSON of `dpbench check`: the verdict in one line, a row per comparison, notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby

from dpbench import units
from dpbench.analysis.comparisons.verdict import Assessment, MetricVerdict, RowVerdict, Verdict
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.analysis.metrics import METRICS
from dpbench.report.answer import Answer, bullets
from dpbench.report.comparison import plain
from dpbench.report.numbers import decimals, quantity, sample_sizes
from dpbench.report.table import MISSING, Table, text_table
from dpbench.report.terminal import filled, folded_or_fewer

LINE_OF_A_HEADER = re.compile(r" (?=\(|in|per)")
"""Blanks at which headers are broken: Change / in time / per sample."""
LISTED = 3
LONGEST_ADVICE_SECONDS = 3600.0
"""Repetitions that would take longer are not advised."""
BUSY = "the machine was busy: free it and measure again"
NO_SPREAD = 1e-6
"""Percent; runs that differ by less are equal."""


def answer(assessment: Assessment, notes: Sequence[str], *, exit_status: int) -> Answer:
    """The whole answer; `notes` stand below the table. As data, ratios above 1 are worse, and None
    is not measured."""
    verdict = assessment.verdict
    head = "\n".join(map(filled, (headline(verdict), sides(verdict.rows))))
    below: list[str | Table] = []
    said = [*reading(verdict.rows), *notes]
    for title, found in tables(verdict.rows):
        narrow = (
            replace(one, header=LINE_OF_A_HEADER.sub("\n", one.header)) for one in found.columns
        )
        table, fewer = folded_or_fewer(
            replace(found, columns=tuple(narrow)),
            ["Configuration"],
            [("n",), ("Baseline", "Candidate")],
        )
        below += [title, table]
        said += fewer
    return Answer(
        paragraphs=(head, *below, bullets(dict.fromkeys(said))),
        data={
            "outcome": verdict.outcome,
            "metrics": [asdict(one) for one in verdict.metrics],
            "rows": [
                {
                    **plain(row.comparison),
                    "candidate_name": row.comparison.candidate_label,
                    "tolerance": row.tolerance,
                    "outcome": row.outcome,
                }
                for row in verdict.rows
            ],
            "notes": list(notes),
            "exit_status": exit_status,
        },
    )


def headline(verdict: Verdict) -> str:
    """Says "regressed: throughput, mean of 2 rows: 5.2 % slower (+4.1 to +6.4 % in time), …".

    A pass of the mean begins with the rows that are inconclusive by themselves.
    """
    alike = [one for one in verdict.metrics if one.outcome == verdict.outcome]
    undecided_first = (one for one in alike if any(r.is_open for r in rows_of(one, verdict)))
    worst = next(undecided_first, alike[0])
    rows = rows_of(worst, verdict)
    what = _metric_words(worst.metric) + (f", mean of {len(rows)} rows" if len(rows) > 1 else "")
    parts = [f"{what}: too few repetitions to compare"]
    if worst.slowdown is not None:
        change = _worded(worst.slowdown, worst.low, worst.high, worst.metric)
        bounds = _signed(worst.low, worst.high, worst.metric)
        parts = [f"{what}: {change} ({bounds}), tolerance {units.percent(worst.tolerance, 3)}"]
    word: str = verdict.outcome
    if len(rows) > 1:
        undecided = _counted([row.is_open for row in rows], rows)
        regressed = _counted([row.outcome == "regressed" for row in rows], rows)
        if undecided and worst.outcome == "pass":
            word = f"pass on average, inconclusive in {undecided}"
        elif undecided and worst.outcome == "inconclusive":
            parts.append(f"inconclusive in {undecided}")
        if regressed:
            parts.append(f"regressed in {regressed}")
    if worst.outcome == "inconclusive":
        parts.append(BUSY if verdict.is_untrustworthy else _what_would_decide(worst, rows))
    kinds = (
        ("metrics", {one.metric for one in verdict.metrics}),
        ("candidates", {one.candidate for one in verdict.metrics}),
    )
    several = [f"{len(names)} {noun}" for noun, names in kinds if len(names) > 1]
    more = f"; {', '.join(several)}: see below" if several else ""
    return f"{word}: {'; '.join(parts)}{more}"


def _metric_words(metric: str) -> str:
    """The metric's key, but no "images" above the samples or tokens of another model."""
    return "throughput" if metric == "images_per_second" else metric


def rows_of(one: MetricVerdict, verdict: Verdict) -> list[RowVerdict]:
    """The rows that a metric's verdict is about."""
    wanted = (one.metric, one.candidate)
    return [
        row
        for row in verdict.rows
        if (row.comparison.metric, row.comparison.candidate_label) == wanted
    ]


def _counted(which: Sequence[bool], rows: Sequence[RowVerdict]) -> str:
    """Writes "1 of 2 rows (gloo ×2, batch 64)"; nothing for none."""
    names = [name for name, chosen in zip(labels(rows), which, strict=True) if chosen]
    return f"{len(names)} of {len(rows)} rows ({units.some_of(names, LISTED)})" if names else ""


def _what_would_decide(one: MetricVerdict, rows: Sequence[RowVerdict]) -> str:
    """How many repetitions would settle it, or what else would."""
    reasons = [row.comparison.reason for row in rows if row.is_open]
    if reasons and all(reasons):
        return str(reasons[0])
    if one.high is None or one.low is None:
        return rows[0].comparison.reason or "measure at least 2 repetitions of both sides"
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
    """Says "throughput of ddp (candidate) against torch-ddp (baseline)"."""
    metrics = dict.fromkeys(_metric_words(row.comparison.metric) for row in rows)
    candidates = dict.fromkeys(row.comparison.candidate_label for row in rows)
    return (
        f"{', '.join(metrics)} of {', '.join(candidates)} (candidate) against "
        f"{rows[0].comparison.baseline_label} (baseline)"
    )


def tables(rows: Sequence[RowVerdict]) -> list[tuple[str, Table]]:
    """A table for each metric, and its title: the metric if there are several, else ""."""
    groups = [[*group] for _, group in groupby(rows, lambda row: row.comparison.metric)]
    titles = [group[0].comparison.metric if len(groups) > 1 else "" for group in groups]
    return [*zip(titles, map(_table, groups), strict=True)]


def _table(rows: Sequence[RowVerdict]) -> Table:
    seen = {row.comparison.unit for row in rows}
    rate = f" ({min(seen)})" if len(seen) == 1 and min(seen).endswith("/s") else ""
    change_of = f"Change in {item}" if (item := _time_per_item(rows)) else "Change"
    columns = {
        "Configuration": ("Configuration", labels(rows)),
        "Baseline": (
            f"Baseline{rate}",
            [quantity(row.comparison.baseline, header=rate) for row in rows],
        ),
        "Candidate": (
            f"Candidate{rate}",
            [quantity(row.comparison.candidate, header=rate) for row in rows],
        ),
        "Change": (change_of, [_signed_change(row) for row in rows]),
        "n": ("n", [sample_sizes(row.comparison.repetitions) for row in rows]),
        "Verdict": ("Verdict", [row.outcome for row in rows]),
    }
    table = text_table(
        [header for header, _ in columns.values()],
        zip(*(cells for _, cells in columns.values()), strict=True),
        words=("Configuration", "Verdict"),
        keys=tuple(columns),
    )
    return table if _repetitions(rows) is None else table.without(["n"])


def _repetitions(rows: Sequence[RowVerdict]) -> tuple[int, int] | None:
    """The repetitions of baseline and candidate, if they are the same in all rows."""
    found = {row.comparison.repetitions for row in rows}
    return found.pop() if len(found) == 1 else None


def _time_per_item(rows: Sequence[RowVerdict]) -> str | None:
    """What has changed if all rows are throughputs: "time per image"; else None."""
    seen = {row.comparison.unit for row in rows}
    item, slash, _ = seen.pop().partition("s/s")
    return f"time per {item}" if slash and not seen else None


def reading(rows: Sequence[RowVerdict]) -> list[str]:
    """How to read the table."""
    lines = []
    if len(rows) > 1:
        lines.append(
            "the verdict is on the mean change of all rows of a metric; one regressed row also "
            "makes it regressed, and with --strict one inconclusive row makes it inconclusive"
        )
    if _time_per_item(rows) is None:
        lines.append(
            "the change in a rate or an efficiency is baseline ÷ candidate - 1; in any other "
            "metric it is candidate ÷ baseline - 1"
        )
    lines.append(
        f"+ is worse; ranges are {units.exact_percent(CONFIDENCE)} intervals over repetitions"
    )
    if common := _repetitions(rows):
        before, now = common
        many = f"{before} of the baseline, {now} of the candidate"
        lines.append(
            f"repetitions: {many}"
            if before != now
            else f"{units.counted(before, 'repetition')} of each side"
        )
    elif any(len({*row.comparison.repetitions}) > 1 for row in rows):
        lines.append("n: repetitions of the baseline and of the candidate")
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


def change(row: RowVerdict) -> str:
    """The change in percent, to the digits that its interval supports: "1.2 % slower"."""
    slowdown = row.comparison.slowdown
    if slowdown is None:
        return MISSING
    return _worded(slowdown.value, *_ends(row), row.comparison.metric)


def sentence(row: RowVerdict) -> str:
    """Writes "pass: 1.2 % slower (-0.4 to +2.8 % in time), tolerance 3 %"; or why it has no
    number."""
    if row.comparison.reason:
        return f"{row.outcome}: {row.comparison.reason}"
    limit = f"tolerance {units.percent(row.tolerance, 3)}"
    return f"{row.outcome}: {change(row)} ({_signed(*_ends(row), row.comparison.metric)}), {limit}"


def _signed_change(row: RowVerdict) -> str:
    """Writes "+1.2 (-0.4 to +2.8) %"."""
    slowdown = row.comparison.slowdown
    if slowdown is None:
        return MISSING
    low, high = _ends(row)
    if low is None or high is None:
        return f"{_sign(_percent(slowdown.value, low, high))} %"
    value, *ends = (_sign(_percent(one, low, high)) for one in (slowdown.value, low, high))
    return f"{value} ({' to '.join(ends)}) %"


def _ends(row: RowVerdict) -> tuple[float | None, float | None]:
    """The ends of the slowdown's interval; None where there is none."""
    slowdown = row.comparison.slowdown
    return (None, None) if slowdown is None else (slowdown.low, slowdown.high)


def _signed(low: float | None, high: float | None, metric: str) -> str:
    """An interval of changes as "-0.4 to +2.8 %"; of a speed "… in time", as more is slower."""
    if low is None or high is None:
        return MISSING
    first, second = (_sign(_percent(end, low, high)) for end in (low, high))
    return f"{first} to {second} %{' in time' if METRICS[metric].is_speed else ''}"


def _sign(percent: str) -> str:
    return f"+{percent}" if float(percent) > 0 else percent


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
