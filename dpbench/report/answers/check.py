"""`dpbench check`: the verdict in every form, text, Markdown, JSON and JUnit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from dpbench import units
from dpbench.analysis.change import Change
from dpbench.analysis.comparisons.comparison import ComparedRow, Comparison, Verdict
from dpbench.analysis.comparisons.verdict import deciding
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.analysis.formatting import decimals, percent
from dpbench.analysis.noise import FREE_THE_MACHINE, repetitions_advice
from dpbench.messages import one_line
from dpbench.report.answer import Answer, with_ends
from dpbench.report.answers.compare import plain_comparison, sample_sizes, side_columns
from dpbench.report.markup import render_template
from dpbench.report.table import MISSING, Column, Table

MOST_NAMED = 3
EQUAL_RUNS_PERCENT = 1e-6
"""Percent; runs that differ by less are equal."""
JUNIT_TAGS = {"pass": "", "regressed": "failure", "inconclusive": "skipped"}
"""The element of JUnit for each outcome."""


def check_answer(compared: Comparison, *, exit_status: int) -> Answer:
    """The whole answer. As data, ratios above 1 are worse, and None is not measured."""
    summary = summary_of(compared)
    remarks = all_notes(compared)
    reading = [f"a plus means slower or more memory; ranges are {percent(CONFIDENCE)} intervals"]
    rows = [row for of_metric in compared.rows.values() for row in of_metric]
    if len(rows) > 1:  # the headline has the reason of a single one
        reading.insert(
            0,
            "the verdict is on the mean change of all rows of a metric; one regressed row also "
            "makes it regressed",
        )
        for reason in dict.fromkeys(row.reason for row in rows if row.reason):
            named = dict.fromkeys(row.label for row in rows if row.reason == reason)
            reading.append(f"{reason}: {units.some_of([*named], MOST_NAMED)}")
    sides = {"baseline": compared.baseline.label, "candidate": compared.candidate.label}
    return Answer(
        paragraphs=(
            f"{summary}\n{sides['candidate']} (candidate) against {sides['baseline']} (baseline)",
            *_tables(compared),
            [*reading, *remarks],
        ),
        data={
            "outcome": deciding(compared).outcome,
            "summary": summary,
            **sides,
            "metrics": [
                {
                    "metric": verdict.metric,
                    "outcome": verdict.outcome,
                    "tolerance": verdict.tolerance,
                    **with_ends("slowdown", verdict.change.estimate if verdict.change else None),
                    "repetitions": verdict.change.repetitions if verdict.change else (0, 0),
                    "repetitions_needed": verdict.repetitions_needed,
                }
                for verdict in compared.verdicts
            ],
            "rows": [
                plain_comparison(row) | {"tolerance": verdict.tolerance}
                for verdict in compared.verdicts
                for row in compared.rows[verdict.metric]
            ],
            "environment_differences": list(compared.differences),
            "notes": remarks,
            "exit_status": exit_status,
        },
        exit_status=exit_status,
    )


def summary_of(compared: Comparison) -> str:
    """Says "regressed: time per image, mean of 2 rows: +5.2 % (+4.1 to +6.4 %), tolerance 3 %" of
    the verdict that decides."""
    worst = deciding(compared)
    rows, word = compared.rows[worst.metric], str(worst.outcome)
    quantity = quantity_of(rows) + (f", mean of {len(rows)} rows" if len(rows) > 1 else "")
    parts = [_change_text(quantity, worst.change, worst.tolerance)]
    if len(rows) > 1:
        undecided = _rows_words([row for row in rows if row.is_open], rows)
        regressed = _rows_words([row for row in rows if row.outcome == "regressed"], rows)
        if undecided and word == "pass":
            word = "pass on average"
        if undecided and word != "regressed":
            parts.append(f"inconclusive in {undecided}")
        if regressed:
            parts.append(f"regressed in {regressed}")
    is_doubtful = worst.outcome != "pass" and compared.load_may_explain(worst.outcome)
    if is_doubtful and compared.machine_load.spoils_speeds:
        parts.append(FREE_THE_MACHINE)
    elif worst.outcome == "inconclusive":
        parts.append(_what_would_decide(compared, worst))
    if compared.differences:
        changed = ", ".join(text.removeprefix("versions: ") for text in compared.differences)
        parts.append(f"differs: {changed.replace(' -> ', ' → ')}")
    if len(compared.verdicts) > 1:
        parts.append(f"{len(compared.verdicts)} verdicts in all: see below")
    return f"{word}: {'; '.join(parts)}"


def quantity_of(rows: Sequence[ComparedRow]) -> str:
    """The quantity that changes; more of it is worse. Throughput is judged by "time per image"."""
    if rows[0].metric.key != "images_per_second":
        return rows[0].metric.key
    used = {row.metric.unit for row in rows if row.baseline or row.candidate}
    unit = used.pop() if len(used) == 1 else "samples/s"
    item = re.sub(r"(x|ss|ch|sh)es$|s$", r"\1", unit.removesuffix("/s"))
    return f"time per {item}"


def _change_text(quantity: str, change: Change | None, tolerance: float) -> str:
    if change is None:
        return f"{quantity}: too few repetitions to compare"
    return f"{quantity}: {change_words(change)}, tolerance {percent(tolerance, 3)}"


def _rows_words(some: Sequence[ComparedRow], rows: Sequence[ComparedRow]) -> str:
    """Writes "1 of 2 rows (gloo ×2, batch 64)"; nothing for none."""
    names = [row.label for row in some]
    return f"{len(names)} of {len(rows)} rows ({units.some_of(names, MOST_NAMED)})" if names else ""


def _what_would_decide(compared: Comparison, verdict: Verdict) -> str:
    """How many repetitions would settle it, and how long they take; or what else would."""
    change, needed = verdict.change, verdict.repetitions_needed
    reasons = [row.reason for row in compared.rows[verdict.metric] if row.outcome == "inconclusive"]
    if reasons and all(reasons):
        return str(reasons[0])
    if change is None or not change.is_tested:
        return "measure at least 2 repetitions of both sides"
    if needed is None:
        return "too noisy to decide here: find a quieter machine, or raise the tolerance"
    now = min(change.repetitions)
    if needed <= now:
        return "the change is close to the tolerance: add repetitions"
    return repetitions_advice(needed, now, fmean(compared.repetition_seconds))


def _tables(compared: Comparison) -> Iterator[str | Table]:
    """The table of each metric, after its name and tolerance if there are several."""
    for verdict in compared.verdicts:
        metric, rows = verdict.metric, compared.rows[verdict.metric]
        if len(compared.verdicts) > 1:
            yield f"{metric}, tolerance {percent(verdict.tolerance, 3)}"
        subject = one_line(quantity_of(rows))
        change = "Change" if subject == metric else f"Change\nin {subject}"
        yield Table(
            columns=(
                Column("Configuration", [row.label for row in rows], is_text=True),
                *side_columns(rows, ("Baseline", "Candidate"), gap="\n"),
                Column(
                    change.replace(" per", "\nper"),
                    [change_words(row.change) if row.change else MISSING for row in rows],
                ),
                Column("Runs", [*map(sample_sizes, rows)], importance=1),
                Column("Verdict", [row.outcome for row in rows], is_text=True),
            )
        )


def all_notes(compared: Comparison) -> list[str]:
    """Failures, load on the machine if it matters, and the notes on the comparison."""
    failed = [f"{label}: {how}" for label, how in compared.failures.items()]
    load_matters = compared.load_may_explain(deciding(compared).outcome)
    load = [compared.machine_load.note] if load_matters else []
    return [*failed, *filter(None, load), *compared.notes]


def change_words(change: Change) -> str:
    """Writes a change as "+1.2 % (-0.4 to +2.8 %)", to the digits that its interval supports."""
    percentage = 100 * (change.estimate.value - 1)
    if not change.is_tested:
        return f"{percentage:+z,.1f} %"
    low, high = change.estimate.ends
    spread = 50 * (high - low)
    places = decimals(spread, percentage) if spread > EQUAL_RUNS_PERCENT else 1
    ends = " to ".join(f"{100 * (end - 1):+z,.{places}f}" for end in (low, high))
    return f"{percentage:+z,.{places}f} % ({ends} %)"


def junit(compared: Comparison, *, strict: bool, started_utc: str) -> str:
    """JUnit: a testcase for all rows of a metric together, and one for each row if
    there are several.

    A regression is a failure, and what is inconclusive is skipped, or, if `strict`, a failure of
    all rows. What could not be measured is an error. `started_utc` is ISO 8601 without fractions.
    """
    cases = []
    for verdict in compared.verdicts:
        rows = compared.rows[verdict.metric]
        name = f"all rows of {compared.candidate.label}"
        details = _change_text(quantity_of(rows), verdict.change, verdict.tolerance)
        if len(rows) == 1:
            name = rows[0].label
            details = rows[0].reason or details
        is_failure = strict and verdict.outcome == "inconclusive"
        tag = "failure" if is_failure else JUNIT_TAGS[verdict.outcome]
        cases.append(_testcase(verdict.metric, name, verdict.outcome, details, tag))
        for row in rows if len(rows) > 1 else ():
            details = row.reason or _change_text(quantity_of([row]), row.change, verdict.tolerance)
            tag = JUNIT_TAGS[row.outcome]
            cases.append(_testcase(verdict.metric, row.label, row.outcome, details, tag))
    for label, how in compared.failures.items():
        cases.append(_testcase("measuring", label, "error", how, "error"))
    return render_template(
        "junit.xml",
        cases=cases,
        tags=[case["tag"] for case in cases],
        started_utc=started_utc,
        summary=[*map(one_line, (summary_of(compared), *all_notes(compared)))],
    )


def _testcase(about: str, name: str, outcome: str, details: str, tag: str) -> dict[str, str]:
    message = one_line(f"{outcome}: {details}")
    return {"about": about, "name": one_line(name), "message": message, "type": outcome, "tag": tag}
