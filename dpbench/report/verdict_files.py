"""A check's verdict as files: Markdown for a pull request, and JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.comparisons.verdict import Assessment, Verdict, VerdictOutcome
from dpbench.messages import one_line
from dpbench.report.formats import escape, markdown_table
from dpbench.report.verdict import headline, labels, reading, sentence, sides, tables


def pull_request(verdict: Verdict, notes: Sequence[str]) -> str:
    """The headline, a table for each metric, and the notes folded away."""
    shown = [
        line
        for title, found in tables(verdict)
        for line in (*([escape(title), ""] if title else []), markdown_table(found), "")
    ]
    outcome, _, rest = headline(verdict).partition(": ")
    return "\n".join(
        [
            f"### dpbench check: {escape(outcome)}",
            "",
            escape(rest),
            "",
            escape(sides(verdict.rows)),
            "",
            *shown,
            "<details><summary>Notes</summary>",
            "",
            *(f"- {escape(note)}" for note in (*reading(verdict.rows), *notes)),
            "",
            "</details>",
            "",
        ]
    )


def junit(assessment: Assessment, *, strict: bool, notes: Sequence[str], started_utc: str) -> str:
    """A testcase for each row, and for all rows of a metric and candidate together if there are
    several; a regression is a failure.

    What is inconclusive is skipped, with `strict` a failure; a row that neither side has measured
    is always skipped. What could not be measured is an error. Times are those of the trials of both
    sides. `started_utc` is ISO 8601 without fractions.
    """
    verdict = assessment.verdict
    cases = []
    for one in verdict.metrics:
        rows = verdict.rows_of(one)
        if len(rows) == 1:
            continue
        whole = replace(verdict, outcome=one.outcome, metrics=(one,))
        seconds = sum(row.comparison.seconds for row in rows)
        case = _case(f"dpbench.{one.metric}", f"all rows of {one.candidate}", seconds)
        cases.append(_judged(case, one.outcome, headline(whole), strict=strict))
    for name, row in zip(labels(verdict.rows), verdict.rows, strict=True):
        case = _case(f"dpbench.{row.comparison.metric}", name, row.comparison.seconds)
        cases.append(_judged(case, row.outcome, sentence(row), strict=strict and row.is_open))
    for label, how, seconds in assessment.failures:
        cases.append(case := _case("dpbench.measuring", label, seconds))
        ElementTree.SubElement(case, "error", message=one_line(how), type="measuring")
    measured = (side for both in assessment.matched for side in (both.baseline, both.candidate))
    trials = {
        id(record): record.duration_seconds for side in measured for record in side.selected()
    }
    counts = {
        "name": "dpbench check",
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(len(assessment.failures)),
        "time": _time(sum(trials.values())),
    }
    # The schema gives the outer element no count of skipped cases.
    suites = ElementTree.Element("testsuites", counts)
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    suite = ElementTree.SubElement(
        suites, "testsuite", {**counts, "skipped": skipped, "timestamp": started_utc}
    )
    suite.extend(cases)
    # XML 1.0 has no escape for control characters, which one_line writes out.
    said = "\n".join(map(one_line, [headline(verdict), *notes]))
    ElementTree.SubElement(suite, "system-out").text = said
    ElementTree.indent(suites)
    text: str = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(class_name: str, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.Element(
        "testcase", classname=class_name, name=one_line(name), time=_time(seconds)
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _judged(
    case: ElementTree.Element, outcome: VerdictOutcome, message: str, *, strict: bool
) -> ElementTree.Element:
    """The testcase with its outcome; an inconclusive one fails if `strict`."""
    if outcome == "regressed" or (outcome == "inconclusive" and strict):
        ElementTree.SubElement(case, "failure", message=one_line(message), type=outcome)
    elif outcome == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=one_line(message))
    return case
